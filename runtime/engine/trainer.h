// One rank of a training job: executes its part of the plan, step by step. Knows nothing of run
// directories, consoles or signals.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/comm/communicator.h"
#include "runtime/comm/queue.h"
#include "runtime/data/samples.h"
#include "runtime/device/device.h"
#include "runtime/engine/counted_rows.h"
#include "runtime/engine/gradients.h"
#include "runtime/engine/health.h"
#include "runtime/engine/loss_scale.h"
#include "runtime/engine/optimizer.h"
#include "runtime/engine/rank_groups.h"
#include "runtime/engine/stage_links.h"
#include "runtime/engine/tied_embedding.h"
#include "runtime/engine/weight_windows.h"
#include "runtime/model/chunk.h"
#include "runtime/model/float8_weights.h"
#include "runtime/plan/plan.h"

namespace mtl {

// The part of a parameter that this rank keeps the state of, as checkpoints and tests see it.
struct ParameterState {
  const ParamRow* row = nullptr;
  std::vector<int64_t> local_shape;
  OwnedPart part;                // elements of the flattened local tensor
  std::vector<ParamRect> rects;  // that part, in the global tensor
  bool counts = true;            // false: another rank's copy is the one to be saved
  Masters master;                // [part.count]
  Tensor grad;                   // f32 [part.count]; none of what is not trained
  std::vector<std::pair<const char*, Tensor>> moments;
};

// What a rank was asked to do (signals); the job does it when any rank was.
struct Requests {
  bool stop = false;
  bool checkpoint = false;
  bool saving = false;  // no wish: its part of a checkpoint is still being written
};

struct StepResult {
  double loss = 0;        // mean over the tokens of the global batch that count
  double counted = 0;     // how many that are
  double grad_norm = 0;   // before clipping
  double lr = 0;          // of a skipped step: what it would have had
  bool skipped = false;   // no update: overflow (fp16), or numbers that are none (health.nan=skip)
  double loss_scale = 1;  // that this step ran with
  int64_t skipped_so_far = 0;
  // Of the routers of a mixture of experts: means over the tokens of the global batch, summed over
  // the layers, without their weights. Not part of `loss`, but of what is minimised.
  double moe_aux_loss = 0, moe_z_loss = 0;
  // Divided experts: how many turns a micro-batch took through those of a layer, the mean; 0 where
  // they are not divided.
  double moe_turns = 0;
  Requests requests;  // of all ranks together
};

// Of an evaluation.
struct LossSum {
  double loss = 0, tokens = 0;
  double mean() const { return loss / std::max(tokens, 1.0); }
};

class Trainer {
 public:
  // `device` and `world` outlive the trainer. All ranks construct it together.
  Trainer(const Plan& plan, const TrainSpec& spec, Device& device, CommWorld& world);
  ~Trainer();

  // Weights from the seed; moments zero.
  void initialise();
  // The rank's own parts. Waits until they are complete.
  std::vector<ParameterState> state();
  // After master weights were written (a checkpoint was loaded): refreshes the weights that the
  // matmuls read.
  void weights_changed();
  // What a run needs beside the parameters to go on as if it had not stopped: updates done, loss
  // scale, skipped steps, how many of these in a row there are.
  nlohmann::json progress() const;
  // Of a checkpoint after `step` steps that had consumed `samples` sequences; a checkpoint without
  // progress had one update per step. With another batch than before, the run goes on behind those
  // sequences.
  void restore_progress(const nlohmann::json& progress, int64_t step, int64_t samples);
  // The sequences consumed before a step.
  int64_t first_sample(int64_t step) const {
    return plan_.batch.first_sample(step) + samples_ahead_;
  }

