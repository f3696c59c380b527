#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/model/blocks.h"

namespace mtl {

std::vector<MoeBlock::Expert> MoeBlock::experts_of(const BlockContext& context, int64_t layer) {
  std::vector<Expert> experts;
  for (int64_t e = 0; e < context.shape.experts / context.ep.size(); ++e) {
    const auto linear = [&](const char* which) {
      return Linear(context, layer, expert_slot(context.ep.expert(e), which),
                    expert_slot(e, which));
    };
    experts.push_back({linear("up"), linear("down")});
  }
  return experts;
}

MoeBlock::MoeBlock(const BlockContext& context, int64_t layer, const PartsAgain& again,
                   const std::string& output)
    : context_(context),
      again_(again),
      norm_(context, layer, "mlp.norm", layer_buffer(layer, "mlp"),
            float8_stream_amax(context, layer, "mlp.up", Float8Operand::x)),
      end_(context, layer, "mlp", "mlp.down", DropoutSite::mlp_output),
      router_(context, layer, "mlp.router"),
      experts_(experts_of(context, layer)),
      trains_experts_(experts_.front().up.is_trained()),
      float8_(context, experts_.front().up.is_float8()),
      dispatch_(context, layer),
      logits_(context.arena.get(layer_buffer(layer, "mlp.logits"))),
      weights_(context.arena.get(layer_buffer(layer, "mlp.weights"))),
      chosen_(context.arena.get(layer_buffer(layer, "mlp.experts"))),
      rows_(context.arena.get(layer_buffer(layer, "mlp.rows"))),
      assignments_(context.arena.get(layer_buffer(layer, "mlp.assignments"))),
      counts_(context.arena.get(layer_buffer(layer, "mlp.counts"))),
      turn_counts_(context.arena.find("mlp.turn_counts")),
      before_act_(context.arena.get(layer_buffer(layer, "mlp.before_act"))),
      activated_(context.arena.get(layer_buffer(layer, "mlp.activated"))),
      output_(context.arena.get(output)),
      branch_(context.arena.get("branch")),
      gathered_(context.arena.find("gathered")),
      dresidual_(context.arena.find("dresidual")),
      dbefore_act_(context.arena.find("mlp.dbefore_act")),
      dactivated_(context.arena.find("mlp.dactivated")),
      dnormed_(context.arena.find("mlp.dnormed")),
      dweights_(context.arena.find("mlp.dweights")),
      dlogits_(context.arena.find("mlp.dlogits")),
      losses_(context.arena.find("mlp.losses")),
      dinput_amax_(float8_stream_amax(context, layer, "attn.proj", Float8Operand::dy)),
      sequence_experts_(context.arena.find("mlp.sequence_experts")) {
  if (const Tensor sums = context.arena.find_tensor("loss_sum")) {
    loss_sums_ = sums.slice(StepSums::kRouter, 2);
  }
  if (context.shape.shared_ffn > 0) shared_.emplace(context, layer, again);
  if (const Buffer later = context.arena.find(layer_buffer(layer, kBeforeActLater))) {
    leaves_weights_ = true;
    dbefore_act_ = later;
    dlogits_ = context.arena.get(layer_buffer(layer, kLogitsLater));
    later_dweighted_ = context.arena.get(layer_buffer(layer, kWeightedLater));
    later_dstream_ = context.arena.find(layer_buffer(layer, kMlpStreamLater));
  }
  const int64_t experts = context.shape.experts;
  if (const Tensor biases = context.arena.find_tensor(kExpertBias)) {
    expert_bias_ = biases.slice(layer * experts, experts);
  }
  if (const Tensor counts = context.arena.find_tensor(kExpertCounts)) {
    expert_counts_ = counts.slice(layer * experts, experts);
  }
}

namespace {

// The rows of a planned buffer for tokens of a pass, which begin where it does: routes of earlier
// passes are not needed again.
Tensor rows_between(const Buffer& planned, const Pass& pass, int64_t first, int64_t rows,
                    int64_t cols) {
  const Tensor all = planned.in(pass.slot);
  return Tensor(all.slice(first * cols, rows * cols).data, all.dtype, {rows, cols});
}

Tensor first_rows(const Buffer& planned, const Pass& pass, int64_t rows, int64_t cols) {
  return rows_between(planned, pass, 0, rows, cols);
}

// What an expert works on: rows of a planned buffer.
Tensor rows_at(const Buffer& planned, const Pass& pass, int64_t first, int64_t rows) {
  return planned.in(pass.slot).row_slice(first, rows);
}

// Of all rows of a pass those of a turn.
Tensor tokens_of(const Turn& turn, const Tensor& all) {
  return all.row_slice(turn.first, turn.tokens);
}

}  // namespace

Tensor MoeBlock::dbefore_act(const Pass& pass, int64_t rows) const {
  return rows_at(dbefore_act_, in_later(pass), 0, rows);
}

Tensor MoeBlock::dlogits(const Pass& pass) const {
  return first_rows(dlogits_, in_later(pass), pass.tokens(), context_.shape.experts);
}

ExpertRoutes MoeBlock::routes(const Pass& pass, int64_t first, int64_t tokens,
                              Tensor counts) const {
  const int64_t k = context_.shape.experts_per_token, experts = context_.shape.experts;
  return {.weights = rows_between(weights_, pass, first, tokens, k),
          .experts = rows_between(chosen_, pass, first, tokens, k),
          .rows = rows_between(rows_, pass, first, tokens, k),
          .assignments = assignments_.in(pass.slot).slice(first * k, tokens * k),
          .counts = counts.slice(context_.ep.rank() * experts, experts)};
}

ExpertRoutes MoeBlock::routes(const Pass& pass) const {
  return routes(pass, 0, pass.tokens(), counts_.in(pass.slot));
}

template <class Work, class Idle>
void MoeBlock::each_expert(const Turn& turn, const Work& work, const Idle& idle) const {
  int64_t first = 0;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const int64_t rows = turn.counts.of_expert(static_cast<int64_t>(e));
    if (rows == 0) {
      idle(experts_[e]);
    } else {
      work(experts_[e], first, rows);
    }
    first += rows;
  }
}

