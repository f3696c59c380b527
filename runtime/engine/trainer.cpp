#include "runtime/engine/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/engine/health.h"
#include "runtime/engine/init.h"
#include "runtime/engine/lr.h"
#include "runtime/engine/rope_table.h"

namespace mtl {

// The arena: from the transport, so that peers can read it, unless there are none. And what lies on
// the host, which no peer reads.
struct Trainer::Memory {
  Memory(const MemoryPlan& plan, Device& device, CommWorld& world) {
    const auto bytes = static_cast<size_t>(plan.total_bytes);
    if (world.size() == 1) owned_ = {device.allocate(bytes), Free{&device}};
    base = owned_ ? owned_.get() : world.allocate(bytes);
    // A stage without parameters has buffers of no bytes there, which have an address all the same.
    const bool any = std::any_of(plan.buffers.begin(), plan.buffers.end(),
                                 [](const BufferPlan& buffer) { return buffer.on_host; });
    if (!any) return;
    const int64_t there = std::max<int64_t>(plan.host_bytes, 1);
    on_host_ = {device.allocate_on_host(static_cast<size_t>(there)), Free{&device}};
    host = on_host_.get();
  }

  void *base = nullptr, *host = nullptr;

 private:
  struct Free {
    Device* device;
    void operator()(void* memory) const { device->free(memory); }
  };
  std::unique_ptr<void, Free> owned_, on_host_;
};

namespace {

// What one trainer has recorded on a device is not for the next one, whose memory is another.
uint64_t next_number() {
  static std::atomic<uint64_t> trainers = 0;
  return ++trainers;
}

}  // namespace

Trainer::Trainer(const Plan& plan, const TrainSpec& spec, Device& device, CommWorld& world)
    : plan_(plan),
      spec_(spec),
      device_(device),
      coord_(plan.grid.coord(world.rank())),
      stage_(plan.stage_of(world.rank())),
      clock_(device),
      groups_(plan, world, &clock_),
      memory_(std::make_unique<Memory>(stage_.memory, device, world)),
      arena_(stage_.memory, memory_->base, memory_->host),
      parameters_(plan.table, stage_.layout, stage_.frozen, arena_),
      links_(groups_, spec.parallel.overlap.p2p, &clock_),
      tensor_queue_(spec.parallel.overlap.tp == "auto" ? device.communicates_beside()
                                                       : spec.parallel.overlap.tp == "true",
                    groups_[Link::tensor].lane(), &clock_),
      data_queues_(
          spec.parallel.overlap.grad_reduce || spec.parallel.overlap.param_gather != "false",
          groups_, &clock_),
      tensor_parallel_(device, groups_[Link::tensor], tensor_queue_, plan.sequence_parallel),
      context_parallel_(device, groups_[Link::context], arena_.find_tensor("attn.blocks")),
      expert_parallel_(device, groups_[Link::experts]),
      context_{device, tensor_parallel_, context_parallel_, expert_parallel_,       plan.model,
               arena_, parameters_,      plan.recompute,    arena_.find("dropout"), &expert_turns_},
      float8_(context_, stage_.chunks),
      tied_(device, arena_, parameters_,
            vocab_shard(plan.model, tensor_parallel_.size(), tensor_parallel_.rank())),
      windows_(plan, stage_, arena_, groups_, data_queues_,
               spec.parallel.overlap.param_gather != "false"),
      reducer_(plan, stage_, device, arena_, groups_, tensor_queue_, data_queues_,
               spec.parallel.overlap.grad_reduce),
      optimizer_(plan, stage_, spec.optimizer, device, arena_, groups_, data_queues_, coord_),
      scale_(spec.precision.loss_scale, plan.compute == DType::f16),
      first_key_(arena_.find("first_key")),
      position_ids_(arena_.find("position_ids")),
      number_(next_number()) {
  device.expect(stage_.kernels);
  for (const ChunkRange& range : stage_.chunks) chunks_.emplace_back(context_, range);
  if (plan.float8.on && !device.has_float8()) {
    throw Error(
        Exit::environment,
        {.code = "gpu.float8",
         .what = fmt::format("precision.dtype fp8: {} multiplies no FP8", device.description()),
         .help = "use precision.dtype=bf16; FP8 is there from compute capability 8.9 on "
                 "(H100, H200, L40, RTX 4090 and newer)"});
  }
  fill_rope_tables(arena_, device, plan.model, plan.seq, plan.seq);
  if (const Tensor numbers = arena_.find_tensor("mlp.row_numbers")) {
    std::vector<int32_t> host(static_cast<size_t>(numbers.numel()));
    std::iota(host.begin(), host.end(), 0);
    device.copy_from_host(numbers, host.data());
  }
  host_tokens_.resize(static_cast<size_t>(plan.micro_batch * plan.seq));
  host_targets_.resize(host_tokens_.size());
  if (first_key_) host_first_key_.resize(host_tokens_.size());
  if (position_ids_) host_positions_.resize(host_tokens_.size());
}

Trainer::~Trainer() = default;

ParameterState Trainer::state_of(const ParamPlacement& param, const OwnedPart& part) const {
  ParameterState state;
  state.row = &plan_.table[param.row];
  state.local_shape = param.shape;
  state.part = part;
  state.rects = clip_to_range(local_rects(*state.row, plan_.grid.sizes(), coord_), param.shape,
                              part.first, part.count);
  const int copies = tp_copies(*state.row, plan_.grid.sizes()[Axis::tp]);
  state.counts = coord_[Axis::tp] % copies == 0 && !param.tied_copy;
  return state;
}

ParameterState Trainer::frozen_state(const ParamPlacement& param) const {
  const OwnedPart part = owned_part(stage_.frozen, param, plan_.grid.holders(coord_));
  ParameterState state = state_of(param, part);
  const Tensor all = arena_.tensor(stage_.frozen.shards_weights() ? kFrozenShards : kFrozen);
  const Tensor weights = all.slice(part.weight, part.count);
  (weights.dtype == DType::f32 ? state.master.whole : state.master.weights) = weights;
  return state;
}

std::vector<ParameterState> Trainer::state() {
  optimizer_.require_all();
  const Tensor grads = optimizer_.gradients();
  std::vector<ParameterState> all;
  for (size_t i = 0; i < stage_.layout.params.size(); ++i) {
    const Optimizer::State own = optimizer_.state(i);
    ParameterState state = state_of(stage_.layout.params[i], own.part);
    state.master = own.master;
    state.grad = grads.slice(own.part.gradient, own.part.count);
    state.moments = own.moments;
    all.push_back(std::move(state));
  }
  for (const ParamPlacement& param : stage_.frozen.params) all.push_back(frozen_state(param));
  for (const ParamRow& row : plan_.table) {
    if (!row.balances) continue;
    ParameterState state;
    state.row = &row;
    state.local_shape = row.shape;
    state.part.count = row.numel();
    state.rects = local_rects(row, plan_.grid.sizes(), coord_);
    state.counts = groups_.world().rank() == 0;
    state.master.whole = expert_bias(arena_, row);
    all.push_back(std::move(state));
  }
  return all;
}

void Trainer::initialise() {
  std::vector<float> host;
  for (const ParameterState& parameter : state()) {
    const OwnedPart& own = parameter.part;
    host.resize(static_cast<size_t>(own.count));
    mtl::initialise(*parameter.row, parameter.local_shape, parameter.rects, spec_.train.seed,
                    own.first, own.count, host.data());
    parameter.master.write(device_, 0, own.count, host.data());
  }
  optimizer_.clear_moments();
  weights_changed();
}

void Trainer::weights_changed() {
  optimizer_.refresh_weights();
  windows_.changed();
  float8_.changed();
}

nlohmann::json Trainer::progress() const {
  nlohmann::json progress = {
      {"updates", updates_}, {"skipped", skipped_}, {"bad_in_a_row", bad_in_a_row_}};
  // Of fp16 alone: a run that goes on in fp16 must not begin with the 1 of another precision.
  if (scale_.dynamic()) progress["loss_scale"] = scale_.to_json();
  return progress;
}

void Trainer::restore_progress(const nlohmann::json& progress, int64_t step, int64_t samples) {
  samples_ahead_ = samples - plan_.batch.first_sample(step);
  updates_ = progress.value("updates", step);
  skipped_ = progress.value("skipped", int64_t{0});
  bad_in_a_row_ = progress.value("bad_in_a_row", int64_t{0});
  if (const auto scale = progress.find("loss_scale"); scale != progress.end()) {
    scale_.restore(*scale);
  }
}

double Trainer::correction(int64_t step, double counted) const {
  return counted > 0 ? static_cast<double>(plan_.tokens_of_step(step)) / counted : 0.0;
}

Tensor Trainer::gradient_factor() const {
  return Tensor(arena_.tensor("loss_sum").slice(StepSums::kFactor, 1).data, DType::f32, {1});
}

namespace {

// Requests travel as numbers beside sums that are exchanged anyway.
constexpr int64_t kRequests = StepSums::kCounted - StepSums::kRequests;
void put(const Requests& requests, double* out) {
  out[0] = requests.stop ? 1.0 : 0.0;
  out[1] = requests.checkpoint ? 1.0 : 0.0;
  out[2] = requests.saving ? 1.0 : 0.0;
}
Requests take(const double* in) {
  return {.stop = in[0] > 0, .checkpoint = in[1] > 0, .saving = in[2] > 0};
}

}  // namespace

void Trainer::agree(int64_t step, Requests requests) {
  const Tensor all = arena_.tensor("loss_sum");
  const Tensor sum = all.slice(0, StepSums::kExchanged);
  double host[StepSums::kExchanged] = {};
  put(requests, host + StepSums::kRequests);
  const bool head = stage_.chunks.back().head;
  if (head) host[StepSums::kCounted] = static_cast<double>(counted_);
  host[StepSums::kTurns] = static_cast<double>(expert_turns_);
  device_.copy_from_host(sum.slice(StepSums::kRequests, StepSums::kRouter - StepSums::kRequests),
                         host + StepSums::kRequests);
  // Stages without the head have no losses.
  if (!head) device_.copy_from_host(sum.slice(0, 1), host);
  if (groups_[Link::loss].size() > 1) groups_[Link::loss].all_reduce(sum);
  optimizer_.gradient_norm({.loss = sum.slice(StepSums::kLoss, 1),
                            .counted = sum.slice(StepSums::kCounted, 1),
                            .tokens = static_cast<double>(plan_.tokens_of_step(step)),
                            .loss_scale = scale_.value(),
                            .norm = all.slice(StepSums::kNorm, 1),
                            .factor = gradient_factor(),
                            .requests = sum.slice(StepSums::kRequests, kRequests),
                            .all_requests = all.slice(StepSums::kAllRequests, kRequests)});
}

Requests Trainer::requests_of_all(Requests own) {
  device_.synchronize();  // else the host would ask of now what the device comes to much later
  double host[kRequests] = {};
  put(own, host);
  const Tensor numbers(host, DType::f64, {kRequests});
  for (const Link link : {Link::loss, Link::norm}) {
    if (groups_[link].size() > 1) groups_[link].all_reduce(numbers);
  }
  return take(host);
}

// Beside adapters they stay as they are, as all of the model does.
// The counts are whole numbers: their sum is the same in every layout, and so are the biases.
void Trainer::balance_experts() {
  const Tensor counts = arena_.find_tensor(kExpertCounts);
  if (!counts || plan_.model.lora) return;
  if (groups_[Link::loss].size() > 1) groups_[Link::loss].all_reduce(counts);
  device_.balance_experts({.counts = counts,
                           .bias = arena_.tensor(kExpertBias),
                           .rate = spec_.model.moe.bias_rate,
                           .factor = gradient_factor()});
}

double Trainer::read(int64_t step, StepResult& result) {
  double host[StepSums::kAll] = {};
  device_.copy_to_host(host, arena_.tensor("loss_sum"));
  groups_.world().check();
  const double counted = host[StepSums::kCounted];
  const double tokens = std::max(counted, 1.0);
  result.loss = host[StepSums::kLoss] / tokens;
  result.counted = counted;
  // Every token goes through the experts, also one that does not count in the loss.
  const auto routed = static_cast<double>(plan_.tokens_of_step(step));
  result.moe_aux_loss = host[StepSums::kRouter] / routed;
  result.moe_z_loss = host[StepSums::kRouter + 1] / routed;
  if (expert_parallel_.size() > 1) {
    const int64_t passes =
        plan_.grid.data_ranks() * plan_.model.mixtures() * plan_.batch.at(step).micro_batches;
    result.moe_turns = host[StepSums::kTurns] / static_cast<double>(passes);
  }
  result.grad_norm = host[StepSums::kNorm];
  result.requests = take(host + StepSums::kAllRequests);
  return correction(step, counted);
}

StepResult Trainer::step(int64_t step, const Samples& samples, Requests requests) {
  const StepClock::Scope computing(&clock_, Phase::compute);
  StepResult result;
  result.loss_scale = scale_.value();
  result.lr = learning_rate(spec_, plan_.steps, updates_);
  run_micro_batches(step, samples);
  agree(step, requests);
  // Before anybody knows whether there is to be one: the device sees that for itself.
  {
    const StepClock::Scope updating(&clock_, Phase::optimizer);
    optimizer_.update({.lr = result.lr,
                       .weight_decay = weight_decay(spec_, plan_.steps, updates_),
                       .factor = gradient_factor(),
                       .step = updates_ + 1});
    balance_experts();
    windows_.changed();
    // What is not trained keeps its copies. Where layers take turns with these, a step begins
    // without any, as the plan counts it.
    if (!plan_.model.lora || stage_.layout.shards_weights()) float8_.changed();
    if (spec_.parallel.overlap.param_gather == "false") optimizer_.require_all();
  }
  read(step, result);  // the step's only wait
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  // The scale reaches gradients only: lowering it mends no loss.
  const bool scaled_too_far = !finite && std::isfinite(result.loss) && scale_.dynamic();
  const bool bad = !finite && (!scaled_too_far || scale_.at_minimum());
  bad_in_a_row_ = bad ? bad_in_a_row_ + 1 : 0;
  if (bad && (spec_.health.nan != "skip" || bad_in_a_row_ > kMostBadStepsInARow)) {
    throw Error(Exit::run_failed, diverged(step, result, samples));
  }
  if (finite || scaled_too_far) scale_.step_done(scaled_too_far);
  if (finite) {
    ++updates_;
  } else {
    // The schedule does not advance.
    result.skipped = true;
    ++skipped_;
  }
  result.skipped_so_far = skipped_;
  return result;
}

StepResult Trainer::gradients(int64_t step, const Samples& samples) {
  StepResult result;
  optimizer_.require_all();
  run_micro_batches(step, samples);
  agree(step, {});
  const double correction = read(step, result);
  if (correction != 1) device_.scale(optimizer_.gradients(), static_cast<float>(correction));
  return result;
}

namespace {

// The sign of a NaN says nothing.
std::string in_words(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.6g}", value);
}

}  // namespace

