// One rank of a training job: executes its part of the plan, step by step. Knows nothing of run
// directories, consoles or signals.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/data/data.h"
#include "runtime/device/device.h"
#include "runtime/model/transformer.h"
#include "runtime/plan/plan.h"

namespace mtl {

// A parameter of this rank as checkpoints and tests see it: the row, where it lies in the global
// tensor, and host-readable f32 views.
struct ParameterState {
  const ParamRow* row = nullptr;
  std::vector<int64_t> local_shape;
  std::vector<ParamRect> rects;
  Tensor master, exp_avg, exp_avg_sq, grad;  // f32
};

// What a rank was asked to do (signals); the job does it when any rank was.
struct Requests {
  bool stop = false;
  bool checkpoint = false;
};

struct StepResult {
  double loss = 0;       // mean over the tokens of the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  Requests requests;  // of all ranks together
};

class Trainer {
 public:
  // `device` and `world` outlive the trainer. All ranks construct it together.
  Trainer(const Plan& plan, const TrainSpec& spec, Device& device, CommWorld& world);
  ~Trainer();

  // Weights from the seed; moments zero.
  void initialise();
  std::vector<ParameterState> state();
  // After master weights were written (a checkpoint was loaded): refreshes the weights that the
  // matmuls read.
  void weights_changed();

  // Step `step` (from 0) of training: samples [step * global_batch, ...) of `sampler`. `stop` is
  // this rank's wish to stop; the result says whether any rank has it.
  StepResult step(int64_t step, const TokenSource& source, const Sampler& sampler,
                  Requests requests);
  // Forward and backward of the same, without the update: the gradients stay for the reader
  // (tests).
  double gradients(int64_t step, const TokenSource& source, const Sampler& sampler);
  // Mean loss per token over the first `batches` global batches of windows of `source` in order (0
  // = all of its windows).
  double evaluate(const TokenSource& source, int64_t batches);

  const Coord& coord() const { return coord_; }
  Communicator& tp() { return *tp_; }
  Communicator& dp() { return *dp_; }

 private:
  void load_batch(const TokenSource& source, const Sampler& sampler, int64_t first, int64_t count);
  void run_micro_batches(int64_t step, const TokenSource& source, const Sampler& sampler,
                         Requests requests, bool apply, StepResult& result);
  void reduce_gradients(Requests requests, StepResult& result);
  void update(int64_t step, StepResult& result);
  // Sums the losses of a pass into "loss_sum"[0].
  void add_losses(const Pass& pass, bool accumulate);

  const Plan& plan_;
  const TrainSpec& spec_;
  Device& device_;
  Coord coord_;
  std::unique_ptr<Communicator> tp_, dp_;
  void* memory_ = nullptr;
  bool owns_memory_ = false;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<BlockContext> context_;
  std::unique_ptr<Transformer> model_;
  std::vector<int32_t> host_tokens_, host_targets_;
};

}  // namespace mtl