bool MoeBlock::adds_output_bias() const {
  return context_.tp.rank() == 0;
}

ExpertScores MoeBlock::scores() const {
  const ModelShape::MoeScores& scores = context_.shape.moe_scores;
  return {.sigmoid = scores.sigmoid,
          .normalize = scores.normalize,
          .scale = static_cast<float>(scores.scale),
          .groups = static_cast<int>(scores.groups),
          .group_topk = static_cast<int>(scores.group_topk),
          .group_best = static_cast<int>(scores.best_of_group(context_.shape.experts_per_token))};
}

RowCounts MoeBlock::route(const Pass& pass, Tensor x) const {
  const Tensor logits = first_rows(logits_, pass, pass.tokens(), context_.shape.experts);
  router_.forward(pass, {x}, logits, router_.bias());
  context_.device.route_experts(
      {.logits = logits, .scores = scores(), .bias = expert_bias_, .routes = routes(pass)});
  return context_.ep.share(counts_.in(pass.slot));
}

template <class Work>
void MoeBlock::each_turn(const Pass& pass, const RowCounts& counts, const Work& work) const {
  const int64_t n = pass.tokens(), room = dispatch_.room();
  if (counts.most_arriving() <= room) {
    work(Turn{.pass = pass, .tokens = n, .routes = routes(pass), .counts = counts});
    return;
  }
  // All ranks have as many tokens, and know all counts: they agree on the turns. Of equal parts, if
  // tokens choose everywhere as they do on the whole; where they do not, half as many at a time,
  // and in the end as many as fit whatever they choose.
  const int64_t least = tokens_of_turn(context_.shape, room, context_.ep.size());
  const int64_t parts = (counts.most_arriving() + room - 1) / room;
  int64_t step = std::max(least, (n + parts - 1) / parts);
  Pass part = pass;
  for (int64_t first = 0; first < n;) {
    const int64_t tokens = std::min(step, n - first);
    const ExpertRoutes to = routes(pass, first, tokens, turn_counts_.tensor);
    context_.device.route_experts(
        {.logits = rows_between(logits_, pass, first, tokens, context_.shape.experts),
         .scores = scores(),
         .bias = expert_bias_,
         .routes = to});
    const RowCounts here = context_.ep.share(turn_counts_.tensor);
    if (here.most_arriving() > room) {
      step = std::max(least, tokens / 2);
      continue;
    }
    work(Turn{.pass = part,
              .first = first,
              .tokens = tokens,
              .routes = to,
              .counts = here,
              .whole = false});
    first += tokens;
    part.accumulate = true;
  }
}

