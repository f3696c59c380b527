// mtl submit in the tests: its words, and a character model for it to train.
#pragma once

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "support/slurm.h"
#include "support/text.h"

namespace mtl::test {

using Words = std::vector<std::string>;

inline Words mtl_words(Words words) {
  words.insert(words.begin(), MTL_PROGRAM);
  return words;
}

inline Words submit(Words words) {
  words.insert(words.begin(), {"submit", "--cpu"});
  return mtl_words(std::move(words));
}

// The id that `submit --quiet` prints.
inline std::string id_of(const CommandEnd& end) {
  CAPTURE(end.err);
  REQUIRE(end.code == 0);
  std::string id = end.out.substr(0, end.out.find('\n'));
  REQUIRE(id.find_first_not_of("0123456789") == std::string::npos);
  return id;
}

inline std::string submitted(const Slurm& slurm, Words words) {
  words.insert(words.begin(), "--quiet");
  return id_of(slurm.run(submit(std::move(words))));
}

inline void write_tiny(const Slurm& slurm, int steps, const std::string& more = {}) {
  std::ofstream(slurm.work() / "corpus.txt") << fox_text();
  std::ofstream(slurm.work() / "train.yaml")
      << "run:\n  name: tiny\nmodel:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
         "train:\n  micro_batch: 1\n  global_batch: 8\n  seq_len: 16\n  steps: "
      << steps
      << "\ndata:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n"
         "checkpoint:\n  every: 1000\nlog:\n  every: 1\n"
      << more;
}

}  // namespace mtl::test
