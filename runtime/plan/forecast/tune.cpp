#include "runtime/plan/forecast/tune.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/forecast/least_recompute.h"
#include "runtime/plan/forecast/stage_params.h"
#include "runtime/plan/rules/nearest.h"

namespace mtl {

namespace {

constexpr int64_t kMostContext = 16;

struct Candidate {
  LayoutChoice layout;
  double seconds = 0;
  double bytes = 0;
};

// Virtual stages worth a look: those that divide the layers evenly.
std::vector<int> chunk_choices(const Workload& work, int pp) {
  std::vector<int> choices = {1};
  if (pp == 1) return choices;
  for (const int64_t chunks : divisors(work.model.layers)) {
    if (chunks > 1 && work.model.layers % (chunks * pp) == 0) {
      choices.push_back(static_cast<int>(chunks));
    }
  }
  // Uneven ones are weighed by the head.
  if (work.model.layers % pp != 0) {
    for (const int chunks : {2, 4}) {
      if (pp * chunks <= work.model.layers) choices.push_back(chunks);
    }
  }
  return choices;
}

// A layout that does not fit makes again what makes it fit and costs least.
class Search {
 public:
  Search(const Workload& work, int gpus, const Cluster& cluster, const TuneOptions& options)
      : work_(work), gpus_(gpus), cluster_(cluster), options_(options) {}

  std::vector<Candidate> fitting;
  std::vector<Candidate> without;  // that would fit, if at all, only with something made again
  int64_t considered = 0, too_large = 0;
  std::set<std::string> left_out;       // for what this engine does not run
  std::optional<LayoutChoice> nearest;  // of those that do not fit, what needs least
  double nearest_bytes = 1e300;

  void run() {
    const int most_tp = std::min<int>(gpus_, 2 * std::min(cluster_.near_domain, 8));
    for (const int64_t tp : tensor_degrees(work_.model)) {
      if (tp > most_tp || gpus_ % tp != 0) continue;
      for (const int64_t pp : divisors(gpus_ / tp)) {
        if (pp > work_.model.layers) break;
        for (const int64_t cp : divisors(gpus_ / (tp * pp))) {
          if (cp > kMostContext) break;
          for (const int64_t ep : divisors(std::max<int64_t>(1, work_.model.experts))) {
            const int64_t inner = tp * pp * cp * ep;
            if (gpus_ % inner != 0) continue;
            LayoutChoice layout = options_.like;
            layout.tp = static_cast<int>(tp);
            layout.pp = static_cast<int>(pp);
            layout.cp = static_cast<int>(cp);
            layout.ep = static_cast<int>(ep);
            layout.dp = static_cast<int>(gpus_ / inner);
            layout.sequence_parallel = tp > 1 && work_.seq / cp % tp == 0;
            divide(layout);
          }
        }
      }
    }
  }

 private:
  void divide(LayoutChoice layout) {
    int64_t batch = work_.global_batch;
    for (const int64_t other : work_.other_batches) batch = std::gcd(batch, other);
    if (batch % layout.replicas() != 0) return;
    const int64_t of_replica = batch / layout.replicas();
    const int most_zero = layout.replicas() * layout.cp == 1 ? 1 : 3;
    for (const int chunks : chunk_choices(work_, layout.pp)) {
      layout.chunks = chunks;
      // Uneven layers are balanced once, not for every layout that has these stages.
      layout.layers_of_virtual.clear();
      for (const auto& stage : layout_chunks(work_, layout)) {
        for (const ChunkRange& chunk : stage) layout.layers_of_virtual.push_back(chunk.layers);
      }
      // By stage and chunk so far; the order of virtual stages is the other way round.
      std::vector<int64_t> in_order;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        for (int stage = 0; stage < layout.pp; ++stage) {
          in_order.push_back(layout.layers_of_virtual[static_cast<size_t>(stage * chunks + chunk)]);
        }
      }
      layout.layers_of_virtual = std::move(in_order);
      for (int zero = 1; zero <= most_zero; ++zero) {
        layout.zero = zero;
        for (const int copies : copy_choices(layout)) {
          layout.copies = copies;
          for (const int64_t mb : divisors(of_replica)) {
            if (mb > options_.max_micro_batch) break;
            layout.micro_batch = mb;
            layout.recompute = {};
            layout.weights_later = false;
            if (!impossible(work_, layout).empty()) continue;
            if (options_.only_run_here && leave_out(layout)) continue;
            look(layout);
            if (layout.pp == 1) continue;
            layout.weights_later = true;
            look(layout);
          }
        }
      }
    }
  }

