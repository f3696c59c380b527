// Runs what was drawn and holds it to what is claimed of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "sweep/agree.h"
#include "sweep/draw.h"

namespace mtl::sweep {

struct Failure {
  // "forecast", "bits", "near", "crashed", "hung", "failed CODE", "refused CODE": what has to stay
  // when settings are taken away.
  std::string kind;
  std::string words;
};

// How the cases went, together.
struct Tally {
  int64_t cases = 0, agreed = 0, refused = 0;
  std::map<std::string, int64_t> refusals;  // by code
  std::map<std::string, Moved> moved;       // by precision
  double forecast = 0;                      // most that a forecast of memory was away
};

enum class What { plans, runs };  // runs: plans too

// `folder`: with the texts; everything else in it is removed.
std::optional<Failure> check_case(const Case& drawn, const std::filesystem::path& folder, What what,
                                  Tally& tally);

// As a person types them behind  mtl launch --cpu --num_processes N train.yaml launch.spawn=threads
std::string words_of(const Settings& settings);

}  // namespace mtl::sweep
