#include "runtime/device/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <omp.h>
#include <vector>

#include "runtime/device/attention_arguments.h"
#include "runtime/device/cpu/kernels/attention_kernels.h"

namespace mtl {
namespace {

const AttentionKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return avx512::kAttentionKernels;
    case Isa::avx2:
      return avx2::kAttentionKernels;
    case Isa::base:
      break;
  }
  return base::kAttentionKernels;
}

// What `slopes` of a task points into: one for each local head; none without ALiBi.
std::vector<float> slopes_of(const AttentionShape& s) {
  std::vector<float> slopes;
  for (int64_t h = 0; s.alibi && h < s.heads; ++h) {
    slopes.push_back(alibi_slope(s.first_head + h, s.total_heads) / s.scale);
  }
  return slopes;
}

AttentionType type_of(const Tensor& x) {
  if (x.dtype == DType::f32) return AttentionType::f32;
  return x.dtype == DType::bf16 ? AttentionType::bf16 : AttentionType::f16;
}

// The part of a task that (b, head, kv_head) does not change.
AttentionTask common_task(const AttentionShape& s, const Tensor& qkv, const Tensor& out, Isa isa) {
  AttentionTask task;
  task.type = type_of(qkv);
  task.tiles = task.type == AttentionType::bf16 && isa == Isa::avx512 && has_amx_bf16();
  task.qkv_stride = qkv.cols();
  task.out_stride = out.cols();
  task.seq = s.seq;
  task.head_dim = s.head_dim;
  task.value_dim = s.values();
  task.scale = s.scale;
  task.window = s.window;
  task.cap = s.cap;
  if (s.dropout) {
    task.keep_threshold =
        static_cast<uint64_t>(std::ceil(static_cast<double>(s.dropout.probability) * 4294967296.0));
    task.keep_scale = 1.0f / (1.0f - s.dropout.probability);
    const auto& pass = *s.dropout.pass.as<const DropoutPass>();
    task.key = dropout_key(pass.step_key, s.dropout.layer, s.dropout.site);
    task.first_element = first_dropout_element(pass, s.dropout.sequence_elements);
  }
  return task;
}

int64_t value_column(const AttentionShape& s, int64_t kv_head) {
  return (s.heads + s.kv_heads) * s.head_dim + kv_head * s.values();
}

// What all passes have of (b, first query head h).
void place_results(AttentionTask& task, const AttentionShape& s, const Tensor& out,
                   const Tensor& lse, int64_t b, int64_t h) {
  task.out = out.at(b * s.seq, h * s.values());
  task.lse = lse.as<float>() + (b * s.heads + h) * s.seq;
  if (s.sinks) task.sink = s.sinks.at(0, h);
}

// Fills in (b, first query head h, KV head).
void place(AttentionTask& task, const AttentionShape& s, const Tensor& qkv, const Tensor& out,
           const Tensor& lse, const std::vector<float>& slopes, int64_t b, int64_t h) {
  const int64_t row = b * s.seq, kv = h / (s.heads / s.kv_heads);
  place_results(task, s, out, lse, b, h);
  task.q = qkv.at(row, h * s.head_dim);
  task.k = qkv.at(row, (s.heads + kv) * s.head_dim);
  task.v = qkv.at(row, value_column(s, kv));
  task.first_element += static_cast<uint64_t>(b * s.total_heads + s.first_head + h) *
                        static_cast<uint64_t>(s.seq) * static_cast<uint64_t>(s.seq);
  if (s.alibi) task.slopes = slopes.data() + h;
  if (s.first_key) task.first_key = s.first_key.as<const int32_t>() + row;
}

}  // namespace

CpuAttention::CpuAttention(Isa isa) : isa_(isa) {}