  // One of all shards, or one on every node.
  std::vector<int> copy_choices(const LayoutChoice& layout) const {
    const int ranks = layout.world() / layout.pp;
    const int node = std::max(cluster_.gpus_per_node, cluster_.near_domain);
    const bool each = ranks > node && ranks % node == 0 && layout.dp % (ranks / node) == 0;
    if (!each || node <= layout.tp) return {1};
    return {1, ranks / node};
  }

  bool leave_out(const LayoutChoice& layout) {
    const std::vector<std::string> not_run = not_run_here(work_.model, layout, cluster_);
    left_out.insert(not_run.begin(), not_run.end());
    return !not_run.empty();
  }

  double needed(const LayoutChoice& layout) const {
    MemoryForecast memory = forecast_memory(work_, layout);
    memory.nccl = nccl_memory(work_.model, layout, cluster_);
    return needed_memory(memory, cluster_);
  }

  void look(LayoutChoice layout) {
    const double room = usable_memory(cluster_);
    const auto candidate = [&](double bytes) {
      return Candidate{layout, forecast(work_, layout, cluster_).time.total, bytes};
    };
    ++considered;
    const double bytes = needed(layout);
    if (bytes <= room) return fitting.push_back(candidate(bytes));
    // Much too large is no news.
    if (bytes <= 4 * room) without.push_back(candidate(bytes));
    const std::optional<Recompute> least = least_recompute(work_, layout, cluster_);
    layout.recompute = least.value_or(everything_again());
    const double least_bytes = needed(layout);
    if (least) return fitting.push_back(candidate(least_bytes));
    ++too_large;
    if (least_bytes < nearest_bytes) {
      nearest_bytes = least_bytes;
      nearest = layout;
    }
  }

  const Workload& work_;
  int gpus_;
  const Cluster& cluster_;
  const TuneOptions& options_;
};

bool same_degrees(const LayoutChoice& a, const LayoutChoice& b) {
  return a.tp == b.tp && a.pp == b.pp && a.cp == b.cp && a.ep == b.ep && a.zero == b.zero;
}

struct Part {
  const char* name;
  double share;
};

std::array<Part, 9> parts_of(const Forecast& one) {
  const StepTime& time = one.time;
  const double total = time.total;
  return {{{"recompute", time.recompute / total},
           {"tensor parallel communication", time.tensor / total},
           {"context parallel communication", time.context / total},
           {"expert communication", time.expert / total},
           {"waiting for pipeline messages", time.pipeline / total},
           {"bubble", time.bubble / total},
           {"data parallel communication", time.data / total},
           {"optimizer", time.optimizer / total},
           {"element-wise work", time.memory_bound / total}}};
}

std::string gb(double bytes) {
  return fmt::format("{:.0f}", bytes / 1e9);
}

}  // namespace

std::string layout_words(const LayoutChoice& layout) {
  std::string text = fmt::format("tp {}, pp {}", layout.tp, layout.pp);
  if (layout.chunks > 1) text += fmt::format(" x {} chunks", layout.chunks);
  if (layout.weights_later) text += " in ZB-H1";
  if (layout.cp > 1) text += fmt::format(", cp {}", layout.cp);
  if (layout.ep > 1) text += fmt::format(", ep {}", layout.ep);
  text += fmt::format(", dp {}, ZeRO-{}{}, micro-batch {}", layout.dp, layout.zero,
                      layout.copies > 1 ? fmt::format(" in {} copies", layout.copies) : "",
                      layout.micro_batch);
  const Recompute& recompute = layout.recompute;
  if (layout.keep_every_second) return text + ", selective recompute";
  if (recompute.full == Recompute::Full::block) {
    return text + fmt::format(", full recompute of {} layers a chunk", recompute.layers);
  }
  if (recompute.full != Recompute::Full::none) return text + ", full recompute";
  const std::string modules = modules_of(recompute);
  return text + (modules == "[]" ? ", no recompute" : ", recompute " + modules);
}

