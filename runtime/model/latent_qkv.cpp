#include "runtime/model/latent_qkv.h"

namespace mtl {

namespace {

// What a layer has of its own, kept or left for later, or scratch.
Buffer own_or(const BlockContext& context, int64_t layer, const char* own, const char* scratch) {
  const Buffer buffer = context.arena.find(layer_buffer(layer, own));
  return buffer ? buffer : context.arena.find(scratch);
}

}  // namespace

LatentQkv::Latent::Latent(const BlockContext& context, int64_t layer, const char* name,
                          const std::string& norm)
    : gamma(context.parameters.find(layer, norm + ".weight")),
      before(context.arena.find(layer_buffer(layer, name))),
      rstd(context.arena.find(layer_buffer(layer, name) + ".rstd")),
      normed(context.arena.find(layer_buffer(layer, name) + ".normed")) {}

LatentQkv::LatentQkv(const BlockContext& context, int64_t layer, const PartsAgain& again)
    : context_(context),
      norms_again_(again.norms),
      query_(context, layer, kQueryLatent, "attn.q_down_norm"),
      key_(context, layer, kKeyLatent, "attn.kv_down_norm"),
      q_down_(context, layer, "attn.q_down"),
      q_(context, layer, "attn.q"),
      kv_down_(context, layer, "attn.kv_down"),
      kv_(context, layer, "attn.kv"),
      rope_table_(context.arena.tensor(context.shape.rotates_by_window(layer) ? kWindowRopeTable
                                                                              : kRopeTable)),
      position_ids_(context.arena.find("position_ids")),
      queries_(own_or(context, layer, kQueries, kQueries)),
      pairs_(context.arena.get("attn.pairs")),
      latents_(context.arena.get("attn.latents")),
      rotary_key_(context.arena.find(layer_buffer(layer, kRotaryKey))),
      dqueries_(own_or(context, layer, kQueriesLater, kQueries)),
      dpairs_(own_or(context, layer, kPairsLater, "attn.pairs")),
      dlatents_(own_or(context, layer, kLatentsLater, "attn.latents")),
      dquery_latent_(own_or(context, layer, kQueryLatentLater, "attn.dq_latent")),
      dkey_latent_(context.arena.find("attn.dkv_latent")),
      dnormed_(context.arena.find_tensor("attn.dnormed_latent")) {}

LayerNorm LatentQkv::norm(const Pass& pass, const Latent& latent) const {
  return {.x = rows_of(latent.before, pass),
          .gamma = latent.gamma.weight,
          .beta = {},
          .y = rows_of(latent.normed, pass),
          .mean = {},
          .rstd = values_of(latent.rstd, pass),
          .eps = static_cast<float>(context_.shape.latent.norm_eps)};
}

Tensor LatentQkv::norm_forward(const Pass& pass, const Latent& latent) const {
  const LayerNorm args = norm(pass, latent);
  context_.device.layernorm_forward(args);
  return args.y;
}

Tensor LatentQkv::normed(const Pass& pass, const Latent& latent) const {
  return norms_again_ ? norm_forward(pass, latent) : rows_of(latent.normed, pass);
}

void LatentQkv::norm_backward(const Pass& pass, const Latent& latent, Tensor dnormed,
                              Tensor dbefore) const {
  context_.device.layernorm_backward({.dy = dnormed,
                                      .x = rows_of(latent.before, pass),
                                      .gamma = latent.gamma.weight,
                                      .mean = {},
                                      .rstd = values_of(latent.rstd, pass),
                                      .dx = dbefore,
                                      .dgamma = latent.gamma.grad,
                                      .dbeta = {},
                                      .accumulate = pass.accumulate});
}

Tensor LatentQkv::dnormed(const Pass& pass, int64_t columns) const {
  return Tensor(dnormed_.data, dnormed_.dtype, {pass.tokens(), columns});
}

LatentHeads LatentQkv::heads(const Pass& pass, Tensor qkv) const {
  const ModelShape& shape = context_.shape;
  // The rank's share of a sequence begins behind those of the ranks before it; a pass of generation
  // behind the tokens of earlier ones.
  const int64_t share = context_.cp.rank() * pass.seq;
  return {.queries = rows_of(queries_, pass),
          .pairs = rows_of(pairs_, pass),
          .latents = rows_of(latents_, pass),
          .qkv = qkv,
          .heads = shape.heads / context_.tp.size(),
          .head_dim = shape.head_dim,
          .rope_dim = shape.latent.rope_dim,
          .value_dim = shape.latent.value_dim,
          .table = rope_table_,
          .seq = pass.seq,
          .first_position = pass.past + share,
          .positions = position_ids_ ? values_of(position_ids_, pass) : Tensor()};
}

LatentHeads LatentQkv::heads_backward(const Pass& pass, Tensor dqkv) const {
  LatentHeads back = heads(pass, dqkv);
  back.queries = rows_of(dqueries_, in_later(pass));
  back.pairs = rows_of(dpairs_, in_later(pass));
  back.latents = rows_of(dlatents_, in_later(pass));
  back.backward = true;
  return back;
}

void LatentQkv::forward(const Pass& pass, Tensor x, Tensor qkv) const {
  const LatentHeads made = heads(pass, qkv);
  Tensor of_queries = x;
  if (has_query_latent()) {
    q_down_.forward(pass, {x}, rows_of(query_.before, pass), {});
    of_queries = norm_forward(pass, query_);
  }
  q_.forward(pass, {of_queries}, made.queries, {});
  kv_down_.forward(pass, {x}, made.latents, {});
  const Tensor before = rows_of(key_.before, pass);
  context_.device.copy_columns({.from = made.latents, .to = before, .columns = before.cols()});
  if (rotary_key_) {
    const Tensor rotary = rows_of(rotary_key_, pass);
    context_.device.copy_columns({.from = made.latents,
                                  .to = rotary,
                                  .from_column = before.cols(),
                                  .columns = rotary.cols()});
  }
  kv_.forward(pass, {norm_forward(pass, key_)}, made.pairs, {});
  context_.device.latent_heads(made);
}

void LatentQkv::forward_again(const Pass& pass, Tensor qkv) const {
  LatentHeads made = heads(pass, qkv);
  made.latents = rows_of(rotary_key_, pass);
  if (has_query_latent()) q_.forward(pass, {normed(pass, query_)}, made.queries, {});
  kv_.forward(pass, {normed(pass, key_)}, made.pairs, {});
  context_.device.latent_heads(made);
}

void LatentQkv::backward_input(const Pass& pass, Tensor dqkv, Tensor dx) const {
  const LatentHeads back = heads_backward(pass, dqkv);
  context_.device.latent_heads(back);
  if (has_query_latent()) {
    const Tensor dquery_normed = dnormed(pass, context_.shape.latent.q_rank);
    const Tensor dquery_latent = rows_of(dquery_latent_, in_later(pass));
    q_.backward_input(pass, {back.queries}, dquery_normed);
    norm_backward(pass, query_, dquery_normed, dquery_latent);
    q_down_.backward_input(pass, {dquery_latent}, dx);
  } else {
    q_.backward_input(pass, {back.queries}, dx);
  }
  const Tensor dkey_normed = dnormed(pass, context_.shape.latent.kv_rank);
  const Tensor dkey_latent = rows_of(dkey_latent_, pass);
  kv_.backward_input(pass, {back.pairs}, dkey_normed);
  norm_backward(pass, key_, dkey_normed, dkey_latent);
  context_.device.copy_columns(
      {.from = dkey_latent, .to = back.latents, .columns = dkey_latent.cols()});
  kv_down_.backward_input(pass, {back.latents}, dx, Epilogue::none, {}, true);
}

void LatentQkv::backward_weights(const Pass& pass, Tensor x) const {
  const auto gradient = [&](const Linear& linear, Tensor of, const Buffer& planned) {
    const Tensor dy = rows_of(planned, in_later(pass));
    linear.backward_weight_later(pass, of, dy, dy);
  };
  if (has_query_latent()) {
    gradient(q_, normed(pass, query_), dqueries_);
    gradient(q_down_, x, dquery_latent_);
  } else {
    gradient(q_, x, dqueries_);
  }
  gradient(kv_, normed(pass, key_), dpairs_);
  gradient(kv_down_, x, dlatents_);
}

}  // namespace mtl
