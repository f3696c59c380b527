#include "runtime/engine/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "runtime/engine/init.h"
#include "runtime/engine/lr.h"

namespace mtl {

static_assert(Device::kNormChunk == kSquaresChunk, "the plan has room for the device's chunks");

Trainer::Trainer(const Plan& plan, const TrainSpec& spec, Device& device, CommWorld& world)
    : plan_(plan), spec_(spec), device_(device), coord_(plan.grid.coord(world.rank())) {
  // All ranks make the groups in this order.
  tp_ = world.group(plan.grid.group(world.rank(), {Axis::tp}));
  dp_ = world.group(plan.grid.group(world.rank(), {Axis::dp}));
  const auto bytes = static_cast<size_t>(plan.memory.total_bytes);
  owns_memory_ = world.size() == 1;
  memory_ = owns_memory_ ? device.allocate(bytes) : world.allocate(bytes);
  arena_ = std::make_unique<Arena>(plan.memory, memory_);
  parameters_ = std::make_unique<Parameters>(plan.table, plan.layout, *arena_);
  context_ = std::make_unique<BlockContext>(
      BlockContext{device, *tp_, plan.model, *arena_, *parameters_, spec.train.seed});
  model_ = std::make_unique<Transformer>(*context_);
  host_tokens_.resize(static_cast<size_t>(plan.micro_batch * plan.seq));
  host_targets_.resize(host_tokens_.size());
}

Trainer::~Trainer() {
  if (owns_memory_) device_.free(memory_);
}

std::vector<ParameterState> Trainer::state() {
  // With f32 compute the weights are their own master copy.
  const Tensor master =
      plan_.compute == DType::f32 ? arena_->get("weights") : arena_->get("master");
  const Tensor exp_avg = arena_->get("exp_avg");
  const Tensor exp_avg_sq = arena_->get("exp_avg_sq");
  const Tensor grads = arena_->get("grads");
  std::vector<ParameterState> all;
  for (const ParamPlacement& placement : plan_.layout.params) {
    const ParamRow& row = plan_.table[placement.row];
    auto view = [&](Tensor flat) {
      return Tensor(flat.slice(placement.offset, placement.numel).data, DType::f32,
                    std::span<const int64_t>(placement.shape));
    };
    all.push_back({&row, placement.shape, local_rects(row, plan_.grid.sizes(), coord_),
                   view(master), view(exp_avg), view(exp_avg_sq), view(grads)});
  }
  return all;
}

void Trainer::initialise() {
  std::vector<float> host;
  for (const ParameterState& parameter : state()) {
    host.resize(static_cast<size_t>(parameter.master.numel()));
    mtl::initialise(*parameter.row, plan_.grid.sizes(), coord_, spec_.train.seed, host.data());
    device_.copy_from_host(parameter.master, host.data());
  }
  device_.fill(arena_->get("exp_avg"), 0.0f);
  device_.fill(arena_->get("exp_avg_sq"), 0.0f);
  weights_changed();
}

void Trainer::weights_changed() {
  if (plan_.compute != DType::f32) device_.cast(arena_->get("master"), arena_->get("weights"));
}

void Trainer::load_batch(const TokenSource& source, const Sampler& sampler, int64_t first,
                         int64_t count) {
  const auto tokens = static_cast<size_t>(count * plan_.seq);
  const std::span<int32_t> inputs = std::span(host_tokens_).first(tokens);
  const std::span<int32_t> targets = std::span(host_targets_).first(tokens);
  sampler.fill(source, first, count, inputs, targets);
  for (const std::span<int32_t> ids : {inputs, targets}) {
    for (int32_t id : ids) {
      if (id >= 0 && id < plan_.model.vocab) continue;
      throw Error(Exit::data, {.code = "data.token_range",
                               .what = fmt::format(
                                   "token {} in samples {}..{} is outside the vocabulary ({} ids)",
                                   id, first, first + count - 1, plan_.model.vocab),
                               .help = "the corpus was made with another tokenizer than the run"});
    }
  }
  const auto n = static_cast<int64_t>(tokens);
  device_.copy_from_host(arena_->get("tokens").slice(0, n), inputs.data());
  device_.copy_from_host(arena_->get("targets").slice(0, n), targets.data());
}

void Trainer::add_losses(const Pass& pass, bool accumulate) {
  device_.sum(model_->losses(pass), arena_->get("loss_sum").slice(0, 1), accumulate);
}

namespace {

// Requests travel as numbers behind the sums that are reduced anyway.
constexpr size_t kRequests = 2;
void put(const Requests& requests, double* out) {
  out[0] = requests.stop ? 1.0 : 0.0;
  out[1] = requests.checkpoint ? 1.0 : 0.0;
}
Requests take(const double* in) {
  return {in[0] > 0, in[1] > 0};
}

}  // namespace

void Trainer::reduce_gradients(Requests requests, StepResult& result) {
  const Tensor sum = arena_->get("loss_sum");
  double host[1 + kRequests] = {};
  put(requests, host + 1);
  device_.copy_from_host(sum.slice(1, kRequests), host + 1);
  if (dp_->size() > 1) {
    dp_->all_reduce(arena_->get("grads"));
    dp_->all_reduce(sum);
  }
  device_.copy_to_host(host, sum);
  result.loss = host[0] / static_cast<double>(plan_.cost.tokens_per_step);
  result.requests = take(host + 1);

  // Gradient norm: sums of squares by row, each row counted once whatever the layout, then added in
  // table order.
  const Tensor squares = arena_->get("squares");
  std::vector<double> partials(static_cast<size_t>(squares.numel()));
  std::vector<double> rows(plan_.table.size() + kRequests, 0.0);
  const Tensor grads = arena_->get("grads");
  auto chunks = [](const ParamPlacement& p) {
    return (p.numel + Device::kNormChunk - 1) / Device::kNormChunk;
  };
  auto counted = [&](const ParamPlacement& p) {
    return coord_[Axis::tp] == 0 || !plan_.table[p.row].replicated_over.has(Axis::tp);
  };
  int64_t at = 0;
  for (const ParamPlacement& placement : plan_.layout.params) {
    if (!counted(placement)) continue;
    device_.sum_squares(grads.slice(placement.offset, placement.numel),
                        squares.slice(at, chunks(placement)));
    at += chunks(placement);
  }
  device_.copy_to_host(partials.data(), squares.slice(0, at));
  auto next = partials.cbegin();
  for (const ParamPlacement& placement : plan_.layout.params) {
    if (!counted(placement)) continue;
    for (int64_t i = 0; i < chunks(placement); ++i) rows[placement.row] += *next++;
  }
  if (tp_->size() > 1) {
    const Tensor shared = arena_->get("row_squares");
    put(result.requests, rows.data() + plan_.table.size());
    device_.copy_from_host(shared, rows.data());
    tp_->all_reduce(shared);
    device_.copy_to_host(rows.data(), shared);
    result.requests = take(rows.data() + plan_.table.size());
  }
  double total = 0;
  for (size_t i = 0; i < plan_.table.size(); ++i) total += rows[i];
  result.grad_norm = std::sqrt(total);
}

void Trainer::update(int64_t step, StepResult& result) {
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    throw Error(Exit::run_failed,
                {.code = "loss.nan",
                 .what = fmt::format("step {}: loss {} and gradient norm {}: the run has diverged",
                                     step + 1, result.loss, result.grad_norm),
                 .help = "lower lr.max, lengthen lr.warmup, or use precision.dtype=fp32; the last "
                         "checkpoint is intact"});
  }
  const TrainSpec::Optimizer& optimizer = spec_.optimizer;
  result.lr = learning_rate(spec_, spec_.train.steps, step);
  const double decay = weight_decay(spec_, spec_.train.steps, step);
  double clip = 1.0;
  if (optimizer.clip > 0) clip = std::min(1.0, optimizer.clip / (result.grad_norm + 1e-6));
  const Tensor weights = arena_->get("weights");
  const std::vector<ParameterState> parameters = state();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterState& parameter = parameters[i];
    const ParamPlacement& placement = plan_.layout.params[i];
    AdamW args;
    args.master = parameter.master;
    args.exp_avg = parameter.exp_avg;
    args.exp_avg_sq = parameter.exp_avg_sq;
    args.grad = parameter.grad;
    if (plan_.compute != DType::f32)
      args.weights = weights.slice(placement.offset, placement.numel);
    args.lr = static_cast<float>(result.lr);
    args.beta1 = static_cast<float>(optimizer.beta1);
    args.beta2 = static_cast<float>(optimizer.beta2);
    args.eps = static_cast<float>(optimizer.eps);
    args.weight_decay = parameter.row->decays ? static_cast<float>(decay) : 0.0f;
    args.grad_scale = static_cast<float>(clip);
    args.step = step + 1;
    device_.adamw(args);
  }
}

