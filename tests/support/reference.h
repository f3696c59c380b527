// The PyTorch runs of tests/reference, as the tests follow them: their settings, weights, tokens
// and numbers. README.md there defines everything.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/layouts.h"

namespace mtl::test {

constexpr int64_t kReferenceVocab = 65;

struct ReferenceRun {
  TrainSpec spec;  // fp32, one rank
  std::vector<double> loss, grad_norm, lr;
  std::vector<double> loss_bf16;  // empty if the run was not made in bf16
  double noise_bf16 = 0;          // of loss_bf16 against `loss`, relative, at most
  struct Parameter {
    std::vector<int64_t> shape;
    std::vector<float> initial_head;  // the first elements
    double grad_norm = 0;             // at the first step
    double final_norm = 0;            // after the last
  };
  std::map<std::string, Parameter> parameters;
  std::map<std::string, std::vector<double>> expert_bias;  // after the last step
  std::vector<int32_t> first_tokens;                       // of the first window
  std::vector<int64_t> token_sums;  // of each step, targets of the last position included
};

// Reads tests/reference/`name`.json; throws what the parser throws.
ReferenceRun read_reference(const std::string& name);
// The first step's gradients, before clipping: tests/reference/`name`_grads.safetensors.
GlobalTensors read_reference_gradients(const std::string& name);

// Initial weights.
void set_reference_weights(Trainer& trainer);

// Window w of the sequential sampler is the reference's sequence w of seq_len + 1 tokens.
class ReferenceTokens : public TokenSource {
 public:
  int64_t size() const override;
  void read(int64_t first, std::span<int32_t> out) const override;
  uint64_t fingerprint() const override { return 0; }
};

}  // namespace mtl::test