  // Step `step` (from 0) of training: its samples are those that the plan's batch schedule gives
  // it. `requests` are this rank's wishes; the result says those of all ranks.
  StepResult step(int64_t step, const Samples& samples, Requests requests);
  // Forward and backward of the same, without the update: the gradients stay for the reader
  // (tests).
  StepResult gradients(int64_t step, const Samples& samples);
  // The same of ranks that are between two steps, or within what can be left. Waits for the device.
  Requests requests_of_all(Requests own);
  // Asked on all ranks together, which all say the same, before each part of what can be left, with
  // what is done so far; the parts take no longer than a step does, or about as long.
  using GoOn = std::function<bool(int64_t done)>;
  // Of the tokens that count in the first `wanted` samples (0 = all, which must end). `go_on`: of
  // samples; nothing, where it has said no.
  std::optional<LossSum> losses(const Samples& samples, int64_t wanted, const GoOn& go_on = {});
  double evaluate(const Samples& samples, int64_t wanted) {
    return losses(samples, wanted)->mean();
  }
  // What chooses the token that follows a text, of the scores of the whole vocabulary; -1 = none.
  // It is called on some ranks and not on others.
  using Choose = std::function<int32_t(std::span<const float> logits, size_t text)>;
  // The tokens that follow the texts, the same on all ranks. Every text goes through the model as a
  // whole, as evaluation does it and in the same memory, whatever the layout: of one token and up
  // to `room` of them, which a sequence has. Calls with the same room are passes of the same shape.
  std::vector<int32_t> next_tokens(std::span<const std::vector<int32_t>> texts, int64_t room,
                                   const Choose& choose);
  // The same of windows of a row of tokens; evaluate() takes them in order.
  StepResult step(int64_t step, const TokenSource& source, const Sampler& sampler,
                  Requests requests) {
    return this->step(step, TokenWindows(source, sampler), requests);
  }
  StepResult gradients(int64_t step, const TokenSource& source, const Sampler& sampler) {
    return gradients(step, TokenWindows(source, sampler));
  }
  double evaluate(const TokenSource& source, int64_t wanted) {
    const Sampler in_order(source.size(), plan_.seq, SampleOrder::sequential, 0);
    return evaluate(TokenWindows(source, in_order), wanted);
  }
  // The samples that a step reads on this rank, in the order of its micro-batches; empty where its
  // part of the model reads none.
  std::vector<SampleRange> sample_ranges(int64_t step) const;

  const Coord& coord() const { return coord_; }
  const RankGroups& groups() const { return groups_; }
  Device& device() { return device_; }
  // In whose scopes the trainer works: a step is computing, but for what is something else.
  StepClock& clock() { return clock_; }

 private:
  // health.nan=skip is for single steps; so many in a row mean that the weights are lost.
  static constexpr int64_t kMostBadStepsInARow = 20;