void MoeBlock::expand(const Turn& turn, Tensor x) const {
  const Pass& pass = turn.pass;
  const Tensor inputs = dispatch_.inputs(turn, tokens_of(turn, x));
  const Operand operand = float8_.along_rows(inputs, DType::f8_e4m3);
  each_expert(turn, [&](const Expert& expert, int64_t first, int64_t rows) {
    expert.up.forward(pass, operand.rows(first, rows), rows_at(before_act_, pass, first, rows),
                      expert.up.bias());
  });
}

void MoeBlock::through_experts(const Pass& pass, Tensor x, Tensor sum) const {
  const RowCounts counts = route(pass, x);
  // What goes in turns keeps nothing for backward: it makes that again itself.
  if (pass.again && counts.most_arriving() > dispatch_.room()) return;
  each_turn(pass, counts, [&](const Turn& turn) {
    expand(turn, x);
    if (pass.again) return;
    const Tensor outputs = dispatch_.outputs(turn);
    const Tensor made = rows_at(activated_, pass, 0, outputs.rows());
    if (made.rows() > 0) {
      context_.device.swiglu_forward({.x = rows_at(before_act_, pass, 0, made.rows()),
                                      .y = made,
                                      .amax = float8_.fresh_amax(),
                                      .unit = gated_unit(context_.shape)});
    }
    const Operand activated = float8_.along_rows(made, DType::f8_e4m3, true);
    each_expert(turn, [&](const Expert& expert, int64_t first, int64_t rows) {
      expert.down.forward(pass, activated.rows(first, rows), outputs.row_slice(first, rows),
                          adds_output_bias() ? expert.down.bias() : Tensor());
    });
    dispatch_.take_back(turn, tokens_of(turn, sum), true);
  });
}

ResidualAdd MoeBlock::forward(const Pass& pass, const ResidualAdd& before) const {
  const Tensor branch = rows_of(branch_, pass);
  const Tensor x = context_.tp.enter(norm_.forward(pass, before), branch);
  const Tensor sum = end_.sum(pass);
  // Before the experts' sum takes the place of x.
  if (shared_) shared_->expand(pass, x, norm_.amax(pass));
  // How many rows an expert has is something else each time.
  context_.device.anew([this, pass, x, sum] { through_experts(pass, x, sum); });
  if (pass.again) return {};
  if (shared_) shared_->add_output(pass, sum);
  return end_.forward(pass, {}, norm_.input(pass), output(pass));
}

void MoeBlock::route_backward(const Pass& pass) const {
  const ModelShape& shape = context_.shape;
  const int64_t n = pass.tokens();
  // With TP the weights' gradients are parts of sums, and so are those of the logits; what the
  // router's own losses give is whole, and one rank adds it.
  const float scale = context_.tp.rank() == 0 ? pass.loss_scale : 0.0f;
  Tensor sequence_experts;
  if (sequence_experts_) {
    sequence_experts = rows_of(sequence_experts_, whole_sequences(context_, pass));
    context_.cp.gather(pass.sequences, routes(pass).experts, sequence_experts);
  }
  const Tensor losses(losses_.tensor.slice(0, 2 * n).data, DType::f32, {2, n});
  context_.device.route_experts_backward(
      {.logits = first_rows(logits_, pass, n, shape.experts),
       .scores = scores(),
       .routes = routes(pass),
       .dweights = first_rows(dweights_, pass, n, shape.experts_per_token),
       .dlogits = dlogits(pass),
       .seq = whole_sequences(context_, pass).seq,
       .sequence_experts = sequence_experts,
       .aux_scale = scale * static_cast<float>(shape.moe_aux_loss),
       .z_scale = scale * static_cast<float>(shape.moe_z_loss),
       .losses = losses});
  for (const int64_t i : {0, 1}) {
    context_.device.sum(losses.slice(i * n, n), loss_sums_.slice(i, 1), true);
  }
  // Once in each pass, however often its layers are forwarded.
  if (expert_counts_) {
    context_.device.count_experts({.counts = routes(pass).counts, .sums = expert_counts_});
  }
}

void MoeBlock::backward(const Pass& pass) const {
  context_.device.anew([this, pass] { backward_through_experts(pass); });
}

