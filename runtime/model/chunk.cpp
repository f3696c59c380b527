#include "runtime/model/chunk.h"

#include <ranges>
#include <utility>

#include "runtime/model/parallel_layer.h"

namespace mtl {

Chunk::Chunk(const BlockContext& context, const ChunkRange& range)
    : context_(context), range_(range), groups_(layer_groups(context.recompute, range)) {
  const std::string input = stream_after(context.shape, range, range.first_layer - 1);
  if (range.embedding) embedding_.emplace(context, input);
  for (const LayerGroup& group : groups_) {
    for (int64_t number = group.first_layer; number < group.end_layer(); ++number) {
      const std::string behind = stream_after(context.shape, range, number);
      AttentionBlock attention(context, number, group.parts);
      if (context.shape.is_mixture(number)) {
        layers_.push_back({attention, MoeBlock(context, number, group.parts, behind)});
      } else {
        layers_.push_back({attention, MlpBlock(context, number, group.parts, behind)});
      }
    }
  }
  if (range.head) head_.emplace(context);
  input_ = context.arena.get(input);
  output_ = context.arena.find(kChunkOutput);
  dresidual_ = context.arena.find("dresidual");
  operands_ = context.arena.find(kFloat8Operands);
  if (!head_) {
    dresidual_amax_ =
        float8_stream_amax(context, range.end_layer() - 1, "mlp.down", Float8Operand::dy);
  }
}

ResidualAdd Chunk::Layer::forward(const BlockContext& context, const Pass& pass, const Pass& of_mlp,
                                  const ResidualAdd& before) const {
  if (context.shape.parallel_residual) {
    return parallel_forward(context, attention, std::get<MlpBlock>(mlp), pass, of_mlp, before);
  }
  const ResidualAdd attended = attention.forward(pass, before);
  return std::visit([&](const auto& block) { return block.forward(of_mlp, attended); }, mlp);
}

void Chunk::Layer::backward(const BlockContext& context, const Pass& pass) const {
  if (context.shape.parallel_residual) {
    return parallel_backward(context, attention, std::get<MlpBlock>(mlp), pass);
  }
  std::visit([&](const auto& block) { block.backward(pass); }, mlp);
  attention.backward(pass);
}

void Chunk::Layer::weight_grads(const Pass& pass) const {
  std::visit([&](const auto& block) { block.weight_grads(pass); }, mlp);
  attention.weight_grads(pass);
}

Tensor Chunk::Layer::output(const Pass& pass) const {
  return std::visit([&](const auto& block) { return block.output(pass); }, mlp);
}

Tensor Chunk::group_input(const LayerGroup& group, const Pass& pass) const {
  return stream_rows_of(context_, context_.arena.get(layer_buffer(group.first_layer, "attn.input")),
                        pass);
}

Tensor Chunk::kept(const LayerGroup& group, const Pass& pass) const {
  const Tensor all = context_.arena.get(layer_buffer(group.first_layer, "attn.kept")).in(pass.slot);
  const int64_t rows = pass.tokens() / context_.tp.size();
  return Tensor(all.data, all.dtype, {rows, all.cols()});
}

void Chunk::settle(const Pass& pass, ResidualAdd& left) const {
  if (!left) return;
  add_to_stream(context_, pass, left);
  left = {};
}

void Chunk::read(int64_t layer, const Pass& pass, const BetweenLayers& between,
                 ResidualAdd& left) const {
  if (between.let_go && left.bias) settle(pass, left);
  if (between.reads) between.reads(layer);
}

ResidualAdd Chunk::forward_layers(const Pass& pass, const BetweenLayers& between) const {
  auto inspect = [&](int64_t number, const char* what, Tensor made) {
    if (pass.inspect != nullptr) (*pass.inspect)(number, what, made);
  };
  if (operands_) context_.device.fill(operands_.in(pass.slot), 0);
  if (embedding_) {
    if (between.reads) between.reads(-1);
    embedding_->forward(pass);
    inspect(-1, "output of the embedding", input(pass));
  }
  ResidualAdd left;
  for (const LayerGroup& group : groups_) {
    if (group.again && context_.recompute.distribute && pass.training) {
      settle(pass, left);
      const Tensor part = kept(group, pass);
      const Tensor all = group_input(group, pass);
      context_.device.copy(Tensor(all.slice(context_.tp.rank() * part.numel(), part.numel()).data,
                                  all.dtype, {part.rows(), part.cols()}),
                           part);
    }
    for (int64_t number = group.first_layer; number < group.end_layer(); ++number) {
      read(number, pass, between, left);
      left = layer(number).forward(context_, pass, pass, left);
      if (pass.inspect != nullptr) settle(pass, left);
      inspect(number, "output of the layer", layer(number).output(pass));
    }
  }
  return left;
}

void Chunk::forward(const Pass& pass, const BetweenLayers& between) const {
  ResidualAdd left = forward_layers(pass, between);
  if (!head_) return settle(pass, left);
  read(context_.shape.layers, pass, between, left);
  if (pass.training && between.writes) {
    between.writes(context_.shape.layers);
    if (embedding_ && context_.shape.tie_embeddings) between.writes(-1);
  }
  head_->forward(pass, left);
  if (pass.inspect != nullptr) (*pass.inspect)(context_.shape.layers, "loss", losses(pass));
}

bool Chunk::ends_unneeded(const LayerGroup& group, int64_t number) const {
  return number + 1 == group.end_layer() && !context_.shape.norms_outputs();
}

void Chunk::forward_again(const Pass& pass, const LayerGroup& group,
                          const BetweenLayers& between) const {
  if (context_.recompute.distribute) {
    context_.tp.gather(kept(group, pass), group_input(group, pass));
  }
  ResidualAdd left;
  for (int64_t number = group.first_layer; number < group.end_layer(); ++number) {
    Pass last = pass;
    last.again = ends_unneeded(group, number);
    read(number, pass, between, left);
    left = layer(number).forward(context_, pass, last, left);
  }
}

void Chunk::backward(const Pass& pass, const BetweenLayers& between) const {
  auto finished = [&](int64_t number) {
    if (pass.inspect != nullptr) {
      (*pass.inspect)(number, "gradient of the residual stream",
                      stream_rows_of(context_, dresidual_, pass));
    }
    if (between.done) between.done(number);
  };
  if (head_) {
    if (between.reads) between.reads(context_.shape.layers);
    head_->backward(pass);
    finished(context_.shape.layers);
  }
  if (dresidual_amax_) {
    context_.device.amax(stream_rows_of(context_, dresidual_, pass), dresidual_amax_.in(pass.slot));
  }
  for (const LayerGroup& group : groups_ | std::views::reverse) {
    if (group.again) forward_again(pass, group, between);
    for (int64_t number = group.end_layer(); number-- > group.first_layer;) {
      if (between.reads) between.reads(number);
      if (between.writes) between.writes(number);
      Pass behind = pass;
      behind.again = group.again && ends_unneeded(group, number);
      layer(number).backward(context_, behind);
      finished(number);
    }
  }
  if (embedding_) {
    if (between.writes) between.writes(-1);
    embedding_->backward(pass);
    finished(-1);
  }
}

void Chunk::weight_grads(const Pass& pass, const BetweenLayers& between) const {
  const auto finished = [&](int64_t number) {
    if (between.done) between.done(number);
  };
  if (head_) finished(context_.shape.layers);
  for (int64_t number = range_.end_layer(); number-- > range_.first_layer;) {
    layer(number).weight_grads(pass);
    finished(number);
  }
  if (embedding_) finished(-1);
}

}  // namespace mtl