void Trainer::run_micro_batches(int64_t step, const TokenSource& source, const Sampler& sampler,
                                Requests requests, bool apply, StepResult& result) {
  const float loss_scale = 1.0f / static_cast<float>(plan_.cost.tokens_per_step);
  const int dp = plan_.grid.sizes()[Axis::dp];
  Pass pass;
  pass.sequences = plan_.micro_batch;
  pass.seq = plan_.seq;
  pass.step = step;
  pass.training = true;
  for (const Instruction& in : plan_.schedule[static_cast<size_t>(coord_[Axis::pp])]) {
    pass.accumulate = in.micro_batch > 0;
    // A micro-step takes a run of samples, each replica its part of it: the order of samples is the
    // same for every layout.
    pass.first_sequence = (in.micro_batch * dp + coord_[Axis::dp]) * plan_.micro_batch;
    switch (in.op) {
      case Op::load:
        load_batch(source, sampler, step * plan_.global_batch + pass.first_sequence,
                   pass.sequences);
        break;
      case Op::forward:
        model_->forward(pass);
        add_losses(pass, pass.accumulate);
        break;
      case Op::backward:
        model_->backward(pass, loss_scale);
        break;
      case Op::reduce_grads:
        reduce_gradients(requests, result);
        break;
      case Op::step:
        if (apply) update(step, result);
        break;
      case Op::send_act:
      case Op::recv_act:
      case Op::send_grad:
      case Op::recv_grad:
        // The plan refuses more than one stage (mesh.pp), and one stage has no neighbours.
        throw std::logic_error("a schedule of one stage has no transfers");
    }
  }
  device_.synchronize();
}

