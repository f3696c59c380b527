#include <vector>

#include "runtime/model/blocks.h"

namespace mtl {

MoeBlock::MoeBlock(const BlockContext& context, int64_t layer, const std::string& output)
    : context_(context),
      layer_(layer),
      norm_(context, layer, "mlp.norm", layer_buffer(layer, "mlp")),
      router_(context, layer, "mlp.router"),
      logits_(context.arena.get(layer_buffer(layer, "mlp.logits"))),
      weights_(context.arena.get(layer_buffer(layer, "mlp.weights"))),
      chosen_(context.arena.get(layer_buffer(layer, "mlp.experts"))),
      rows_(context.arena.get(layer_buffer(layer, "mlp.rows"))),
      assignments_(context.arena.get(layer_buffer(layer, "mlp.assignments"))),
      counts_(context.arena.get(layer_buffer(layer, "mlp.counts"))),
      before_act_(context.arena.get(layer_buffer(layer, "mlp.before_act"))),
      activated_(context.arena.get(layer_buffer(layer, "mlp.activated"))),
      output_(context.arena.get(output)),
      branch_(context.arena.get("branch")),
      gathered_(context.arena.find("gathered")),
      dresidual_(context.arena.find("dresidual")),
      expert_rows_(context.arena.get("mlp.expert_rows")),
      dbefore_act_(context.arena.find("mlp.dbefore_act")),
      dactivated_(context.arena.find("mlp.dactivated")),
      dnormed_(context.arena.find("mlp.dnormed")),
      dweights_(context.arena.find("mlp.dweights")),
      dlogits_(context.arena.find("mlp.dlogits")),
      losses_(context.arena.find("mlp.losses")),
      sequence_experts_(context.arena.find_tensor("mlp.sequence_experts")) {
  for (int64_t e = 0; e < context.shape.experts; ++e) {
    experts_.push_back({Linear(context, layer, expert_slot(e, "up")),
                        Linear(context, layer, expert_slot(e, "down"))});
  }
  if (const Tensor sums = context.arena.find_tensor("loss_sum")) {
    loss_sums_ = sums.slice(StepSums::kRouter, 2);
  }
}

namespace {

// The rows of a planned buffer for so many tokens, from its beginning: routes of earlier passes are
// not needed again.
Tensor first_rows(const Buffer& planned, const Pass& pass, int64_t rows, int64_t cols) {
  const Tensor all = planned.in(pass.slot);
  return Tensor(all.slice(0, rows * cols).data, all.dtype, {rows, cols});
}

}  // namespace

ExpertRoutes MoeBlock::routes(const Pass& pass) const {
  const int64_t n = pass.tokens(), k = context_.shape.experts_per_token;
  return {.weights = first_rows(weights_, pass, n, k),
          .experts = first_rows(chosen_, pass, n, k),
          .rows = first_rows(rows_, pass, n, k),
          .assignments = assignments_.in(pass.slot).slice(0, n * k),
          .counts = counts_.in(pass.slot)};
}

Tensor MoeBlock::expert_rows(const Buffer& planned, const Pass& pass, int64_t first,
                             int64_t count) const {
  const Tensor all = planned.in(pass.slot);
  const int64_t cols = all.cols();
  return Tensor(all.slice(first * cols, count * cols).data, all.dtype, {count, cols});
}

Tensor MoeBlock::expert_rows(const Buffer& planned, const Pass& pass) const {
  return expert_rows(planned, pass, 0, pass.tokens() * context_.shape.experts_per_token);
}

template <class Work, class Idle>
void MoeBlock::each_expert(const std::vector<int32_t>& counts, const Work& work,
                           const Idle& idle) const {
  int64_t first = 0;
  for (size_t e = 0; e < experts_.size(); ++e) {
    if (counts[e] == 0) {
      idle(experts_[e]);
    } else {
      work(experts_[e], first, int64_t{counts[e]});
    }
    first += counts[e];
  }
}

std::vector<int32_t> MoeBlock::counts(const Pass& pass) const {
  std::vector<int32_t> counts(experts_.size());
  context_.device.copy_to_host(counts.data(), counts_.in(pass.slot));
  return counts;
}

std::vector<int32_t> MoeBlock::expand(const Pass& pass, Tensor x) const {
  Device& device = context_.device;
  const Tensor logits = first_rows(logits_, pass, pass.tokens(), context_.shape.experts);
  router_.forward(pass, {x}, logits, {});
  const ExpertRoutes to = routes(pass);
  device.route_experts({.logits = logits, .routes = to});
  device.gather_rows({.from = x,
                      .index = to.assignments,
                      .divide = context_.shape.experts_per_token,

                      .to = expert_rows(expert_rows_, pass)});
  std::vector<int32_t> rows = counts(pass);
  each_expert(
      rows,
      [&](const Expert& expert, int64_t first, int64_t count) {
        expert.up.forward(pass, {expert_rows(expert_rows_, pass, first, count)},
                          expert_rows(before_act_, pass, first, count), {});
      },
      [](const Expert&) {});
  device.swiglu_forward({.x = expert_rows(before_act_, pass), .y = expert_rows(activated_, pass)});
  return rows;
}

void MoeBlock::through_experts(const Pass& pass, Tensor x, Tensor branch) const {
  const std::vector<int32_t> rows = expand(pass, x);
  if (pass.again) return;
  each_expert(
      rows,
      [&](const Expert& expert, int64_t first, int64_t count) {
        expert.down.forward(pass, {expert_rows(activated_, pass, first, count)},
                            expert_rows(expert_rows_, pass, first, count), {});
      },
      [](const Expert&) {});
  const ExpertRoutes to = routes(pass);
  context_.device.combine_rows({.from = expert_rows(expert_rows_, pass),
                                .rows = to.rows,
                                .weights = to.weights,
                                .to = branch});
}

ResidualAdd MoeBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  const Tensor branch = rows_of(branch_, pass);
  const Tensor x = context_.tp.enter(norm_.forward(pass, before), branch);
  // How many rows an expert has is something else each time.
  context_.device.anew([this, pass, x, branch] { through_experts(pass, x, branch); });
  if (pass.again) return {};
  return {.x = context_.tp.leave(branch),
          .bias = {},
          .residual = norm_.input(pass),
          .out = output(pass),
          .dropout = dropout_for(context_, pass, layer_, DropoutSite::mlp_output),
          .first_row = first_stream_row(context_, pass)};
}