  struct Memory;
  // Of a parameter all but what lies in memory; and of one that is not trained.
  ParameterState state_of(const ParamPlacement& param, const OwnedPart& part) const;
  ParameterState frozen_state(const ParamPlacement& param) const;
  Pass pass_of(const Instruction& in) const;
  // Of the micro-batch in the global batch.
  int64_t first_sequence(const Instruction& in) const;
  // What dropout reads of the pass, for its backward too.
  void write_dropout(const Instruction& in, int64_t step);
  // Tokens for the ends of the model, and for every chunk where the documents in a sequence begin:
  // of samples from `first` on, as many as the pass has. The targets of samples from `counted_end`
  // on do not count.
  void load_batch(const Samples& samples, int64_t first, const Pass& pass, const Chunk& chunk,
                  int64_t counted_end = kEndless);
  // Targets of the pass, for the head.
  void load_targets(std::span<const int32_t> targets, int slot);
  // Of the tokens of whole sequences those that are the rank's (cp), moved to their beginning.
  std::span<const int32_t> own_share(const Pass& pass, std::span<int32_t> whole) const;
  bool needs_documents() const { return static_cast<bool>(first_key_) || position_ids_; }
  void run_micro_batches(int64_t step, const Samples& samples, NotFiniteSearch* search = nullptr);
  // What gradients, made for the mean over all tokens, are to be multiplied by.
  double correction(int64_t step, double counted) const;
  Tensor stream_gradient(const Pass& pass) const;
  // After all gradients are summed: enqueues what makes the loss, the norm and the requests of all
  // ranks of each rank's own, and what the update needs of them.
  void agree(int64_t step, Requests requests);
  // Moves the experts' biases by the tokens that they got, if the model has any.
  void balance_experts();
  // The same for the host: waits for all that is enqueued. Returns the correction of the gradients.
  double read(int64_t step, StepResult& result);
  // Forward alone, of samples [first, end) of this replica, through all stages; the length of the
  // sequences is that of `pass`. `behind_head`: what is done with a pass that has left the head.
  struct ForwardOnly {
    const Samples& samples;
    int64_t first = 0, end = 0, counted_end = kEndless;
    std::function<void(const Chunk&, const Pass&, int64_t first)> behind_head = {};
  };
  void forward_only(const ForwardOnly& work, Pass pass);
  // What a replica evaluates before the next chunk has its turn, and before all ranks agree to go
  // on.
  int64_t sequences_in_turn() const;
  int64_t sequences_in_part() const;
  // The weights are there, or come as passes without a step read them.
  void weights_for_reading();
  // What a chunk's head scores behind a row of its pass, over the whole vocabulary.
  std::vector<float> logits_of(const Chunk& chunk, const Pass& pass, int64_t row);
  // Of a chunk, with the sum of its losses, which is added to the earlier ones of a step or not.
  void forward(const Chunk& chunk, const Pass& pass, const BetweenLayers& between, bool add_losses);
  // run(), of which the device may take the ops of an earlier pass: `what` and the chunk name them,
  // together with all of the pass that they depend on.
  void replay(const char* what, int chunk, const Pass& pass, const std::function<void()>& run);
  // What is done between the layers of a pass, where there is somebody to wait for or to send to.
  // The first forward of a step begins while the weights may still be travelling, the last backward
  // sends gradients on their way; what is kept in shards travels in every pass.
  BetweenLayers between_layers(const Instruction& in, bool forward, bool reduces);
  // The same in a pass that the device may replay.
  BetweenLayers anew(const BetweenLayers& between);
  // Before the weights of a layer are read.
  void read_weights(int chunk, int64_t layer);
  // After a layer's last gradient of the step (with gradients in shards: of the micro-batch).
  void gradients_done(int chunk, int64_t layer);
  // A pass begins, forward or backward, that reads weights.
  void begin_reading(const Chunk& chunk, bool forward);
  // The passes of an instruction of a step.
  void forward_of_step(const Instruction& in, const Pass& pass);
  void backward_of_step(const Instruction& in, const Pass& pass, bool reduces);
  // Sums the losses of a pass into "loss_sum"[0].
  void sum_losses(const Chunk& chunk, const Pass& pass, bool accumulate);
  // What the update multiplies the gradients by, as the device has found.
  Tensor gradient_factor() const;
  float loss_scale(int64_t step) const;
  void look_at_gradients(int64_t layer, NotFiniteSearch& search);
  // What to say of a step whose loss or gradient is no number: runs its passes again to find where.
  Diagnostic diverged(int64_t step, const StepResult& result, const Samples& samples);

  const Plan& plan_;
  const TrainSpec& spec_;
  Device& device_;
  const Coord coord_;
  const StagePlan stage_;
  StepClock clock_;
  RankGroups groups_;
  std::unique_ptr<Memory> memory_;
  Arena arena_;
  Parameters parameters_;
  // Behind the memory: they are done before it goes.
  StageLinks links_;
  CommQueue tensor_queue_;
  DataQueues data_queues_;
  TensorParallel tensor_parallel_;
  ContextParallel context_parallel_;
  ExpertParallel expert_parallel_;
  BlockContext context_;
  std::vector<Chunk> chunks_;
  Float8Weights float8_;
  TiedEmbedding tied_;
  WeightWindows windows_;
  GradientReducer reducer_;
  Optimizer optimizer_;
  LossScale scale_;
  int64_t updates_ = 0, skipped_ = 0, bad_in_a_row_ = 0;
  int64_t samples_ahead_ = 0;  // of the plan's batches: those before a checkpoint were others
  Buffer first_key_, position_ids_;
  std::vector<int32_t> host_tokens_, host_targets_, host_first_key_, host_positions_;
  CountedRows host_rows_;
  std::map<int, int64_t> head_rows_;  // by slot: Pass::head_rows of the batch that is loaded there
  const uint64_t number_;             // of this trainer among those of the process
  int64_t expert_turns_ = 0;          // of the step under way
  int64_t counted_ = 0;  // targets that this rank's micro-batches count, of the pass under way
};

}  // namespace mtl