Diagnostic Trainer::diverged(int64_t step, const StepResult& result, const Samples& samples) {
  NotFiniteSearch search(plan_, device_);
  optimizer_.require_all();
  for (size_t i = 0; i < stage_.layout.params.size(); ++i) {
    const Tensor weights = optimizer_.kept_weights(i);
    if (weights.numel() > 0) search.weights(stage_.layout.params[i].row, weights);
  }
  for (const ParamPlacement& param : stage_.frozen.params) {
    const Masters kept = frozen_state(param).master;
    if (kept.numel() > 0) search.weights(param.row, kept.whole ? kept.whole : kept.weights);
  }
  run_micro_batches(step, samples, &search);
  const std::string where = search.agree(groups_.world());
  const std::string what = fmt::format("step {}: loss {} and gradient norm {}", step + 1,
                                       in_words(result.loss), in_words(result.grad_norm));
  if (plan_.compute == DType::f16 && std::isfinite(result.loss)) {
    return {
        .code = "loss.nan",
        .what = fmt::format("{}: gradients are beyond fp16 with a loss scale of {}, which falls "
                            "no further",
                            what, result.loss_scale),
        .notes = {where},
        .help =
            "lower precision.loss_scale.min, or use precision.dtype=bf16; checkpoints "
            "written before are intact"};
  }
  return {.code = "loss.nan",
          .what = what + ": the run has diverged",
          .notes = {where},
          .help = fmt::format(
              "lower lr.max{} lengthen lr.warmup{}{}; checkpoints written before are intact",
              plan_.compute == DType::f32 ? " or" : ",",
              plan_.compute == DType::f32 ? "" : ", or use precision.dtype=fp32",
              spec_.health.nan == "skip" ? "" : " (health.nan=skip leaves such steps out)")};
}

}  // namespace mtl
