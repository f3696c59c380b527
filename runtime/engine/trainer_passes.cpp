// What a trainer does with micro-batches: the instructions of a step's schedule.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "runtime/engine/health.h"
#include "runtime/engine/trainer.h"

namespace mtl {

std::span<const int32_t> Trainer::own_share(const Pass& pass, std::span<int32_t> whole) const {
  const int64_t seq = whole_sequences(context_, pass).seq;
  if (seq == pass.seq) return whole;
  for (int64_t i = 0; i < pass.sequences; ++i) {
    const auto share = whole.begin() + i * seq + coord_[Axis::cp] * pass.seq;
    std::copy(share, share + pass.seq, whole.begin() + i * pass.seq);
  }
  return whole.first(static_cast<size_t>(pass.tokens()));
}

void Trainer::load_batch(const Samples& samples, int64_t first, const Pass& pass,
                         const Chunk& chunk, int64_t counted_end) {
  const StepClock::Scope reading(pass.training ? &clock_ : nullptr, Phase::data);
  const int64_t count = pass.sequences, seq = whole_sequences(context_, pass).seq;
  const int slot = pass.slot;
  const auto tokens = static_cast<size_t>(count * seq);
  const std::span<int32_t> inputs = std::span(host_tokens_).first(tokens);
  const std::span<int32_t> targets = std::span(host_targets_).first(tokens);
  SampleBatch batch{inputs, targets};
  if (first_key_) batch.first_key = std::span(host_first_key_).first(tokens);
  if (position_ids_) batch.positions = std::span(host_positions_).first(tokens);
  samples.fill(first, count, batch);
  const int64_t counting = std::clamp<int64_t>(counted_end - first, 0, count);
  std::ranges::fill(targets.subspan(static_cast<size_t>(counting * seq)), -1);
  int32_t largest = 0, smallest = 0, smallest_target = 0;
  for (size_t i = 0; i < tokens; ++i) {
    largest = std::max({largest, inputs[i], targets[i]});
    smallest = std::min(smallest, inputs[i]);
    smallest_target = std::min(smallest_target, targets[i]);
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
  // Of each sequence the rank has the whole, for attention, or its share.
  const int64_t n = pass.tokens();
  const std::span<const int32_t> own_inputs = own_share(pass, inputs);
  const std::span<const int32_t> own_targets = own_share(pass, targets);
  if (chunk.range().embedding) {
    device_.copy_from_host(arena_.get("tokens").in(slot).slice(0, n), own_inputs.data());
    if (pass.training) tied_.load(own_inputs, slot);
  }
  if (chunk.range().head) {
    load_targets(own_targets, slot);
    counted_ += std::ranges::count_if(own_targets, [](int32_t id) { return id >= 0; });
  }
  const auto all = static_cast<int64_t>(tokens);
  if (first_key_) {
    device_.copy_from_host(first_key_.in(slot).slice(0, all), host_first_key_.data());
  }
  if (position_ids_) {
    // Rotations are attention's, but of latents those of the rank's tokens, as rows of a table are
    // added to them.
    const bool rotated = plan_.model.position == PositionType::rope && !plan_.model.has_latents();
    const std::span<const int32_t> positions =
        rotated ? batch.positions : own_share(pass, batch.positions);
    device_.copy_from_host(position_ids_.in(slot).slice(0, static_cast<int64_t>(positions.size())),
                           positions.data());
  }
}

void Trainer::load_targets(std::span<const int32_t> targets, int slot) {
  const auto load = [&](const char* buffer, std::span<const int32_t> numbers) {
    device_.copy_from_host(arena_.get(buffer).in(slot).slice(0, std::ssize(numbers)),
                           numbers.data());
  };
  host_rows_.take(targets);
  head_rows_[slot] = host_rows_.rows;
  if (host_rows_.rows == 0) return load("targets", targets);
  load("targets", host_rows_.targets);
  load("head.rows", host_rows_.rows_of_pass);
  load("head.places", host_rows_.places);
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

void Trainer::forward(const Chunk& chunk, const Pass& pass, const BetweenLayers& between,
                      bool add_losses) {
  chunk.forward(pass, between);
  if (chunk.range().head && pass.losses) sum_losses(chunk, pass, add_losses);
}

void Trainer::replay(const char* what, int chunk, const Pass& pass,
                     const std::function<void()>& run) {
  const std::string key = fmt::format(
      "trainer {}, {}, chunk {}, slot {} {}, {} sequences of {}{}{}{}, {} rows, "
      "scale {:08x}",
      number_, what, chunk, pass.slot, pass.later, pass.sequences, pass.seq,
      pass.training ? ", training" : "", pass.accumulate ? ", accumulating" : "",
      pass.losses ? "" : ", no losses", pass.head_rows, std::bit_cast<uint32_t>(pass.loss_scale));
  device_.replay(key, run);
}

void Trainer::read_weights(int chunk, int64_t layer) {
  optimizer_.require(chunk, layer);
  windows_.read(layer);
  float8_.prepare(layer);
}

void Trainer::gradients_done(int chunk, int64_t layer) {
  if (layer < 0) tied_.merge();
  reducer_.layer_done(chunk, layer);
}

BetweenLayers Trainer::between_layers(const Instruction& in, bool forward, bool reduces) {
  const ParamLayout& layout = stage_.layout;
  BetweenLayers between;
  between.let_go = layout.shards_weights();
  if (layout.shards_weights() || (forward && in.micro_batch == 0 && layout.sharded)) {
    between.reads = [this, chunk = in.chunk](int64_t layer) { read_weights(chunk, layer); };
  }
  if (layout.shards_gradients()) {
    between.writes = [this](int64_t layer) { reducer_.claim(layer); };
  }
  if (!forward && (layout.shards_gradients() || (reduces && groups_[Link::data].size() > 1))) {
    between.done = [this, chunk = in.chunk](int64_t layer) { gradients_done(chunk, layer); };
  }
  return between;
}

BetweenLayers Trainer::anew(const BetweenLayers& between) {
  const auto wrap = [this](const std::function<void(int64_t)>& work) {
    std::function<void(int64_t)> wrapped;
    if (work) {
      wrapped = [this, work](int64_t layer) { device_.anew([work, layer] { work(layer); }); };
    }
    return wrapped;
  };
  return {.reads = wrap(between.reads),
          .writes = wrap(between.writes),
          .done = wrap(between.done),
          .let_go = between.let_go};
}

void Trainer::begin_reading(const Chunk& chunk, bool forward) {
  if (!stage_.layout.shards_weights()) return;
  windows_.begin(forward ? forward_reads(chunk.range(), plan_.model.layers)
                         : backward_reads(chunk.range(), plan_.model.layers, plan_.recompute));
}

void Trainer::forward_of_step(const Instruction& in, const Pass& pass) {
  const Chunk& chunk = chunks_[static_cast<size_t>(in.chunk)];
  const bool first = in.micro_batch == 0;
  const BetweenLayers between = between_layers(in, true, false);
  if (first && !between.reads) float8_.prepare_all();
  begin_reading(chunk, true);
  replay(first ? "first forward" : "forward", in.chunk, pass,
         [&] { forward(chunk, pass, anew(between), !first); });
}

void Trainer::backward_of_step(const Instruction& in, const Pass& pass, bool reduces) {
  const Chunk& chunk = chunks_[static_cast<size_t>(in.chunk)];
  const BetweenLayers between = between_layers(in, false, reduces);
  if (in.op == Op::weight_grads) {
    replay(reduces ? "last weights" : "weights", in.chunk, pass,
           [&] { chunk.weight_grads(pass, anew(between)); });
  } else {
    begin_reading(chunk, false);
    replay(reduces ? "last backward" : "backward", in.chunk, pass,
           [&] { chunk.backward(pass, anew(between)); });
  }
  if (reduces && !between.done) {
    gradients_done(in.chunk, chunk.range().embedding ? -1 : chunk.range().first_layer);
  }
}

void Trainer::sum_losses(const Chunk& chunk, const Pass& pass, bool accumulate) {
  device_.sum(chunk.losses(pass), arena_.tensor("loss_sum").slice(0, 1), accumulate);
}

float Trainer::loss_scale(int64_t step) const {
  return static_cast<float>(scale_.value() / static_cast<double>(plan_.tokens_of_step(step)));
}

Pass Trainer::pass_of(const Instruction& in) const {
  Pass pass;
  pass.sequences = plan_.micro_batch;
  pass.seq = plan_.share();
  pass.slot = in.slot;
  pass.later = in.later;
  pass.training = true;
  // In a window there are the gradients of one micro-batch.
  pass.accumulate = in.micro_batch > 0 && !stage_.layout.shards_gradients();
  return pass;
}

// A micro-step takes a run of samples, each replica its part of it: the order of samples is the
// same for every layout.
int64_t Trainer::first_sequence(const Instruction& in) const {
  return (in.micro_batch * plan_.grid.replicas() + plan_.grid.replica(coord_)) * plan_.micro_batch;
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
  const bool later = schedule.shape.weights_later;
  tied_.begin_step();
  counted_ = 0;
  expert_turns_ = 0;
  const double zeros[2] = {};
  device_.copy_from_host(arena_.tensor("loss_sum").slice(StepSums::kRouter, 2), zeros);
  if (const Tensor counts = arena_.find_tensor(kExpertCounts)) {
    const std::vector<double> none(static_cast<size_t>(counts.numel()));
    device_.copy_from_host(counts, none.data());
  }
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
        // What is collected of a tied embedding's gradient is reduced with the rest of it.
        if (stage_.layout.shards_gradients()) tied_.begin_step();
        reducer_.begin(in.micro_batch == 0, in.micro_batch == last);
        load_batch(samples, first_of_step + first_sequence(in), pass, chunk);
        break;
      case Op::forward:
        links_.sent(Link::activations);
        if (needs_documents() && !chunk.range().embedding && !chunk.range().head) {
          load_batch(samples, first_of_step + first_sequence(in), pass, chunk);
        }
        write_dropout(in, step);
        if (chunk.range().head) pass.head_rows = head_rows_.at(in.slot);
        if (search != nullptr) {
          BetweenLayers between = between_layers(in, true, false);
          between.writes = {};
          if (in.micro_batch == 0 && !between.reads) float8_.prepare_all();
          begin_reading(chunk, true);
          forward(chunk, pass, between, in.micro_batch > 0);
        } else {
          forward_of_step(in, pass);
        }
        break;
      case Op::backward:
        links_.sent(Link::gradients);
        if (search != nullptr) {
          BetweenLayers between = between_layers(in, false, false);
          between.writes = {};
          // What is left for later is still that of another step.
          if (!later) between.done = [&](int64_t layer) { look_at_gradients(layer, *search); };
          begin_reading(chunk, false);
          chunk.backward(pass, between);
        } else {
          backward_of_step(in, pass, in.micro_batch == last && !later);
        }
        break;
      case Op::weight_grads:
        if (search != nullptr) {
          BetweenLayers between;
          between.done = [&](int64_t layer) { look_at_gradients(layer, *search); };
          chunk.weight_grads(pass, between);
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

void Trainer::look_at_gradients(int64_t layer, NotFiniteSearch& search) {
  for (const ParamPlacement& param : stage_.layout.params) {
    const ParamRow& row = plan_.table[param.row];
    // The head's part of a tied embedding whose own layer is on another stage.
    const bool copy = param.tied_copy && layer == plan_.model.layers;
    if (row.layer != layer && !copy) continue;
    search.gradient(
        layer, row,
        arena_.tensor("grads").slice(stage_.layout.gradient_offset(param), param.numel));
  }
}

}  // namespace mtl