void MoeBlock::backward(const Turn& turn, Tensor x, Tensor dbranch, Tensor dnormed) const {
  Device& device = context_.device;
  const Pass& pass = turn.pass;
  if (context_.expert_turns != nullptr) ++*context_.expert_turns;
  if (!turn.whole) expand(turn, x);
  const Tensor dy = dispatch_.gradients(turn, tokens_of(turn, dbranch));
  const int64_t rows = dy.rows();
  const Tensor activated = rows_at(activated_, pass, 0, rows);
  const Tensor before_act = rows_at(before_act_, pass, 0, rows);
  const Tensor dactivated = rows_at(dactivated_, pass, 0, rows);
  const Tensor dbefore_act = this->dbefore_act(pass, rows);
  const bool later = leaves_weights_ && turn.whole;
  const bool again = trains_experts_ && !later && (!turn.whole || activates_backward(again_, pass));
  // The gradient of a row before its weight gives that of the weight: the product with the expert's
  // output is the one with its activations, behind `down`.
  const Operand dy_operand = float8_.along_rows(dy, DType::f8_e5m2);
  each_expert(turn, [&](const Expert& expert, int64_t first, int64_t count) {
    expert.down.backward_input(pass, dy_operand.rows(first, count),
                               dactivated.row_slice(first, count));
  });
  const Tensor dweights =
      rows_between(dweights_, pass, turn.first, turn.tokens, context_.shape.experts_per_token);
  const RowWeights weights = dispatch_.row_weights(turn, dweights);
  if (rows > 0) {
    device.swiglu_backward({.dy = dactivated,
                            .x = before_act,
                            .dx = dbefore_act,
                            .amax = float8_.fresh_amax(),
                            .y = again ? activated : Tensor(),
                            .rows = weights,
                            .unit = gated_unit(context_.shape)});
  }
  if (context_.shape.bias && adds_output_bias()) {
    // What a row is before its weight has a bias too.
    each_expert(turn, [&](const Expert& expert, int64_t first, int64_t count) {
      device.add_row_products({.rows = dy.row_slice(first, count),
                               .vector = expert.down.bias(),
                               .index = weights.index.slice(first, count),
                               .sums = weights.dweights});
    });
  }
  dispatch_.take_back_gradients(turn, dweights);
  if (trains_experts_) {
    const Tensor weighted = dispatch_.weighted_gradients(
        turn, tokens_of(turn, dbranch), later ? later_dweighted_.in(pass.later) : Tensor());
    if (!later) backward_weights(turn, &Expert::down, activated, weighted, Float8Rows::Kind::dy);
  }
  const Operand dbefore_operand = float8_.along_rows(dbefore_act, DType::f8_e5m2, true);
  const Tensor dinputs = dispatch_.outputs(turn);
  each_expert(turn, [&](const Expert& expert, int64_t first, int64_t count) {
    expert.up.backward_input(pass, dbefore_operand.rows(first, count),
                             dinputs.row_slice(first, count));
  });
  dispatch_.take_back(turn, tokens_of(turn, dnormed), false);
}

void MoeBlock::backward_weights(const Turn& turn, Linear Expert::*linear, Tensor x, Tensor dy,
                                Float8Rows::Kind dy_amax) const {
  using Kind = Float8Rows::Kind;
  const Pass& pass = turn.pass;
  float8_.take_amax(Kind::x, x);
  if (dy_amax == Kind::dy) float8_.take_amax(Kind::dy, dy);
  each_expert(
      turn,
      [&](const Expert& expert, int64_t first, int64_t count) {
        const Tensor own_x = x.row_slice(first, count), own_dy = dy.row_slice(first, count);
        if (float8_) {
          (expert.*linear)
              .backward_weight(pass, float8_.along_tokens(Kind::x, own_x, float8_.amax(Kind::x)),
                               float8_.along_tokens(Kind::dy, own_dy, float8_.amax(dy_amax)));
          (expert.*linear).backward_bias(pass, own_dy);
        } else {
          (expert.*linear).backward_weight(pass, own_x, own_dy, own_dy);
        }
      },
      [&](const Expert& expert) { (expert.*linear).backward_weight_of_nothing(pass); });
}

void MoeBlock::backward_inputs(const Turn& turn, Tensor x) const {
  if (!trains_experts_) return;
  const Tensor inputs = dispatch_.inputs_again(turn, tokens_of(turn, x));
  // What `up` gave went along the rows last: their largest magnitude is there.
  backward_weights(turn, &Expert::up, inputs, dbefore_act(turn.pass, inputs.rows()),
                   Float8Rows::Kind::rows);
}

