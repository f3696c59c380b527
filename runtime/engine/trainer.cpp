#include "runtime/engine/trainer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/engine/health.h"
#include "runtime/engine/init.h"
#include "runtime/engine/lr.h"
#include "runtime/engine/rope_table.h"

namespace mtl {

// The arena: from the transport, so that peers can read it, unless there are none.
struct Trainer::Memory {
  Memory(int64_t bytes, Device& device, CommWorld& world) : device_(device) {
    owned_ = world.size() == 1;
    base = owned_ ? device.allocate(static_cast<size_t>(bytes))
                  : world.allocate(static_cast<size_t>(bytes));
  }
  ~Memory() {
    if (owned_) device_.free(base);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* base = nullptr;

 private:
  Device& device_;
  bool owned_ = false;
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
      groups_(plan, world),
      memory_(std::make_unique<Memory>(stage_.memory.total_bytes, device, world)),
      arena_(stage_.memory, memory_->base),
      parameters_(plan.table, stage_.layout, arena_),
      links_(groups_, spec.parallel.overlap.p2p),
      tensor_queue_(spec.parallel.overlap.tp == "auto" ? device.communicates_beside()
                                                       : spec.parallel.overlap.tp == "true",
                    groups_[Link::tensor].lane()),
      data_queue_(
          spec.parallel.overlap.grad_reduce || spec.parallel.overlap.param_gather != "false",
          groups_[Link::data].lane()),
      tensor_parallel_(device, groups_[Link::tensor], tensor_queue_, plan.sequence_parallel),
      context_{device,         tensor_parallel_,      plan.model, arena_, parameters_,
               plan.recompute, arena_.find("dropout")},
      float8_(context_, stage_.chunks),
      tied_(device, arena_, parameters_,
            vocab_shard(plan.model, tensor_parallel_.size(), tensor_parallel_.rank())),
      reducer_(plan, stage_, groups_, tensor_queue_, data_queue_, arena_.tensor("grads"),
               spec.parallel.overlap.grad_reduce),
      optimizer_(plan, stage_, spec.optimizer, device, arena_, groups_, data_queue_, coord_),
      scale_(spec.precision.loss_scale, plan.compute == DType::f16),
      first_key_(arena_.find("first_key")),
      position_ids_(arena_.find("position_ids")),
      number_(next_number()) {
  for (const ChunkRange& range : stage_.chunks) chunks_.emplace_back(context_, range);
  if (plan.float8.on && !device.has_float8()) {
    throw Error(
        Exit::environment,
        {.code = "gpu.float8",
         .what = fmt::format("precision.dtype fp8: {} multiplies no FP8", device.description()),
         .help = "use precision.dtype=bf16; FP8 is there from compute capability 8.9 on "
                 "(H100, H200, L40, RTX 4090 and newer)"});
  }
  if (const Tensor table = arena_.find_tensor("rope")) {
    device.copy_from_host(table, rope_table(plan.model).data());
  }
  host_tokens_.resize(static_cast<size_t>(plan.micro_batch * plan.seq));
  host_targets_.resize(host_tokens_.size());
  if (first_key_) host_first_key_.resize(host_tokens_.size());
  if (position_ids_) host_positions_.resize(host_tokens_.size());
}

Trainer::~Trainer() = default;

std::vector<ParameterState> Trainer::state() {
  optimizer_.require_all();
  const Tensor grads = arena_.tensor("grads");
  const std::vector<const char*> names = optimizer_.moment_names();
  std::vector<ParameterState> all;
  for (size_t i = 0; i < stage_.layout.params.size(); ++i) {
    const ParamPlacement& param = stage_.layout.params[i];
    const Optimizer::State own = optimizer_.state(i);
    ParameterState state;
    state.row = &plan_.table[param.row];
    state.local_shape = param.shape;
    state.part = own.part;
    state.rects = clip_to_range(local_rects(*state.row, plan_.grid.sizes(), coord_), param.shape,
                                own.part.first, own.part.count);
    const int copies = tp_copies(*state.row, plan_.grid.sizes()[Axis::tp]);
    state.counts = coord_[Axis::tp] % copies == 0 && !param.tied_copy;
    state.master = own.master;
    state.grad = grads.slice(own.part.offset, own.part.count);
    for (size_t m = 0; m < names.size(); ++m) state.moments.emplace_back(names[m], own.moments[m]);
    all.push_back(std::move(state));
  }
  return all;
}

void Trainer::initialise() {
  std::vector<float> host;
  for (const ParameterState& parameter : state()) {
    int64_t numel = 1;
    for (int64_t d : parameter.local_shape) numel *= d;
    host.resize(static_cast<size_t>(numel));
    mtl::initialise(*parameter.row, plan_.grid.sizes(), coord_, spec_.train.seed, host.data());
    device_.copy_from_host(parameter.master, host.data() + parameter.part.first);
  }
  optimizer_.clear_moments();
  weights_changed();
}

void Trainer::weights_changed() {
  optimizer_.refresh_weights();
  float8_.changed();
}

nlohmann::json Trainer::progress() const {
  nlohmann::json progress = {{"updates", updates_}, {"skipped", skipped_}};
  // Of fp16 alone: a run that goes on in fp16 must not begin with the 1 of another precision.
  if (scale_.dynamic()) progress["loss_scale"] = scale_.to_json();
  return progress;
}

void Trainer::restore_progress(const nlohmann::json& progress, int64_t step, int64_t samples) {
  samples_ahead_ = samples - plan_.batch.first_sample(step);
  updates_ = progress.value("updates", step);
  skipped_ = progress.value("skipped", int64_t{0});
  if (const auto scale = progress.find("loss_scale"); scale != progress.end()) {
    scale_.restore(*scale);
  }
}

void Trainer::load_batch(const Samples& samples, int64_t first, int64_t count, const Chunk& chunk,
                         int slot, bool training) {
  const auto tokens = static_cast<size_t>(count * plan_.seq);
  const std::span<int32_t> inputs = std::span(host_tokens_).first(tokens);
  const std::span<int32_t> targets = std::span(host_targets_).first(tokens);
  SampleBatch batch{inputs, targets};
  if (first_key_) batch.first_key = std::span(host_first_key_).first(tokens);
  if (position_ids_) batch.positions = std::span(host_positions_).first(tokens);
  samples.fill(first, count, batch);
  int32_t largest = 0, smallest = 0, smallest_target = 0;
  int64_t counted = 0;
  for (size_t i = 0; i < tokens; ++i) {
    largest = std::max({largest, inputs[i], targets[i]});
    smallest = std::min(smallest, inputs[i]);
    smallest_target = std::min(smallest_target, targets[i]);
    counted += targets[i] >= 0;
  }
  if (largest >= plan_.model.vocab || smallest < 0 || smallest_target < -1) {
    throw Error(Exit::data, {.code = "data.token_range",
                             .what = fmt::format(
                                 "token {} in samples {}..{} is outside the vocabulary ({} ids)",
                                 smallest < 0           ? smallest
                                 : smallest_target < -1 ? smallest_target
                                                        : largest,
                                 first, first + count - 1, plan_.model.vocab),
                             .help = "the corpus was made with another tokenizer than the run"});
  }
  const auto n = static_cast<int64_t>(tokens);
  if (chunk.range().embedding) {
    device_.copy_from_host(arena_.get("tokens").in(slot).slice(0, n), inputs.data());
    if (training) tied_.load(inputs, slot);
  }
  if (chunk.range().head) {
    device_.copy_from_host(arena_.get("targets").in(slot).slice(0, n), targets.data());
    counted_ += counted;
  }
  if (first_key_) {
    device_.copy_from_host(first_key_.in(slot).slice(0, n), host_first_key_.data());
  }
  if (position_ids_) {
    device_.copy_from_host(position_ids_.in(slot).slice(0, n), host_positions_.data());
  }
}

std::vector<SampleRange> Trainer::sample_ranges(int64_t step) const {
  std::vector<SampleRange> ranges;
  const bool reads = stage_.chunks.front().embedding || stage_.chunks.back().head;
  if (step >= plan_.steps || (!reads && !needs_documents())) return ranges;
  Instruction in;
  for (in.micro_batch = 0; in.micro_batch < plan_.batch.at(step).micro_batches; ++in.micro_batch) {
    ranges.push_back({first_sample(step) + first_sequence(in), plan_.micro_batch});
  }
  return ranges;
}

double Trainer::correction(int64_t step, double counted) const {
  return counted > 0 ? static_cast<double>(plan_.tokens_of_step(step)) / counted : 0.0;
}

void Trainer::forward(const Chunk& chunk, const Pass& pass, const Chunk::Before& before) {
  chunk.forward(pass, before);
  if (chunk.range().head) add_losses(chunk, pass, pass.accumulate);
}

void Trainer::replay(const char* what, int chunk, const Pass& pass,
                     const std::function<void()>& run) {
  const std::string key = fmt::format(
      "trainer {}, {}, chunk {}, slot {}, {} sequences{}{}, scale {:08x}", number_, what, chunk,
      pass.slot, pass.sequences, pass.training ? ", training" : "",
      pass.accumulate ? ", accumulating" : "", std::bit_cast<uint32_t>(pass.loss_scale));
  device_.replay(key, run);
}

void Trainer::forward_of_step(const Instruction& in, const Pass& pass) {
  const Chunk& chunk = chunks_[static_cast<size_t>(in.chunk)];
  const bool first = in.micro_batch == 0;
  if (first && stage_.layout.shards > 1) {
    return replay("first forward", in.chunk, pass, [&] {
      forward(chunk, pass, [this, number = in.chunk](int64_t layer) {
        device_.anew([this, number, layer] {
          optimizer_.require(number, layer);
          float8_.prepare(layer);
        });
      });
    });
  }
  if (first) float8_.prepare_all();
  replay("forward", in.chunk, pass, [&] { forward(chunk, pass, {}); });
}

void Trainer::backward_of_step(const Instruction& in, const Pass& pass, bool reduces) {
  const Chunk& chunk = chunks_[static_cast<size_t>(in.chunk)];
  const auto layer_done = [this, number = in.chunk](int64_t layer) {
    if (layer < 0) tied_.merge();
    reducer_.layer_done(number, layer);
  };
  if (reduces && groups_[Link::data].size() > 1) {
    return replay("last backward", in.chunk, pass, [&] {
      chunk.backward(
          pass, [&](int64_t layer) { device_.anew([layer_done, layer] { layer_done(layer); }); });
    });
  }
  replay("backward", in.chunk, pass, [&] { chunk.backward(pass); });
  if (reduces) layer_done(chunk.range().embedding ? -1 : chunk.range().first_layer);
}

void Trainer::add_losses(const Chunk& chunk, const Pass& pass, bool accumulate) {
  device_.sum(chunk.losses(pass), arena_.tensor("loss_sum").slice(0, 1), accumulate);
}

Tensor Trainer::gradient_factor() const {
  return Tensor(arena_.tensor("loss_sum").slice(StepSums::kFactor, 1).data, DType::f32, {1});
}

float Trainer::loss_scale(int64_t step) const {
  return static_cast<float>(scale_.value() / static_cast<double>(plan_.tokens_of_step(step)));
}

Pass Trainer::pass_of(const Instruction& in) const {
  Pass pass;
  pass.sequences = plan_.micro_batch;
  pass.seq = plan_.seq;
  pass.slot = in.slot;
  pass.training = true;
  pass.accumulate = in.micro_batch > 0;
  return pass;
}

// A micro-step takes a run of samples, each replica its part of it: the order of samples is the
// same for every layout.
int64_t Trainer::first_sequence(const Instruction& in) const {
  return (in.micro_batch * plan_.grid.sizes()[Axis::dp] + coord_[Axis::dp]) * plan_.micro_batch;
}

void Trainer::write_dropout(const Instruction& in, int64_t step) {
  if (!context_.dropout) return;
  const DropoutPass pass = {.step_key = dropout_step_key(spec_.train.seed, step),
                            .first_sequence = first_sequence(in)};
  device_.copy_from_host(context_.dropout.in(in.slot), &pass);
}

Tensor Trainer::stream_gradient(const Pass& pass) const {
  return stream_rows_of(context_, arena_.get("dresidual"), pass);
}

void Trainer::run_micro_batches(int64_t step, const Samples& samples, NotFiniteSearch* search) {
  const BatchPhase& batch = plan_.batch.at(step);
  const StepSchedule& schedule = plan_.schedules.at(batch.micro_batches);
  const int64_t first_of_step = first_sample(step);
  const auto last = static_cast<int>(batch.micro_batches) - 1;
  tied_.begin_step();
  counted_ = 0;
  const double zeros[2] = {};
  device_.copy_from_host(arena_.tensor("loss_sum").slice(StepSums::kRouter, 2), zeros);
  for (const Instruction& in : schedule.programs[static_cast<size_t>(coord_[Axis::pp])]) {
    const Chunk& chunk = chunks_[static_cast<size_t>(in.chunk)];
    Pass pass = pass_of(in);
    pass.loss_scale = loss_scale(step);
    if (search != nullptr) {
      search->begin(in);
      pass.inspect = &search->inspect();
    }
    switch (in.op) {
      case Op::load:
        load_batch(samples, first_of_step + first_sequence(in), pass.sequences, chunk, in.slot,
                   true);
        break;
      case Op::forward:
        links_.sent(Link::activations);
        if (needs_documents() && !chunk.range().embedding && !chunk.range().head) {
          load_batch(samples, first_of_step + first_sequence(in), pass.sequences, chunk, in.slot,
                     true);
        }
        write_dropout(in, step);
        if (search != nullptr) {
          if (in.micro_batch == 0) float8_.prepare_all();
          forward(chunk, pass, {});
        } else {
          forward_of_step(in, pass);
        }
        break;
      case Op::backward:
        links_.sent(Link::gradients);
        if (search != nullptr) {
          chunk.backward(pass, [&](int64_t layer) { look_at_gradients(layer, *search); });
        } else {
          backward_of_step(in, pass, in.micro_batch == last);
        }
        break;
      case Op::send_act:
        links_.send(Link::activations, chunk.output(pass));
        break;
      case Op::recv_act:
        // A chunk without layers passes on what it receives, in the same memory.
        if (chunk.range().layers == 0) links_.sent(Link::activations);
        links_.recv(Link::activations, chunk.input(pass));
        break;
      case Op::send_grad:
        links_.send(Link::gradients, stream_gradient(pass));
        break;
      case Op::recv_grad:
        // Into the memory that the gradient before it is sent from.
        links_.sent(Link::gradients);
        links_.recv(Link::gradients, stream_gradient(pass));
        break;
      case Op::reduce_grads:
        links_.sent(Link::activations);
        links_.sent(Link::gradients);
        if (search == nullptr) reducer_.finish();
        break;
      case Op::step:
        break;  // step() decides whether there is one
    }
  }
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
  device_.copy_from_host(
      sum.slice(StepSums::kRequests, StepSums::kCounted + 1 - StepSums::kRequests),
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

double Trainer::read(int64_t step, StepResult& result) {
  double host[StepSums::kAll] = {};
  device_.copy_to_host(host, arena_.tensor("loss_sum"));
  groups_.world().check();
  const double counted = host[StepSums::kCounted];
  const double tokens = std::max(counted, 1.0);
  result.loss = host[StepSums::kLoss] / tokens;
  result.moe_aux_loss = host[StepSums::kRouter] / tokens;
  result.moe_z_loss = host[StepSums::kRouter + 1] / tokens;
  result.grad_norm = host[StepSums::kNorm];
  result.requests = take(host + StepSums::kAllRequests);
  return correction(step, counted);
}

StepResult Trainer::step(int64_t step, const Samples& samples, Requests requests) {
  StepResult result;
  result.loss_scale = scale_.value();
  result.lr = learning_rate(spec_, plan_.steps, updates_);
  run_micro_batches(step, samples);
  agree(step, requests);
  // Before anybody knows whether there is to be one: the device sees that for itself.
  optimizer_.update({.lr = result.lr,
                     .weight_decay = weight_decay(spec_, plan_.steps, updates_),
                     .factor = gradient_factor(),
                     .step = updates_ + 1});
  float8_.changed();
  if (spec_.parallel.overlap.param_gather == "false") optimizer_.require_all();
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
  if (correction != 1) device_.scale(arena_.tensor("grads"), static_cast<float>(correction));
  return result;
}

double Trainer::evaluate(const Samples& samples, int64_t wanted) {
  optimizer_.require_all();
  float8_.prepare_all();
  int64_t windows = samples.size();
  if (wanted > 0) windows = std::min(windows, wanted);
  const int64_t replicas = plan_.grid.sizes()[Axis::dp], replica = coord_[Axis::dp];
  const int64_t begin = windows * replica / replicas;
  const int64_t end = windows * (replica + 1) / replicas;
  const Tensor sum = arena_.tensor("loss_sum").slice(0, 2);
  const bool head = stage_.chunks.back().head;
  double host[2] = {};
  device_.copy_from_host(sum, host);
  counted_ = 0;
  // Each chunk in turn takes as many micro-batches as fill the pipeline.
  const int64_t in_turn = plan_.grid.sizes()[Axis::pp] * plan_.micro_batch;
  for (int64_t turn = begin; turn < end; turn += in_turn) {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const Chunk& chunk = chunks_[c];
      const int64_t turn_end = std::min(turn + in_turn, end);
      Pass pass;
      pass.seq = plan_.seq;
      pass.accumulate = true;  // the losses
      for (int64_t first = turn; first < turn_end; first += pass.sequences) {
        pass.sequences = std::min(plan_.micro_batch, turn_end - first);
        if (chunk.range().embedding || chunk.range().head || needs_documents()) {
          load_batch(samples, first, pass.sequences, chunk, pass.slot, false);
        }
        // A chunk without layers passes on what it receives, in the same memory.
        if (chunk.range().layers == 0) links_.sent(Link::activations);
        if (!chunk.range().embedding) links_.recv(Link::activations, chunk.input(pass));
        links_.sent(Link::activations);
        replay("forward", static_cast<int>(c), pass, [&] { forward(chunk, pass, {}); });
        if (!chunk.range().head) links_.send(Link::activations, chunk.output(pass));
      }
    }
  }
  if (head) host[1] = static_cast<double>(counted_);
  device_.copy_from_host(sum.slice(1, 1), host + 1);
  if (groups_[Link::loss].size() > 1) groups_[Link::loss].all_reduce(sum);
  device_.copy_to_host(host, sum);
  groups_.world().check();
  return host[0] / std::max(host[1], 1.0);
}

void Trainer::look_at_gradients(int64_t layer, NotFiniteSearch& search) {
  for (const ParamPlacement& param : stage_.layout.params) {
    const ParamRow& row = plan_.table[param.row];
    // The head's part of a tied embedding whose own layer is on another stage.
    const bool copy = param.tied_copy && layer == plan_.model.layers;
    if (row.layer != layer && !copy) continue;
    search.gradient(layer, row, arena_.tensor("grads").slice(param.offset, param.numel));
  }
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
  for (const ParamPlacement& param : stage_.layout.params) {
    search.weights(param.row, arena_.tensor("weights").slice(param.offset, param.numel));
  }
  run_micro_batches(step, samples, &search);
  const std::string where = search.agree(groups_.world());
  return {.code = "loss.nan",
          .what = fmt::format("step {}: loss {} and gradient norm {}: the run has diverged",
                              step + 1, in_words(result.loss), in_words(result.grad_norm)),
          .notes = {where},
          .help = fmt::format(
              "lower lr.max{} lengthen lr.warmup{}{}; checkpoints written before are intact",
              plan_.compute == DType::f32 ? " or" : ",",
              plan_.compute == DType::f32 ? "" : ", or use precision.dtype=fp32",
              spec_.health.nan == "skip" ? "" : " (health.nan=skip leaves such steps out)")};
}

}  // namespace mtl
