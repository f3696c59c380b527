// Seconds of each stage's passes: its layers, and what it has of the embedding and the head.
#include <array>
#include <numeric>

#include "runtime/plan/forecast/forecast_links.h"
#include "runtime/plan/forecast/stage_params.h"

namespace mtl {

double StageTimes::forward() const {
  return std::accumulate(chunks.begin(), chunks.end(), 0.0,
                         [](double sum, const ChunkTimes& chunk) { return sum + chunk.forward; });
}
double StageTimes::backward() const {
  return std::accumulate(chunks.begin(), chunks.end(), 0.0,
                         [](double sum, const ChunkTimes& chunk) { return sum + chunk.backward; });
}

double StageTimes::weight_grads() const {
  return std::accumulate(
      chunks.begin(), chunks.end(), 0.0,
      [](double sum, const ChunkTimes& chunk) { return sum + chunk.weight_grads; });
}

namespace {

double stage_send_bytes(const Workload& work, const LayoutChoice& layout) {
  const double rows = static_cast<double>(layout.micro_batch * work.seq) / layout.cp /
                      (layout.sequence_parallel ? layout.tp : 1);
  return rows * static_cast<double>(work.model.hidden) * bytes_of(work.compute);
}

// Layers of a chunk that are alike, how many of them backward makes again, and how many groups of
// such end with one.
struct AlikeLayers {
  double layers = 0, again = 0, groups = 0;
  double back(const LinkPart& part) const {
    return layers * part.backward + again * part.again - groups * part.unneeded;
  }
  double wire(const LinkPart& part) const {
    return layers * part.wire + again * part.wire_again - groups * part.wire_unneeded;
  }
};

// By kind, of those of a chunk that make these parts again.
using AlikeByKind = std::array<AlikeLayers, LayerKinds::kKinds>;
AlikeByKind alike_layers(const ModelShape& model, const LayoutChoice& layout,
                         const ChunkRange& chunk, const PartsAgain& parts) {
  AlikeByKind alike;
  const auto kind_of = [&](int64_t layer) -> AlikeLayers& {
    return alike[LayerKinds::of(model, layout, layer)];
  };
  const int64_t end_again = chunk.first_layer + layers_again(layout.recompute, chunk);
  for (int64_t layer = chunk.first_layer; layer < chunk.end_layer(); ++layer) {
    if (parts_again(layout.recompute, layer - chunk.first_layer) != parts) continue;
    kind_of(layer).layers += 1;
    if (layer < end_again) kind_of(layer).again += 1;
  }
  for (const LayerGroup& group : layer_groups(layout.recompute, chunk)) {
    if (group.again) kind_of(group.end_layer() - 1).groups += 1;
  }
  return alike;
}

}  // namespace

std::vector<StageTimes> stage_times(const Workload& work, const LayoutChoice& layout,
                                    const Cluster& cluster, const Software& software) {
  const std::vector<PartsAgain> different = different_parts(layout.recompute);
  std::vector<LayerKinds> kinds_of;
  for (const PartsAgain& parts : different) {
    kinds_of.push_back(layer_kinds(work, layout, cluster, software, parts));
  }
  const PassWork head = head_work(work, layout, cluster, software);
  const Work embedding = embedding_work(work, layout, cluster);
  const double sent = layout.pp > 1 ? stage_send_bytes(work, layout) : 0;
  std::vector<StageTimes> stages;
  for (const std::vector<ChunkRange>& chunks : layout_chunks(work, layout)) {
    StageTimes stage;
    StepTime& parts = stage.parts;
    for (const ChunkRange& chunk : chunks) {
      ChunkTimes times;
      Work forward, backward, recompute;
      double tensor = 0, tensor_back = 0, context = 0, context_back = 0;
      double expert = 0, expert_back = 0;
      const auto add_layers = [&](const AlikeLayers& alike, const LayerKind& kind) {
        const PassWork& pass = kind.work;
        const LayerLinks& links = kind.links;
        forward += pass.forward * alike.layers;
        backward += pass.backward * alike.layers;
        recompute += pass.again * alike.again;
        tensor += alike.layers * links.tensor.forward;
        tensor_back += alike.back(links.tensor);
        context += alike.layers * links.context.forward;
        context_back += alike.back(links.context);
        const double leave =
            alike.layers - (layout.recompute.full == Recompute::Full::none ? 0 : alike.again);
        times.weight_grads += leave * (pass.later + links.tensor.later);
        tensor_back += leave * links.tensor.leaves;
        stage.links.tensor += leave * links.tensor.wire_leaves;
        expert += alike.layers * links.expert.forward;
        expert_back += alike.back(links.expert);
        stage.links.tensor += alike.wire(links.tensor);
        stage.links.context += alike.wire(links.context);
        stage.links.expert += alike.wire(links.expert);
      };
      for (size_t i = 0; i < different.size(); ++i) {
        const AlikeByKind alike = alike_layers(work.model, layout, chunk, different[i]);
        for (size_t kind = 0; kind < alike.size(); ++kind) {
          if (alike[kind].layers > 0) add_layers(alike[kind], kinds_of[i].kinds[kind]);
        }
      }
      if (chunk.head) {
        forward += head.forward;
        backward += head.backward;
      }
      if (chunk.embedding) {
        forward += embedding * 0.3;
        backward += embedding * 0.7;
      }
      const EndsTensor ends = ends_tensor(work, layout, cluster, chunk.embedding, chunk.head);
      tensor += ends.time / 2;
      tensor_back += ends.time / 2;
      stage.links.tensor += ends.wire;
      // An activation to the next virtual stage, a gradient to the one before.
      stage.links.pipeline += ((chunk.head ? 0 : 1) + (chunk.embedding ? 0 : 1)) * sent;
      times.forward = forward.sum() + tensor + context + expert;
      times.backward = backward.sum() + recompute.sum() + tensor_back + context_back + expert_back;
      stage.chunks.push_back(times);
      parts.matmul += forward.matmul + backward.matmul;
      parts.attention += forward.attention + backward.attention;
      parts.memory_bound += forward.memory_bound + backward.memory_bound;
      parts.recompute += recompute.sum();
      parts.tensor += tensor + tensor_back;
      parts.context += context + context_back;
      parts.expert += expert + expert_back;
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

double stage_send_time(const Workload& work, const LayoutChoice& layout, const Cluster& cluster) {
  if (layout.pp <= 1) return 0;
  return send_time(cluster, layout.pp, layout.world() / layout.pp, layout.world(),
                   stage_send_bytes(work, layout));
}

}  // namespace mtl
