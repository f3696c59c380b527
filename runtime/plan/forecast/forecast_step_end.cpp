// Seconds and bytes of a step's end: gradients summed, weights gathered, the optimizer.
#include <algorithm>

#include "runtime/plan/forecast/forecast_compute.h"
#include "runtime/plan/forecast/forecast_matrices.h"
#include "runtime/plan/forecast/stage_params.h"

namespace mtl {

namespace {

constexpr double kLeastExposed = 0.05;  // the bucket that backward fills last

double hidden_rest(const Cluster& cluster, bool overlap, double time, double beside) {
  if (!overlap) return time;
  const double hidden = std::min(time * (1 - kLeastExposed), beside);
  return time - hidden + cluster.overlap_cost * hidden;
}

}  // namespace

StepEnd step_end(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                 const Software& software, const std::vector<ChunkRange>& chunks,
                 const StageTimes& times) {
  StepEnd end;
  const StageParams params = trained_params(work, layout, chunks);
  const double element = bytes_of(work.compute);
  const int64_t micro_batches = work.global_batch / (layout.micro_batch * layout.replicas());
  // Dense parameters are shared by dp x ep x cp ranks, experts by dp x cp; of one copy of shards.
  const int inner = layout.tp, copies = layout.copies;
  const int dense = layout.cp * layout.ep * layout.dp / copies;
  const int expert = layout.cp * layout.dp / copies;
  const GroupLink link = group_link(cluster, dense, inner, layout.world());
  const GroupLink expert_link =
      group_link(cluster, expert, inner * (params.experts > 0 ? layout.ep : 1), layout.world());
  const auto gather_of = [&](const StageParams& some, double bytes_per_param) {
    double time = gather_time(link, some.dense * bytes_per_param);
    if (some.experts > 0) time += gather_time(expert_link, some.experts * bytes_per_param);
    return time;
  };
  const auto gather = [&](double bytes_per_param) { return gather_of(params, bytes_per_param); };
  // What is not trained is gathered where weights are divided.
  const StageParams frozen = work.model.lora ? stage_params(work, layout, chunks) : StageParams();
  const auto sent = [](double elements, double ranks) { return elements * (ranks - 1) / ranks; };
  const double ring = sent(params.dense, dense) + sent(params.experts, expert);
  const double shard_elements =
      layout.zero > 0 ? params.dense / dense + params.experts / expert : params.sum();
  // Once per step, beside the last backward: what the shards of a copy have, over the copies.
  const double over_copies = all_reduce_time(
      group_link(cluster, copies, inner * dense, layout.world()), 4 * shard_elements);
  end.bytes += 2 * sent(4 * shard_elements, copies);
  if (dense > 1) {
    // torchao gathers weights in fp8; mtl rounds what it has gathered.
    const double weight = layout.float8.on && software.torch_fsdp ? 1 : element;
    const bool narrow = layout.zero > 0 && work.grad_reduce != DType::f32;
    const double grad = narrow ? bytes_of(work.grad_reduce) : software.grad_bytes;
    // Gradients are complete when those of the weights are.
    const double completing = layout.weights_later ? times.weight_grads() : times.backward();
    const auto beside_backward = [&](double time) {
      return hidden_rest(cluster, layout.overlap_data, time, completing);
    };
    if (layout.zero == 3) {
      // Weights before forward and before backward, gradients scattered, every micro-batch; each
      // unit is fetched while the one before computes (arXiv 2304.11277).
      const double weights = gather(weight) + gather_of(frozen, weight);
      // Each waited for where it is not to run beside.
      const auto backward = [&](double grads) {
        double beside = 0, waited = 0;
        (layout.overlap_gather ? beside : waited) += weights;
        (layout.overlap_data ? beside : waited) += grads;
        return waited + hidden_rest(cluster, true, beside, times.backward());
      };
      end.data = static_cast<double>(micro_batches) *
                     hidden_rest(cluster, layout.overlap_gather, weights, times.forward()) +
                 static_cast<double>(micro_batches - 1) * backward(gather(grad)) +
                 backward(gather(grad) + over_copies);
      end.bytes += static_cast<double>(micro_batches) * ring * (2 * weight + grad);
      const double frozen_ring = sent(frozen.dense, dense) + sent(frozen.experts, expert);
      end.bytes += static_cast<double>(micro_batches) * frozen_ring * 2 * weight;
    } else {
      // Gradients beside the backward of the last micro-batch; weights (ZeRO) beside the forward
      // of the next step's first. ZeRO-2 scatters every micro-batch.
      const double rounds = layout.zero == 2 ? static_cast<double>(micro_batches) : 1;
      const double reduce = layout.zero == 0 ? 2 * gather(grad) : gather(grad);
      // What is rounded, the ranks of a copy add when all of it is there.
      const double beside = narrow && layout.zero == 1 ? 0 : over_copies;
      end.data = (rounds - 1) * beside_backward(reduce) + beside_backward(reduce + beside) +
                 over_copies - beside;
      end.bytes += ring * grad * (layout.zero == 0 ? 2 : rounds);
      if (layout.zero > 0) {
        end.data += hidden_rest(cluster, layout.overlap_gather, gather(element), times.forward());
        end.bytes += ring * element;
      }
    }
  }
  // Adam: master and two moments read and written, gradient read, weight written; and the norm
  // reads every gradient once more. SGD and Lion have one moment. A weight that is a part of its
  // master is read. Of Muon's matrices the moment and the gradient are read and written, and the
  // direction read.
  const bool muon = work.optimizer == OptimizerKind::muon;
  const StageMatrices matrices = muon ? stage_matrices(work, layout, chunks) : StageMatrices();
  const double of_matrices =
      layout.zero > 0 ? matrices.dense / dense + matrices.experts / expert : matrices.sum();
  const double moments = moments_of(work.optimizer);
  const double master = master_bytes(software, work.compute);
  const bool is_part = master > 0 && master < bytes_of(DType::f32);
  const double weight = is_part ? 2 * element : element;
  const double state = shard_elements * 2 * (4 * moments + master) - of_matrices * 2 * 4;
  const double rest =
      shard_elements * (8 + weight) + of_matrices * 8 + (layout.zero < 2 ? params.sum() * 4 : 0);
  if (work.offload && !cluster.cpu) {
    // As much comes over PCIe as goes back.
    end.optimizer =
        stream_time(cluster, rest) + state / 2 / (cluster.gpu.host_rate * cluster.host_share);
  } else {
    end.optimizer = stream_time(cluster, state + rest);
  }
  if (muon) {
    const MatrixTime time = matrix_time(work, layout, cluster, chunks);
    end.optimizer += time.seconds;
    end.bytes += time.bytes;
  }
  return end;
}

}  // namespace mtl
