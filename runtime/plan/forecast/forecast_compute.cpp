#include "runtime/plan/forecast/forecast_compute.h"

#include <algorithm>
#include <cmath>

#include "runtime/device/kernel_scratch.h"

namespace mtl {

Work& Work::operator+=(const Work& other) {
  matmul += other.matmul;
  attention += other.attention;
  memory_bound += other.memory_bound;
  return *this;
}

Work operator*(const Work& work, double times) {
  return {work.matmul * times, work.attention * times, work.memory_bound * times};
}

double stream_time(const Cluster& cluster, double bytes) {
  return bytes / (cluster.gpu.memory_rate * cluster.memory_share);
}

double matmul_time(const Cluster& cluster, double m, double n, double k, bool fp8, DType compute,
                   double out_bytes) {
  const double flops = 2 * m * n * k;
  if (cluster.cpu) {
    // Square products are what the rate was measured with; thin ones are bound by memory.
    const double size = bytes_of(compute);
    return std::max(flops / peak_flops(cluster.gpu, compute),
                    stream_time(cluster, size * (m * k + k * n) + out_bytes * m * n));
  }
  constexpr double kTile = 128, kLastWave = 0.25, kDepth = 96;
  const double waves = std::ceil(m / kTile) * std::ceil(n / kTile) / cluster.multiprocessors;
  const double reached = waves / (waves + kLastWave) * k / (k + kDepth);
  const double peak = fp8 && cluster.gpu.fp8 > 0
                          ? cluster.gpu.fp8 * cluster.fp8_share
                          : peak_flops(cluster.gpu, compute) * cluster.matmul_share;
  const double in = fp8 ? 1 : 2;
  const double bytes = in * (m * k + k * n) + out_bytes * m * n;
  return std::max(flops / (peak * cluster.clock * reached), stream_time(cluster, bytes)) +
         cluster.kernel_s;
}

namespace {

struct PassSizes {
  PassSizes(const Workload& work, const LayoutChoice& layout)
      : n(static_cast<double>(layout.micro_batch * work.seq) / layout.cp),
        stream(layout.sequence_parallel ? n / layout.tp : n),
        h(static_cast<double>(work.model.hidden)),
        q(static_cast<double>(work.model.query_width()) / layout.tp),
        kv(static_cast<double>(local_kv_heads(work.model, layout.tp) * work.model.head_dim)),
        context(static_cast<double>(work.model.context_width()) / layout.tp),
        ffn(static_cast<double>(work.model.ffn) / layout.tp),
        parts(static_cast<double>(work.model.mlp_parts())),
        element(static_cast<double>(bytes_of(work.compute))) {}
  double n, stream, h, q, kv, context, ffn, parts, element;
};

// How a linear's operands come to be in FP8, if they are; of which the op that makes them leaves
// the largest magnitude; and whether x is kept along the tokens.
struct Rounding {
  bool fp8 = false;
  Float8Bytes bytes = {};
  bool x_found = false, dy_found = false, x_kept = false;
};

// One linear: forward, and dX and dW in backward; dW adds to the gradients in the same product,
// which reads and writes them.
void add_linear(PassWork& pass, const Cluster& cluster, double m, double n, double k,
                const Rounding& rounding, DType compute, double main_grad_bytes,
                double copies = 1) {
  const bool fp8 = rounding.fp8;
  const double rows = m / copies, out = bytes_of(compute);
  const double weight =
      copies * matmul_time(cluster, k, n, rows, fp8, compute, 2 * main_grad_bytes);
  pass.forward.matmul += copies * matmul_time(cluster, rows, n, k, fp8, compute, out);
  pass.backward.matmul += copies * matmul_time(cluster, rows, k, n, fp8, compute, out) + weight;
  pass.later += weight;
  if (fp8) {
    const Float8Bytes& bytes = rounding.bytes;
    const double x = bytes.x - (rounding.x_found ? bytes.found : 0) + (rounding.x_kept ? 1 : 0);
    const double again = rounding.x_kept ? 0 : bytes.x_again;
    const double dy = bytes.dy - (rounding.dy_found ? bytes.found : 0);
    // The weight along both ways: read 2, write 1 twice, with an amax (read 2).
    pass.forward.memory_bound += stream_time(cluster, x * m * k + 6 * copies * k * n);
    pass.backward.memory_bound += stream_time(cluster, dy * m * n + again * m * k);
    pass.later += stream_time(cluster, again * m * k);
  }
}

// Attention of these heads on Hopper as a part of the rate that heads of 128 have there, forward
// and backward together, as measured on an H200 (docs/benchmarks/gpu-h200.md): those that wgmma
// multiplies, and the rest by mma; with capped scores all by mma, since nobody has measured others.
double kernel_share(const Workload& work) {
  const ModelShape& model = work.model;
  const kernel_scratch::AttentionSize size = {
      .seq = work.seq, .head_dim = model.head_dim, .value_dim = model.value_dim()};
  const bool capped = model.attention_cap > 0;
  const bool f32 = work.compute == DType::f32;  // which has the one kernel
  if (f32 || (!capped && kernel_scratch::fits_warpgroups(work.compute, size))) return 1;
  if (!capped && kernel_scratch::fits_wide_warpgroups(work.compute, size)) {
    return model.head_dim > 192 ? 0.76 : 0.9;
  }
  return model.head_dim > 192 ? 0.2 : 0.4;
}

// Attention of a micro-batch's heads on this rank: Q K^T and P V forward; backward five products of
// the same size with a fused kernel (scores are made again), four without.
void add_attention(PassWork& pass, Work& core, const Workload& work, const LayoutChoice& layout,
                   const Cluster& cluster, const Software& software, const PassSizes& d) {
  const auto seq = static_cast<double>(work.seq);
  const double rows = d.n;  // queries of this rank; keys are all of the sequence
  double keys = seq;
  if (software.flash_attention) {
    // What is seen on average: the causal half, less what a window leaves out (cost.cpp).
    const double window =
        work.model.sliding_window > 0
            ? std::min<double>(static_cast<double>(work.model.sliding_window), seq)
            : seq;
    keys = window - window * window / (2 * seq);
    const double flops = 2 * rows * keys * (d.q + d.context);
    const double short_seq = cluster.cpu ? 1 : keys / (keys + 128);
    const double head = std::min(1.0, static_cast<double>(work.model.head_dim) / 128.0 * 0.3 + 0.7);
    const bool cores = !cluster.cpu && software.tensor_core_head > 0 &&
                       work.model.head_dim > software.tensor_core_head;
    const DType rate = cores ? DType::f32 : work.compute;  // of the CUDA cores, or of tensor cores
    const bool by_kernel =
        software.heads_have_kernels && !cluster.cpu && cluster.gpu.major >= 9 && !cores;
    const double peak = peak_flops(cluster.gpu, rate) * cluster.clock * short_seq *
                        (cluster.cpu ? 1 : head) * (by_kernel ? kernel_share(work) : 1);
    core.attention = flops / (peak * cluster.attention_forward) + cluster.kernel_s;
    pass.backward.attention += 2.5 * flops / (peak * cluster.attention_backward) + cluster.kernel_s;
  } else {
    const double heads = d.q / static_cast<double>(work.model.head_dim);
    const double head = static_cast<double>(work.model.head_dim);
    const double batch = layout.micro_batch;
    // Batched products of seq x seq x head; their traffic is counted with the scores below.
    constexpr double kDepth = 96;
    const double peak = peak_flops(cluster.gpu, work.compute) * cluster.matmul_share;
    const double reached = head / (head + kDepth);
    // The mean of Q K^T and P V.
    const double one = rows * seq * (d.q + d.context) / (peak * reached * cluster.clock);
    const double scores = batch * heads * seq * seq;
    // Write scores (2), scale + mask + softmax in one kernel (4), dropout (5: with its mask), read
    // (2); backward: write dP (2), dropout (5), softmax (6), two products read P, dS, dS (6).
    const double forward_bytes = scores * (8 + (software.dropout ? 5 : 0));
    const double backward_bytes = scores * (14 + (software.dropout ? 5 : 0));
    core.attention = 2 * one + stream_time(cluster, forward_bytes);
    pass.backward.attention += 4 * one + stream_time(cluster, backward_bytes);
  }
  pass.forward += core;
}

// What makes queries, keys and values of latents: products, the norms between them, and what puts
// the heads together, which reads and writes them once.
// Returns what of it recompute may make again.
Work add_latents(PassWork& pass, const Workload& work, const LayoutChoice& layout,
                 const Cluster& cluster, const Software& software, const PartsAgain& parts,
                 const PassSizes& d) {
  const ModelShape& model = work.model;
  const auto q_rank = static_cast<double>(model.latent.q_rank);
  const auto kv_rank = static_cast<double>(model.latent.kv_rank);
  const double pairs = static_cast<double>(model.heads * model.latent_pair()) / layout.tp;
  Work again;
  const Float8Linears fp8 =
      layout.float8.on ? float8_kinds(model, work.seq / layout.cp, layout.tp) : Float8Linears{};
  const bool keeps = software.keeps_float8_x && !model.lora && !parts.norms && !parts.latents &&
                     layout.recompute.full == Recompute::Full::none;
  // `up`: behind a norm. In FP8 what they made is rounded once more for the weights' products.
  const auto linear = [&](bool taken, double out, double in, bool up) {
    PassWork one;
    add_linear(one, cluster, d.n, out, in, {taken, software.float8, false, false, up && keeps},
               work.compute, software.main_grad_bytes);
    pass.forward += one.forward;
    pass.backward += one.backward;
    pass.later += one.later;
    if (taken) pass.backward.memory_bound += stream_time(cluster, 3 * d.n * out);
    if (up) again += one.forward;
  };
  if (q_rank > 0) linear(fp8.q_down, q_rank, d.h, false);
  linear(fp8.q, d.q, q_rank > 0 ? q_rank : d.h, q_rank > 0);
  linear(fp8.kv_down, static_cast<double>(model.latent_width()), d.h, false);
  linear(fp8.kv, pairs, kv_rank, true);
  const double norms = 4 * (q_rank + kv_rank), heads = d.q + pairs + 2 * d.q + d.context;
  const double traffic = d.n * software.elementwise * d.element;
  pass.forward.memory_bound += stream_time(cluster, (norms + heads) * traffic);
  pass.backward.memory_bound += stream_time(cluster, (1.5 * norms + heads) * traffic);
  again.memory_bound += stream_time(cluster, heads * traffic);
  return again;
}

// Beside adapters linears have no gradients of their weights, and the adapters have theirs.
void add_adapters(PassWork& pass, const Workload& work, const LayoutChoice& layout,
                  const Cluster& cluster, double n, double grads) {
  const ModelShape& model = work.model;
  if (!model.lora) return;
  const auto rank = static_cast<double>(model.lora.rank);
  const double element = bytes_of(work.compute);
  const auto product = [&](double rows, double cols, double inner, double out) {
    return matmul_time(cluster, rows, cols, inner, false, work.compute, out);
  };
  pass.backward.matmul -= pass.later;
  pass.later = 0;
  for (const LocalLinear& linear : layer_linears(model, layout.tp, layout.ep)) {
    if (!model.lora.adapts(linear.slot)) continue;
    const auto in = static_cast<double>(linear.in), out = static_cast<double>(linear.out);
    const double narrow_x = product(n, rank, in, element);
    pass.forward.matmul += narrow_x + product(n, out, rank, 2 * element);
    const double weights =
        narrow_x + product(rank, in, n, 2 * grads) + product(out, rank, n, 2 * grads);
    pass.backward.matmul +=
        product(n, rank, out, element) + product(n, in, rank, 2 * element) + weights;
    pass.later += weights;
  }
}

}  // namespace

PassWork layer_work(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                    const Software& software, const PartsAgain& parts) {
  const PassSizes d(work, layout);
  const ModelShape& model = work.model;
  PassWork pass;
  const double grads = software.main_grad_bytes;
  // By a norm forward and backward, unless the tensor is gathered, or goes through dropout or is
  // scaled behind it, and by a gate's op on both sides of it (model/float8_operands.h).
  const bool norm_x = !layout.sequence_parallel && model.norms_inputs();
  const bool norm_dy =
      !layout.sequence_parallel && (model.adds_as_it_is() || model.norms_outputs());
  const bool parallel = model.parallel_residual;
  const bool gated = model.gated();
  const bool whole = layout.recompute.full != Recompute::Full::none;
  const bool keeps = software.keeps_float8_x && !whole && !model.lora;
  // Linears whose sizes FP8 does not take stay as they are.
  const Float8Linears fp8 =
      layout.float8.on ? float8_kinds(model, work.seq / layout.cp, layout.tp) : Float8Linears{};
  const auto linear = [&](bool taken, bool x_found, bool dy_found, bool x_kept = false) {
    return Rounding{taken, software.float8, x_found, dy_found, x_kept && keeps};
  };
  Work qkv_again;
  if (model.has_latents()) {
    qkv_again = add_latents(pass, work, layout, cluster, software, parts, d);
  } else {
    add_linear(pass, cluster, d.n, d.q + 2 * d.kv, d.h,
               linear(fp8.qkv, norm_x, false, norm_x && !parts.norms), work.compute, grads);
  }
  add_linear(pass, cluster, d.n, d.h, d.context, linear(fp8.proj, false, norm_dy && !parallel),
             work.compute, grads);
  Work core;
  add_attention(pass, core, work, layout, cluster, software, d);
  Work mlp;
  {
    PassWork feed;
    if (model.experts > 0) {
      const double chosen = static_cast<double>(model.experts_per_token);
      const double local = static_cast<double>(model.experts) / layout.ep;
      add_linear(feed, cluster, d.n, static_cast<double>(model.experts), d.h, {}, work.compute, 4);
      // SwiGLU leaves the largest magnitude of what it makes, where somebody asks for it.
      add_linear(feed, cluster, d.n * chosen, d.parts * d.ffn, d.h,
                 {fp8.experts, software.float8_up, false, true}, work.compute, grads, local);
      add_linear(feed, cluster, d.n * chosen, d.h, d.ffn,
                 {fp8.experts, software.float8_down, true, false}, work.compute, grads, local);
      // Rows are gathered for the experts and weighed back: read and written, each way.
      const double permute = stream_time(cluster, 4 * d.n * chosen * d.h * d.element);
      feed.forward.memory_bound += permute;
      feed.backward.memory_bound += permute;
      if (model.shared_ffn > 0) {
        const double shared = static_cast<double>(model.shared_ffn) / layout.tp;
        add_linear(feed, cluster, d.n, d.parts * shared, d.h, linear(fp8.up, norm_x, gated),
                   work.compute, grads);
        add_linear(feed, cluster, d.n, d.h, shared, linear(fp8.down, gated, norm_dy), work.compute,
                   grads);
        // Added to the experts' sum; backward there is a gate, or nothing.
        feed.forward.memory_bound += stream_time(cluster, 3 * d.n * d.h * d.element);
        if (model.shared_gate) {
          feed.backward.memory_bound += stream_time(cluster, 4 * d.n * shared * d.element);
        }
      }
    } else {
      add_linear(
          feed, cluster, d.n, d.parts * d.ffn, d.h,
          linear(fp8.up, norm_x && !model.shared_norm, gated, norm_x && !parts.norms && !parts.mlp),
          work.compute, grads);
      add_linear(feed, cluster, d.n, d.h, d.ffn,
                 linear(fp8.down, gated, norm_dy && (!parallel || layout.tp == 1),
                        !parts.mlp_activation && !parts.mlp),
                 work.compute, grads);
    }
    mlp = feed.forward;
    pass.later += feed.later;
    pass.forward += feed.forward;
    pass.backward += feed.backward;
  }
  // Element-wise, in elements read and written: two norms (2 h each) before blocks, behind them, or
  // four, two residual additions, or one of blocks side by side (3 h each; with dropout its mask),
  // rotation of what is turned of Q and K (2 each), the activation. One norm of all of a token's
  // heads reads them twice, forward and backward, and keeps them.
  const double norms_before =
      model.norms_inputs() ? d.stream * (model.shared_norm ? 2 : 4) * d.h : 0;
  const double norms = norms_before + (model.norms_outputs() ? d.stream * 4 * d.h : 0) +
                       (model.qk_norm_whole ? d.n * 4 * (d.q + d.kv) : 0);
  const double residual = d.stream * (software.dropout ? 7 : 6) * d.h / (parallel ? 2 : 1);
  // Layers that rotate nothing are counted into all alike.
  const double rotated =
      1 - static_cast<double>(model.unrotated_layers.size()) / static_cast<double>(model.layers);
  const double rope = model.position == PositionType::rope && !model.has_latents()
                          ? d.n * 2 * (d.q + d.kv) * model.rope_fraction * rotated
                          : 0;
  const double active = static_cast<double>(model.active_ffn()) / layout.tp;
  const double activation = d.n * active * (d.parts + 1);
  // Made again it is written by the op that reads for its derivative what it is made of; but for a
  // GELU whose derivative is the product's, and where a gate asks for it before.
  double activation_again = model.activation == Activation::gelu_tanh ? activation : d.n * active;
  if (model.shared_gate) {
    activation_again += d.n * d.parts * static_cast<double>(model.shared_ffn) / layout.tp;
  }
  const double traffic = software.elementwise * d.element;
  add_adapters(pass, work, layout, cluster, d.n, grads);
  if (!layout.weights_later || !parts.leaves_weights()) {
    pass.later = 0;
  } else if (!whole) {
    // What blocks add to the stream is copied aside, and in FP8 what linears made is rounded again
    // (read 2, write 1).
    const bool mixture = model.experts > 0, shared = model.shared_ffn > 0;
    const double blocks = parallel || (mixture && !shared) ? 1 : 2;
    pass.backward.memory_bound += stream_time(cluster, blocks * d.stream * 2 * d.h * d.element);
    double again = (fp8.qkv ? d.q + 2 * d.kv : 0) + (fp8.proj ? d.h : 0);
    if (!mixture || shared) {
      const double ffn = static_cast<double>(model.dense_ffn()) / layout.tp;
      again += (fp8.up ? d.parts * ffn : 0) + (fp8.down ? d.h : 0);
    }
    const double rounding = stream_time(cluster, d.n * again * 3);
    pass.backward.memory_bound += rounding;
    pass.later += rounding;
    // What is made again for these products is made with them.
    if (parts.norms) pass.later += stream_time(cluster, norms_before * traffic);
    if (parts.mlp_activation) pass.later += stream_time(cluster, activation_again * traffic);
  }
  const double forward = stream_time(cluster, (norms + residual + rope + activation) * traffic);
  pass.forward.memory_bound += forward;
  pass.backward.memory_bound +=
      stream_time(cluster, (1.5 * norms + residual + rope + 2 * activation) * traffic);

  // What of the forward pass backward makes again.
  if (layout.keep_every_second) {
    pass.again.matmul = pass.forward.matmul / 2;
    pass.again.memory_bound = forward;
  } else if (!whole) {
    if (parts.core_attention) pass.again += core;
    if (parts.latents) pass.again += qkv_again;
    if (parts.norms) pass.again.memory_bound += stream_time(cluster, norms_before * traffic);
    if (parts.mlp) {
      pass.again += mlp;
      pass.again.memory_bound += stream_time(cluster, activation_again * traffic);
    } else if (parts.mlp_activation) {
      pass.again.memory_bound += stream_time(cluster, activation_again * traffic);
    }
  } else {
    pass.again = pass.forward;
  }
  // Kernels follow each other no faster than they are launched.
  const double least = cluster.kernel_s * 10 * software.kernels;
  const auto launch = [&](Work& part, double kernels) {
    const double missing = kernels * least - part.sum();
    if (missing > 0) part.memory_bound += missing;
  };
  launch(pass.forward, 1);
  launch(pass.backward, 2);
  return pass;
}

PassWork head_work(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                   const Software& software) {
  const PassSizes d(work, layout);
  PassWork pass;
  const double vocab = static_cast<double>(work.model.padded_vocab) / layout.tp;
  add_linear(pass, cluster, d.n, vocab, d.h, {}, work.compute, software.main_grad_bytes);
  if (work.model.lora) pass.backward.matmul -= pass.later;  // its weight is not trained
  const double traffic = stream_time(cluster, d.n * vocab * software.logits_bytes / 2);
  pass.forward.memory_bound += traffic;
  pass.backward.memory_bound += traffic;
  if (software.head_in_forward) {
    pass.forward += pass.backward;
    pass.backward = {};
  }
  return pass;
}

Work embedding_work(const Workload& work, const LayoutChoice& layout, const Cluster& cluster) {
  const PassSizes d(work, layout);
  Work both;
  both.memory_bound = stream_time(cluster, d.n * d.h * (2 * d.element + 8));
  if (work.model.embedding_scale != 1) {
    both.memory_bound += stream_time(cluster, 4 * d.stream * d.h * d.element);
  }
  return both;
}

}  // namespace mtl
