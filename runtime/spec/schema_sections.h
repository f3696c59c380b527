// The sections that the schema table is made of, for its files only: schema.cpp lays them one after
// the other.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/spec/schema.h"

namespace mtl::spec {

inline const std::string kNotYet = "not available in this version";
// Steps and sequences beyond this are slips, and products of two of them stay within 64 bits.
inline constexpr double kMany = 1e9;
inline constexpr double kSteps = 1e12;

// One section of train.yaml, at the top level but for the large ones inside `model`.
struct Section {
  // The sentence of each section: this one and those inside it.
  std::vector<std::pair<std::string, std::string>> docs;
  std::vector<Row> rows = {};
  std::vector<Alternatives> alternatives = {};
  std::vector<Unavailable> unavailable = {};
};

Section run_section();
Section model_section();
Section position_section();
Section latent_section();
Section experts_section();
Section parallel_section();
Section train_section();
Section precision_section();
Section recompute_section();
Section optimizer_section();
Section lr_section();
Section init_section();
Section lora_section();
Section data_section();
Section checkpoint_section();
Section log_section();
Section health_section();
Section launch_section();

}  // namespace mtl::spec