void MoeBlock::weight_grads(const Pass& pass) const {
  if (leaves_weights_) context_.device.anew([this, pass] { make_weight_grads(pass); });
}

void MoeBlock::make_weight_grads(const Pass& pass) const {
  const Tensor normed = again_.norms ? norm_.forward(pass) : norm_.normed(pass);
  const Tensor x =
      context_.tp.sequence() ? context_.tp.enter(normed, rows_of(gathered_, pass)) : normed;
  router_.backward_weight(pass, x, dlogits(pass), dlogits(pass));
  const Turn turn{.pass = pass,
                  .tokens = pass.tokens(),
                  .routes = routes(pass),
                  .counts = context_.ep.shared(counts_.in(pass.slot))};
  if (trains_experts_ && turn.counts.most_arriving() <= dispatch_.room()) {
    const Tensor inputs = dispatch_.inputs_again(turn, x);
    const int64_t rows = inputs.rows();
    backward_weights(turn, &Expert::up, inputs, dbefore_act(pass, rows), Float8Rows::Kind::dy);
    const Tensor activated = rows_at(activated_, pass, 0, rows);
    if (again_.mlp_activation && rows > 0) {
      context_.device.swiglu_forward({.x = rows_at(before_act_, pass, 0, rows),
                                      .y = activated,
                                      .amax = float8_.fresh_amax(),
                                      .unit = gated_unit(context_.shape)});
    }
    backward_weights(turn, &Expert::down, activated,
                     rows_at(later_dweighted_, in_later(pass), 0, rows), Float8Rows::Kind::dy);
  }
  if (!shared_) return;
  shared_->weight_grads(pass, x, context_.tp.enter(later_dstream(pass), rows_of(branch_, pass)));
}

void MoeBlock::backward_through_experts(const Pass& pass) const {
  const Tensor dlogits = this->dlogits(pass);
  const Tensor dresidual = stream_rows_of(context_, dresidual_, pass);
  const Tensor branch = rows_of(branch_, pass);
  const Tensor dnormed = rows_of(dnormed_, pass);

  RowCounts counts;
  if (!again_.mlp) counts = context_.ep.shared(counts_.in(pass.slot));
  // What weights' gradients are made of is read later with them, but by tokens in turns.
  const bool reads_input = !leaves_weights_ || counts.most_arriving() > dispatch_.room();
  Tensor normed, x;
  if (reads_input) {
    normed = again_.norms || again_.mlp ? norm_.forward(pass) : norm_.normed(pass);
    x = context_.tp.sequence() ? rows_of(gathered_, pass) : normed;
  }
  const Tensor dstream = end_.backward(pass, dresidual, dnormed);
  if (later_dstream_) context_.device.copy(dstream, later_dstream(pass));
  const Tensor dbranch = context_.tp.enter(dstream, branch);
  TensorParallel::Pending entering;
  if (reads_input) entering = context_.tp.start_enter(normed, x);
  if (again_.mlp) {
    entering.finish();
    counts = route(pass, x);
  }
  std::optional<Turn> whole;
  each_turn(pass, counts, [&](const Turn& turn) {
    if (turn.whole) {
      if (again_.mlp) expand(turn, x);
      backward(turn, x, dbranch, dnormed);
      whole = turn;
    } else {
      entering.finish();
      backward(turn, x, dbranch, dnormed);
      backward_inputs(turn, x);
    }
  });
  route_backward(pass);
  router_.backward_input(pass, {dlogits}, dnormed, Epilogue::none, {}, true);
  if (shared_) {
    if (again_.mlp) {
      Pass again = pass;
      again.again = true;
      shared_->expand(again, x, norm_.amax(pass));
    }
    shared_->backward(pass, dbranch, dnormed);
  }
  TensorParallel::Pending leaving = context_.tp.start_leave(dnormed);
  entering.finish();
  if (!leaves_weights_) {
    if (shared_) shared_->backward_weights(pass, x);
    router_.backward_weight(pass, x, dlogits, dlogits);
    if (whole) backward_inputs(*whole, x);
  }
  leaving.finish();
  norm_.backward(pass, context_.tp.own_rows(dnormed), dresidual, true, dinput_amax_.in(pass.slot));
}

}  // namespace mtl
