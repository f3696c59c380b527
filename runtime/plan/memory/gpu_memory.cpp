#include "runtime/plan/memory/gpu_memory.h"

#include <algorithm>

#include "runtime/plan/memory/memory_builder.h"
#include "runtime/plan/nccl_channels.h"
#include "runtime/plan/plan.h"

namespace mtl {

namespace {

// What Linear::backward_weight is given as the gradient of a bias, at most.
std::vector<KernelNeeds::Matrix> bias_gradients(const ModelShape& shape, const RankDims& d) {
  std::vector<KernelNeeds::Matrix> biases;
  if (shape.qkv_bias && !shape.has_latents()) biases.push_back({d.n, d.qkv});
  if (!shape.bias) return biases;
  biases.push_back({d.stream, d.h});
  const int64_t parts = shape.mlp_parts();
  if (shape.experts == 0) {
    biases.push_back({d.n, parts * d.ffn});
    return biases;
  }
  // One expert may have all rows.
  biases.push_back({d.n, shape.experts});
  biases.push_back({d.expert_rows, parts * d.ffn});
  biases.push_back({d.expert_rows, d.h});
  if (!shape.dense_layers.empty()) biases.push_back({d.n, parts * d.dense_ffn});
  return biases;
}

// Rows whose gradients go to rows of the embedding, at most at once.
int64_t embedded_rows(const ModelShape& shape, const MemoryNeeds& needs, const RankDims& d) {
  bool embeds = false, ties = false;
  for (const ChunkRange& chunk : needs.chunks) {
    embeds = embeds || chunk.embedding;
    ties = ties || (chunk.embedding && chunk.head && shape.tie_embeddings);
  }
  if (!embeds) return 0;
  // What is tied adds up all ids of a step, once each.
  const int64_t ids = vocab_shard(shape, needs.tp, 0).valid;
  return ties ? std::max(d.n, std::min(ids, d.n * needs.micro_batches)) : d.n;
}

}  // namespace

KernelNeeds kernel_needs(const ModelShape& shape, const MemoryNeeds& needs,
                         const MemoryPlan& memory) {
  const RankDims d(shape, needs);
  KernelNeeds kernels;
  kernels.compute = needs.compute;
  const bool layers = std::any_of(needs.chunks.begin(), needs.chunks.end(),
                                  [](const ChunkRange& chunk) { return chunk.layers > 0; });
  if (layers) {
    kernels.attention = {needs.micro_batch, needs.seq, d.own_heads, d.head_dim, d.value_dim};
    kernels.attention_room = memory.find(kAttentionRoom)->bytes;
    kernels.sinks = shape.attention_sinks;
    if (shape.qk_norm_whole) {
      kernels.wide_norm_rows = d.n;
      kernels.wide_norm_cols = d.context;
    } else if (shape.qk_norm) {
      kernels.head_norm_rows = d.all;
    }
    if (shape.has_latents()) {
      kernels.latent_norms = {{d.n, shape.latent.q_rank}, {d.n, shape.latent.kv_rank}};
    }
    kernels.biases = bias_gradients(shape, d);
    kernels.routed_tokens = d.n;
    kernels.experts = shape.experts;
  }
  kernels.norm_rows = d.stream;
  kernels.norm_cols = d.h;
  kernels.embedded_rows = embedded_rows(shape, needs, d);
  return kernels;
}

int64_t message_memory(const Plan& plan, const StagePlan& stage) {
  // Activations go to one neighbour and gradients to the other, each from copies of its own.
  bool activations = false, gradients = false;
  for (const ChunkRange& chunk : stage.chunks) {
    activations = activations || !chunk.head;
    gradients = gradients || !chunk.embedding;
  }
  const int64_t rows =
      plan.micro_batch * plan.share() / (plan.sequence_parallel ? plan.grid.sizes()[Axis::tp] : 1);
  const int64_t bytes = rows * plan.model.hidden * bytes_of(plan.compute);
  return ((activations ? 1 : 0) + (gradients ? 1 : 0)) * nccl_message_stride(bytes) *
         nccl_message_slots(bytes, kNcclBufferedBytes);
}

GpuMemory gpu_memory(const KernelNeeds& needs, bool hopper) {
  std::optional<kernel_scratch::Backward> backward;
  if (hopper) backward = kernel_scratch::Backward::measured;
  return {.scratch = kernel_scratch::whole_pieces(most_scratch(needs, backward)),
          .workspace = kProductWorkspaceBytes};
}

}  // namespace mtl