StepResult Trainer::step(int64_t step, const TokenSource& source, const Sampler& sampler,
                         Requests requests) {
  StepResult result;
  run_micro_batches(step, source, sampler, requests, true, result);
  return result;
}

double Trainer::gradients(int64_t step, const TokenSource& source, const Sampler& sampler) {
  StepResult result;
  run_micro_batches(step, source, sampler, {}, false, result);
  return result.loss;
}

double Trainer::evaluate(const TokenSource& source, int64_t batches) {
  int64_t windows = (source.size() - 1) / plan_.seq;
  if (batches > 0) windows = std::min(windows, batches * plan_.global_batch);
  const Sampler sampler(source.size(), plan_.seq, SampleOrder::sequential, 0);
  const int64_t replicas = dp_->size();
  const int64_t begin = windows * dp_->rank() / replicas;
  const int64_t end = windows * (dp_->rank() + 1) / replicas;
  const Tensor sum = arena_->get("loss_sum");
  double host[3] = {0, static_cast<double>((end - begin) * plan_.seq)};
  device_.copy_from_host(sum, host);
  Pass pass;
  pass.seq = plan_.seq;
  for (int64_t first = begin; first < end; first += pass.sequences) {
    pass.sequences = std::min(plan_.micro_batch, end - first);
    load_batch(source, sampler, first, pass.sequences);
    model_->forward(pass);
    add_losses(pass, true);
  }
  if (replicas > 1) dp_->all_reduce(sum);
  device_.copy_to_host(host, sum);
  return host[0] / host[1];
}

}  // namespace mtl
