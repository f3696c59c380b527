#include "runtime/plan/schedule/pipeline.h"

#include <cstddef>
#include <numeric>

namespace mtl {

std::vector<int64_t> balanced_layers(int64_t layers, int virtual_stages, double head) {
  const auto stages = static_cast<size_t>(virtual_stages);
  std::vector<int64_t> counts(stages, 0);
  const auto cost = [&](size_t stage) {
    return static_cast<double>(counts[stage]) + (stage == stages - 1 ? head : 0);
  };
  // Every layer goes where there is none yet, then to the cheapest; the last of those alike, for
  // the first stages keep the activations of the most micro-batches.
  for (int64_t layer = 0; layer < layers; ++layer) {
    size_t best = 0;
    for (size_t stage = 1; stage < stages; ++stage) {
      const bool better = (counts[stage] > 0) != (counts[best] > 0) ? counts[stage] == 0
                                                                    : cost(stage) <= cost(best);
      if (better) best = stage;
    }
    ++counts[best];
  }
  return counts;
}

std::vector<int64_t> balanced_layers(const std::vector<double>& costs, int virtual_stages,
                                     double head) {
  const auto layers = static_cast<int64_t>(costs.size());
  // From the last layer on each stage takes what fits below `most`, and leaves one for each of the
  // others; the first ones, which keep the activations of the most micro-batches, get what is left.
  const auto cut = [&](double most, std::vector<int64_t>& counts) {
    counts.assign(static_cast<size_t>(virtual_stages), 0);
    int64_t left = layers;
    for (int stage = virtual_stages - 1; stage >= 0; --stage) {
      double cost = stage == virtual_stages - 1 ? head : 0;
      int64_t& count = counts[static_cast<size_t>(stage)];
      while (left > stage) {
        const double next = costs[static_cast<size_t>(left - 1)];
        if (count > 0 && cost + next > most) break;
        cost += next;
        ++count;
        --left;
      }
      if (cost > most) return false;
    }
    return left == 0;
  };
  // The smallest of the largest, to a thousandth.
  double low = 0, high = std::accumulate(costs.begin(), costs.end(), head);
  std::vector<int64_t> counts, best;
  cut(high, best);
  while (high - low > 1e-3 * high) {
    const double most = (low + high) / 2;
    if (cut(most, counts)) {
      best = counts;
      high = most;
    } else {
      low = most;
    }
  }
  return best;
}

std::vector<std::vector<ChunkRange>> pipeline_layout(const std::vector<int64_t>& layers_of_virtual,
                                                     int stages, int chunks) {
  std::vector<std::vector<ChunkRange>> layout(static_cast<size_t>(stages));
  int64_t first = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int stage = 0; stage < stages; ++stage) {
      const int global = chunk * stages + stage;
      ChunkRange range;
      range.first_layer = first;
      range.layers = layers_of_virtual[static_cast<size_t>(global)];
      range.embedding = global == 0;
      range.head = global == stages * chunks - 1;
      first += range.layers;
      layout[static_cast<size_t>(stage)].push_back(range);
    }
  }
  return layout;
}

}  // namespace mtl