void CpuAttention::forward(const Attention& args) {
  const AttentionShape& s = args.shape;
  check_attention(args);
  if (s.batch == 0 || s.seq == 0) return;
  const AttentionKernels& kernels = kernels_for(isa_);
  const std::vector<float> slopes = slopes_of(s);
  AttentionTask common = common_task(s, args.qkv, args.out, isa_);
  const int64_t blocks = (s.seq + kAttentionBlock - 1) / kAttentionBlock;
  const int64_t heads = s.batch * s.heads;
  const int threads = omp_get_max_threads();
  // Heads are cut into ranges of queries only where there are few of them: each range packs the
  // keys before it anew. What a range computes does not depend on the cut.
  const int64_t first = s.first_query / kAttentionBlock;
  const int64_t parts = std::clamp<int64_t>(4 * threads / heads, 1, blocks - first);
  common.last_block = blocks;
  const size_t bytes = (kernels.forward_workspace(common) + 4095) / 4096 * 4096;
  char* memory = static_cast<char*>(workspace_.get(bytes * static_cast<size_t>(threads)));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < heads * parts; ++i) {
    // The last ranges have the most keys to see; they start first.
    const int64_t part = parts - 1 - i / heads, head = i % heads;
    AttentionTask task = common;
    place(task, s, args.qkv, args.out, args.lse, slopes, head / s.heads, head % s.heads);
    task.first_block = first + (blocks - first) * part / parts;
    task.last_block = first + (blocks - first) * (part + 1) / parts;
    task.workspace = memory + bytes * static_cast<size_t>(omp_get_thread_num());
    kernels.forward(task);
  }
}

void CpuAttention::backward(const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  check_attention(args);
  if (s.batch == 0 || s.seq == 0) return;
  const AttentionKernels& kernels = kernels_for(isa_);
  const std::vector<float> slopes = slopes_of(s);
  AttentionTask common = common_task(s, args.qkv, args.out, isa_);
  common.group = s.heads / s.kv_heads;
  const int threads = omp_get_max_threads();
  const size_t bytes = (kernels.backward_workspace(common) + 4095) / 4096 * 4096;
  char* memory = static_cast<char*>(workspace_.get(bytes * static_cast<size_t>(threads)));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < s.batch * s.kv_heads; ++i) {
    const int64_t b = i / s.kv_heads, kv = i % s.kv_heads, h = kv * common.group;
    const int64_t row = b * s.seq;
    AttentionTask task = common;
    place(task, s, args.qkv, args.out, args.lse, slopes, b, h);
    task.dout = args.dout.at(row, h * s.values());
    task.dq = args.dqkv.at(row, h * s.head_dim);
    task.dk = args.dqkv.at(row, (s.heads + kv) * s.head_dim);
    task.dv = args.dqkv.at(row, value_column(s, kv));
    task.workspace = memory + bytes * static_cast<size_t>(omp_get_thread_num());
    kernels.backward(task);
  }
}

void CpuAttention::sinks_backward(const AttentionSinksBackward& args) {
  const AttentionShape& s = args.shape;
  check_attention(args);
  const AttentionKernels& kernels = kernels_for(isa_);
  AttentionTask common;
  common.type = type_of(args.out);
  common.out_stride = args.out.cols();
  common.seq = s.seq;
  common.value_dim = s.values();
  std::vector<float> sums(static_cast<size_t>(s.batch * s.heads));
#pragma omp parallel for schedule(static) num_threads(omp_get_max_threads())
  for (int64_t i = 0; i < s.batch * s.heads; ++i) {
    const int64_t b = i / s.heads, h = i % s.heads;
    AttentionTask task = common;
    place_results(task, s, args.out, args.lse, b, h);
    task.dout = args.dout.at(b * s.seq, h * s.values());
    sums[static_cast<size_t>(i)] = kernels.sink_gradient(task);
  }
  auto* dsinks = args.dsinks.as<float>();
  for (int64_t h = 0; h < s.heads; ++h) {
    float sum = args.accumulate ? dsinks[h] : 0;
    for (int64_t b = 0; b < s.batch; ++b) sum += sums[static_cast<size_t>(b * s.heads + h)];
    dsinks[h] = sum;
  }
}

}  // namespace mtl