namespace {

// Of a step's time: less is no difference.
constexpr double kSame = 5e-4;

}  // namespace

std::string verdict(const Forecast& one, const Forecast& best, const Cluster& cluster) {
  if (!one.fits) {
    return fmt::format("needs {} GB of {}", gb(needed_memory(one.memory, cluster)),
                       gb(usable_memory(cluster)));
  }
  const double slower = one.time.total / best.time.total - 1;
  if (std::abs(slower) < kSame) return "as fast";
  // What costs more of the step than in the other one, the most first; of a faster one, less.
  const double sign = slower > 0 ? 1 : -1;
  const auto mine = parts_of(one), theirs = parts_of(best);
  size_t worst = 0;
  double most = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    const double more = sign * (mine[i].share * one.time.total - theirs[i].share * best.time.total);
    if (more > most) {
      most = more;
      worst = i;
    }
  }
  const double matmul =
      sign * (one.time.matmul + one.time.attention - best.time.matmul - best.time.attention);
  std::string why;
  if (matmul > most) {
    why = slower > 0 ? "smaller matrix products reach less of the peak"
                     : "larger matrix products reach more of the peak";
  } else if (slower > 0 &&
             group_link(cluster, one.layout.tp, 1, one.layout.world()).between_nodes &&
             std::string(mine[worst].name).starts_with("tensor")) {
    why = fmt::format("tp {} spans nodes: {:.0f} % of the step", one.layout.tp,
                      100 * mine[worst].share);
  } else {
    why = fmt::format("{} {:.1f} % of the step, {:.1f} % in the best", mine[worst].name,
                      100 * mine[worst].share, 100 * theirs[worst].share);
  }
  return fmt::format("{:.1f} % {}: {}", 100 * std::abs(slower), slower > 0 ? "slower" : "faster",
                     why);
}