void MoeBlock::route_backward(const Pass& pass) const {
  const ModelShape& shape = context_.shape;
  const int64_t n = pass.tokens();
  // With TP the weights' gradients are parts of sums, and so are those of the logits; what the
  // router's own losses give is whole, and one rank adds it.
  const float scale = context_.tp.rank() == 0 ? pass.loss_scale : 0.0f;
  if (sequence_experts_) context_.cp.gather(routes(pass).experts, sequence_experts_);
  const Tensor losses(losses_.tensor.slice(0, 2 * n).data, DType::f32, {2, n});
  context_.device.route_experts_backward(
      {.logits = first_rows(logits_, pass, n, shape.experts),
       .routes = routes(pass),
       .dweights = first_rows(dweights_, pass, n, shape.experts_per_token),
       .dlogits = first_rows(dlogits_, pass, n, shape.experts),
       .seq = whole_sequences(context_, pass).seq,
       .sequence_experts = sequence_experts_,
       .aux_scale = scale * static_cast<float>(shape.moe_aux_loss),
       .z_scale = scale * static_cast<float>(shape.moe_z_loss),
       .losses = losses});
  for (const int64_t i : {0, 1}) {
    context_.device.sum(losses.slice(i * n, n), loss_sums_.slice(i, 1), true);
  }
}

void MoeBlock::backward(const Pass& pass) const {
  context_.device.anew([this, pass] { backward_through_experts(pass); });
}

