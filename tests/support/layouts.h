// Runs a small model in any layout, one thread per rank, over shared memory unless told:
// what the tests of "a layout never changes the model" compare.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/store.h"
#include "runtime/engine/trainer.h"
#include "runtime/plan/traffic.h"

namespace mtl::test {

// Tokens given by a function of their position.
class SyntheticTokens : public TokenSource {
 public:
  SyntheticTokens(int64_t size, std::function<int32_t(int64_t)> token)
      : size_(size), token_(std::move(token)) {}
  int64_t size() const override { return size_; }
  void read(int64_t first, std::span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = token_(first + static_cast<int64_t>(i));
  }
  uint64_t fingerprint() const override { return 0; }

 private:
  int64_t size_;
  std::function<int32_t(int64_t)> token_;
};

// A text-like source: a Markov chain that a small model can learn, from a counter-based hash.
std::unique_ptr<TokenSource> markov_tokens(int64_t size, int32_t vocab);

struct Layout {
  int tp = 1;
  int dp = 1;
  int pp = 1;
  int virtual_stages = 1;
  int cp = 1;
  int ep = 1;
  int zero_ranks = 0;  // of each copy of what ZeRO divides; 0 = all
  int world() const { return tp * dp * pp * cp * ep; }
};

// Global f32 tensors by parameter name.
using GlobalTensors = std::map<std::string, std::vector<float>>;

// One rank of a running layout, as the body sees it.
struct RankContext {
  Trainer& trainer;
  const Plan& plan;
  Communicator& world;
  int rank = 0;
};

// Makes the plan for `spec` with the layout's degrees, starts one thread per rank, runs `body` on
// each, and rethrows the first exception. `epoch`: sequences of the text, where epochs matter.
// `make_world`: of several ranks, if not shared memory. `make_device`: before it and in the same
// thread, if not the CPU.
using MakeWorld = std::function<std::unique_ptr<CommWorld>(Store&, int rank, int size)>;
using MakeDevice = std::function<std::unique_ptr<Device>(int rank)>;
void run_layout(TrainSpec spec, int64_t vocab, Layout layout,
                const std::function<void(RankContext&)>& body, int64_t epoch = 0,
                const MakeWorld& make_world = {}, const MakeDevice& make_device = {});

// Collects a rank's part of each global tensor; call on every rank with the same (locked inside)
// target.
enum class Which { master, grad };
void collect(Trainer& trainer, Which which, GlobalTensors& into);
// The same of the optimizer's state, by its name in checkpoints.
void collect_moments(Trainer& trainer, std::map<std::string, GlobalTensors>& into);
// What this rank's communicators have counted so far, by link.
std::array<Traffic, kLinks> traffic_of(Trainer& trainer);
// Writes value(row, element of the global tensor) into the masters and makes the weights from them.
void set_masters(Trainer& trainer,
                 const std::function<float(const ParamRow& row, int64_t element)>& value);
// The same of one element of what a rank keeps of a parameter; Trainer::weights_changed() is to
// follow.
inline void set_master(Trainer& trainer, const ParameterState& parameter, int64_t element,
                       float value) {
  parameter.master.write(trainer.device(), element, 1, &value);
}

double norm_of(const std::vector<float>& x);
// ||a - b|| / ||b|| over all elements.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace mtl::test