Tuning tune(const Workload& work, int gpus, const Cluster& cluster, const TuneOptions& options) {
  Search search(work, gpus, cluster, options);
  search.run();
  Tuning result;
  result.considered = search.considered;
  result.too_large = search.too_large;
  result.left_out = std::move(search.left_out);
  if (search.considered == 0 && result.left_out.empty()) {
    LayoutChoice replicas;
    replicas.dp = gpus;
    result.indivisible = impossible(work, replicas);
  }
  const auto faster = [](const Candidate& a, const Candidate& b) {
    if (a.seconds != b.seconds) return a.seconds < b.seconds;
    return a.bytes < b.bytes;
  };
  std::sort(search.fitting.begin(), search.fitting.end(), faster);
  // Of layouts with the same degrees the fastest stands for all.
  std::vector<Candidate> chosen;
  for (const Candidate& one : search.fitting) {
    const bool seen = std::any_of(chosen.begin(), chosen.end(), [&](const Candidate& other) {
      return same_degrees(one.layout, other.layout);
    });
    if (!seen) chosen.push_back(one);
    if (chosen.size() >= 2 * options.best) break;
  }
  // The bubble of the few that are left from their instruction lists.
  std::vector<Forecast> exact;
  for (const Candidate& one : chosen) {
    exact.push_back(forecast(work, one.layout, cluster, software_mtl(), true));
  }
  std::sort(exact.begin(), exact.end(),
            [](const Forecast& a, const Forecast& b) { return a.time.total < b.time.total; });
  if (exact.size() > options.best) exact.resize(options.best);
  for (const Forecast& one : exact) {
    result.best.push_back({one, verdict(one, exact.front(), cluster)});
  }
  if (!result.best.empty()) {
    const Forecast& first = exact.front();
    std::string best_by = "fastest";
    if (exact.size() > 1) {
      const double ahead = exact[1].time.total / first.time.total - 1;
      best_by += ahead < kSame ? ", with the next" : fmt::format(" by {:.1f} %", 100 * ahead);
    }
    result.best.front().why = fmt::format(
        "{}: {:.0f} % of the step is matrix products and attention, {:.0f} GB of {} used", best_by,
        100 * (first.time.matmul + first.time.attention) / first.time.total,
        first.memory.total / 1e9, gb(usable_memory(cluster)));
    if (cluster.cpu) result.best.front().why = best_by;
  }
  if (result.best.empty() && search.nearest) {
    const Forecast one = forecast(work, *search.nearest, cluster);
    result.if_it_fitted = {one, verdict(one, one, cluster)};
  } else if (!search.without.empty()) {
    const Candidate fastest =
        *std::min_element(search.without.begin(), search.without.end(), faster);
    if (fastest.seconds < exact.front().time.total) {
      const Forecast one = forecast(work, fastest.layout, cluster, software_mtl(), true);
      result.if_it_fitted = {one, verdict(one, one, cluster)};
    }
  }
  const auto runs = [](const Forecast& one) { return one.not_run.empty(); };
  if (!result.best.empty() && std::none_of(exact.begin(), exact.end(), runs)) {
    for (const Candidate& one : search.fitting) {
      if (!not_run_here(work.model, one.layout, cluster).empty()) continue;
      const Forecast here = forecast(work, one.layout, cluster, software_mtl(), true);
      result.run_here = {here, verdict(here, exact.front(), cluster)};
      break;
    }
  }
  if (result.best.empty() && !work.offload && !cluster.cpu) {
    Workload on_host = work;
    on_host.offload = true;
    const Tuning other = tune(on_host, gpus, cluster, options);
    if (!other.best.empty()) {
      result.offloaded = other.best.front();
      result.offloaded->why =
          fmt::format("fits with optimizer.offload=cpu: {} GB of the optimizer on the host",
                      gb(result.offloaded->forecast.memory.on_host));
    }
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> settings_of(const Workload& work,
                                                             const LayoutChoice& layout) {
  std::vector<std::pair<std::string, std::string>> settings = {
      {"parallel.tp", std::to_string(layout.tp)},
      {"parallel.pp", std::to_string(layout.pp)},
      {"parallel.cp", std::to_string(layout.cp)},
      {"parallel.ep", std::to_string(layout.ep)},
      {"parallel.virtual_stages", std::to_string(layout.chunks)},
      {"parallel.zero", std::to_string(layout.zero)},
      {"train.micro_batch", std::to_string(layout.micro_batch)},
  };
  if (layout.copies > 1) {
    settings.emplace_back("parallel.zero_ranks",
                          std::to_string(layout.world() / layout.pp / layout.copies));
  }
  if (layout.pp > 1) {
    const bool even = work.model.layers % (layout.pp * layout.chunks) == 0;
    settings.emplace_back("parallel.stage_layout", even ? "uniform" : "balanced");
    settings.emplace_back("parallel.schedule", layout.weights_later ? "zb-h1" : "1f1b");
  }
  const Recompute& recompute = layout.recompute;
  const std::string modules = modules_of(recompute);
  if (recompute.full != Recompute::Full::none) {
    settings.emplace_back("recompute.mode", "full");
    if (recompute.full == Recompute::Full::block) {
      settings.emplace_back("recompute.method", "block");
      settings.emplace_back("recompute.layers", std::to_string(recompute.layers));
    }
  } else if (modules != "[]") {
    settings.emplace_back("recompute.mode", "selective");
    settings.emplace_back("recompute.modules", modules);
  } else {
    settings.emplace_back("recompute.mode", "none");
  }
  return settings;
}

}  // namespace mtl