void MoeBlock::backward_through_experts(const Pass& pass) const {
  Device& device = context_.device;
  const Tensor activated = expert_rows(activated_, pass);
  const Tensor before_act = expert_rows(before_act_, pass);
  const Tensor dactivated = expert_rows(dactivated_, pass);
  const Tensor dbefore_act = expert_rows(dbefore_act_, pass);
  const Tensor through = expert_rows(expert_rows_, pass);
  const Tensor dlogits = first_rows(dlogits_, pass, pass.tokens(), context_.shape.experts);
  const Tensor dresidual = stream_rows_of(context_, dresidual_, pass);
  const Tensor branch = rows_of(branch_, pass);
  const Tensor dnormed = rows_of(dnormed_, pass);
  const Recompute& recompute = context_.recompute;
  const ExpertRoutes to = routes(pass);
  const int64_t k = context_.shape.experts_per_token;
  const auto idle = [](const Expert&) {};

  const Tensor normed = recompute.norms || recompute.mlp ? norm_.forward(pass) : norm_.normed(pass);
  Tensor dstream = dresidual;
  if (Dropout dropout = dropout_for(context_, pass, layer_, DropoutSite::mlp_output)) {
    dstream = context_.tp.own_rows(branch);
    device.dropout_backward(dresidual, dstream, dropout, first_stream_row(context_, pass));
  }
  const Tensor dbranch = context_.tp.enter(dstream, branch);
  const Tensor x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  TensorParallel::Pending entering = context_.tp.start_enter(normed, x);
  if (recompute.mlp) {
    entering.finish();
    expand(pass, x);
  } else if (recompute.mlp_activation) {
    device.swiglu_forward({.x = before_act, .y = activated});
  }
  const std::vector<int32_t> rows = counts(pass);

  // The gradient of a row before its weight gives that of the weight: the product with the expert's
  // output is the one with its activations, behind `down`.
  device.gather_rows({.from = dbranch, .index = to.assignments, .divide = k, .to = through});
  each_expert(
      rows,
      [&](const Expert& expert, int64_t first, int64_t count) {
        expert.down.backward_input(pass, {expert_rows(expert_rows_, pass, first, count)},
                                   expert_rows(dactivated_, pass, first, count));
      },
      idle);
  device.weigh_rows_backward({.x = activated,
                              .dy = dactivated,
                              .index = to.assignments,
                              .weights = to.weights,
                              .dweights = dweights_.tensor});
  device.gather_rows({.from = dbranch,
                      .index = to.assignments,
                      .divide = k,
                      .weights = to.weights,
                      .to = through});
  each_expert(
      rows,
      [&](const Expert& expert, int64_t first, int64_t count) {
        expert.down.backward_weight(pass, expert_rows(activated_, pass, first, count),
                                    expert_rows(expert_rows_, pass, first, count), {});
      },
      [&](const Expert& expert) { expert.down.backward_weight_of_nothing(pass); });
  device.swiglu_backward({.dy = dactivated, .x = before_act, .dx = dbefore_act});
  each_expert(
      rows,
      [&](const Expert& expert, int64_t first, int64_t count) {
        expert.up.backward_input(pass, {expert_rows(dbefore_act_, pass, first, count)},
                                 expert_rows(expert_rows_, pass, first, count));
      },
      idle);
  device.combine_rows({.from = through, .rows = to.rows, .to = dnormed});
  route_backward(pass);
  router_.backward_input(pass, {dlogits}, dnormed, Epilogue::none, {}, true);
  TensorParallel::Pending leaving = context_.tp.start_leave(dnormed);
  entering.finish();
  router_.backward_weight(pass, x, dlogits, {});
  device.gather_rows({.from = x, .index = to.assignments, .divide = k, .to = through});
  each_expert(
      rows,
      [&](const Expert& expert, int64_t first, int64_t count) {
        expert.up.backward_weight(pass, expert_rows(expert_rows_, pass, first, count),
                                  expert_rows(dbefore_act_, pass, first, count), {});
      },
      [&](const Expert& expert) { expert.up.backward_weight_of_nothing(pass); });
  leaving.finish();
  norm_.backward(pass, context_.tp.own_rows(dnormed), dresidual, true, {});
}

}  // namespace mtl
