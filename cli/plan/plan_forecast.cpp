#include "cli/plan/plan_forecast.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/plan/plan_words.h"
#include "common/error.h"
#include "common/terminal.h"
#include "runtime/metrics/format.h"
#include "runtime/plan/forecast/least_recompute.h"

namespace mtl {

namespace {

constexpr int kFactWidth = 10;

std::string indented_fact(const char* name, const std::string& value, int columns) {
  return fmt::format("  {:<{}}{}\n", name, kFactWidth,
                     wrap_text(value, columns, kFactWidth + 2, kFactWidth + 2));
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return seconds < 1000 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string machines(const Cluster& cluster, int world) {
  const int nodes = (world + cluster.gpus_per_node - 1) / cluster.gpus_per_node;
  return fmt::format("{} x {} ({})", grouped(world), cluster.title, count_of(nodes, "node"));
}

std::string mfu_words(const Forecast& one) {
  std::string text = fmt::format("MFU {:.1f} % ({:.1f} % with attention counted whole",
                                 100 * one.mfu, 100 * one.mfu_full);
  if (one.hfu > 1.001 * one.mfu_full) {
    text += fmt::format(", {:.1f} % with recompute", 100 * one.hfu);
  }
  return text + ')';
}

// As GPUs are sold; small models in what reads better.
std::string gb(double bytes) {
  return bytes < 1e8 ? human_bytes(bytes) : fmt::format("{:.1f} GB", bytes / 1e9);
}

// Of a short run, too, not 0.
std::string hours(double count) {
  return count < 9.95 ? fmt::format("{:.2g}", count) : compact_count(count);
}

constexpr double kLeastPart = 5e-4;  // what is less is not worth a word

struct Named {
  const char* name;
  double value;
};

std::string shares(const std::vector<Named>& parts, double total) {
  std::vector<std::string> words;
  for (const Named& part : parts) {
    if (part.value < kLeastPart * total) continue;
    words.push_back(fmt::format("{} {:.1f} %", part.name, 100 * part.value / total));
  }
  return words.empty() ? "nothing" : fmt::format("{}", fmt::join(words, ", "));
}

// As it is given to a command.
std::string recompute_settings(const Recompute& recompute) {
  if (recompute.full == Recompute::Full::none) {
    return fmt::format("recompute.mode=selective 'recompute.modules={}'", modules_of(recompute));
  }
  return recompute.full == Recompute::Full::uniform
             ? "recompute.mode=full"
             : fmt::format("recompute.mode=full recompute.method=block recompute.layers={}",
                           recompute.layers);
}

// What makes a layout fit that does not.
std::string cure(const Workload& work, const Forecast& one, const Cluster& cluster) {
  LayoutChoice layout = one.layout;
  const std::optional<Recompute> least = least_recompute(work, layout, cluster);
  const char* const others = "mtl plan --tune looks at other layouts";
  if (!least) return fmt::format("no recompute makes it fit; {}", others);
  layout.recompute = *least;
  const double more = forecast(work, layout, cluster).time.total / one.time.total - 1;
  return fmt::format("{}: {:.1f} % {}; {}", recompute_settings(*least), 100 * std::abs(more),
                     more < 0 ? "faster" : "slower", others);
}

}  // namespace

std::string forecast_text(const Workload& work, const Forecast& one, const Cluster& cluster,
                          int columns) {
  columns = std::max(columns, 80);
  const StepTime& time = one.time;
  std::string text = fmt::format("\nforecast on {}\n", machines(cluster, one.layout.world()));
  const auto line = [&](const char* name, const std::string& value) {
    text += indented_fact(name, value, columns);
  };
  const double tokens = static_cast<double>(work.global_batch * work.seq);
  line("step", fmt::format("{} for {} tokens: {} tokens/s, {} per {}; {}", seconds_text(time.total),
                           compact_count(tokens), compact_count(one.tokens_per_s),
                           grouped(static_cast<int64_t>(one.tokens_per_s_gpu)),
                           cluster.cpu ? "rank" : "GPU", mfu_words(one)));
  if (const std::optional<Forecast> theirs = forecast_at_scale(work, one.layout, cluster)) {
    line("at scale", fmt::format("{}, MFU {:.1f} %, if kernels reach no more on many of these GPUs "
                                 "than others report of theirs",
                                 seconds_text(theirs->time.total), 100 * theirs->mfu));
  }
  line("computes", shares({{"matrix products", time.matmul},
                           {"attention", time.attention},
                           {"element-wise", time.memory_bound},
                           {"recompute", time.recompute},
                           {"optimizer", time.optimizer}},
                          time.total));
  line("waits", shares({{"bubble", time.bubble},
                        {"tensor", time.tensor},
                        {"context", time.context},
                        {"expert", time.expert},
                        {"pipeline messages", time.pipeline},
                        {"data", time.data}},
                       time.total));
  const MemoryForecast& memory = one.memory;
  std::string needs =
      fmt::format("{} on the fullest rank (stage {}): ", gb(memory.total), memory.stage);
  needs += fmt::format("weights {}, gradients {}, optimizer {}, activations {}, scratch {}",
                       gb(memory.weights), gb(memory.gradients), gb(memory.optimizer),
                       gb(memory.activations), gb(memory.scratch));
  if (memory.on_host > 0) {
    needs += fmt::format("; on the host {} of the optimizer", gb(memory.on_host));
  }
  if (memory.nccl > 0) needs += fmt::format("; beside it NCCL's, about {}", gb(memory.nccl));
  if (std::isfinite(usable_memory(cluster))) {
    needs +=
        fmt::format("; {} into {}", one.fits ? "fits" : "DOES NOT FIT", gb(usable_memory(cluster)));
  }
  line("memory", needs);
  if (!one.fits) line("to fit", cure(work, one, cluster));
  const LinkForecast& links = one.links;
  const double all = links.tensor + links.context + links.expert + links.pipeline + links.data;
  if (all > 0) {
    std::vector<std::string> words;
    for (const Named& part : {Named{"tensor", links.tensor}, Named{"context", links.context},
                              Named{"expert", links.expert}, Named{"pipeline", links.pipeline},
                              Named{"data", links.data}}) {
      if (part.value > 0) words.push_back(fmt::format("{} {}", part.name, human_bytes(part.value)));
    }
    line("sends", fmt::format("{} per rank and step", fmt::join(words, ", ")));
  }
  if (work.total_tokens > 0) {
    const RunSeconds& run = one.run;
    std::string words = fmt::format("{} tokens: {}, {} {}-hours", compact_count(work.total_tokens),
                                    compact_duration(86400 * one.days), hours(one.gpu_hours),
                                    cluster.cpu ? "rank" : "GPU");
    if (run.steps < (1 - kLeastPart) * run.total()) {
      const Occasions often = occasions(work.beside, 1, time.total);
      words += "; " + shares({{"steps", run.steps},
                              {"evaluations", run.evaluations},
                              {"texts at them", run.texts},
                              {"checkpoints", run.saves}},
                             run.total());
      words += fmt::format(" ({}, {})", count_of(often.evaluations, "evaluation"),
                           count_of(often.saves + 1, "checkpoint"));
      if (run.saves > kLeastPart * run.total()) {
        words += fmt::format("; files written at {}/s per node", gb(cluster.file_rate));
      }
    }
    line("the run", words);
  }
  if (!one.not_run.empty()) {
    line("note", fmt::format("not run by this engine yet: {}", fmt::join(one.not_run, ", ")));
  }
  return text;
}

std::string tuning_text(const Tuning& tuning, const Forecast* given, const Cluster& cluster,
                        int gpus, int columns) {
  columns = std::max(columns, 80);
  std::string text =
      fmt::format("layouts for {}: {} looked at, {} too large\n", machines(cluster, gpus),
                  grouped(tuning.considered), grouped(tuning.too_large));
  const auto row = [&](const std::string& name, const Forecast& one, const std::string& why) {
    text +=
        fmt::format("  {:<6}", name) + wrap_text(layout_words(one.layout), columns, 8, 8) + '\n';
    std::string numbers =
        fmt::format("{} per step, {} tokens/s, MFU {:.1f} %, {}", seconds_text(one.time.total),
                    compact_count(one.tokens_per_s), 100 * one.mfu, gb(one.memory.total));
    if (!one.not_run.empty()) {
      numbers += fmt::format("; not run by this engine yet: {}", fmt::join(one.not_run, ", "));
    }
    text += "        " + wrap_text(numbers, columns, 8, 8) + '\n';
    if (!why.empty()) text += "        " + wrap_text(why, columns, 8, 8) + '\n';
  };
  // Such as one with uneven stages, which are not searched.
  const bool yours_wins = given != nullptr && given->fits && !tuning.best.empty() &&
                          given->time.total < tuning.best.front().forecast.time.total;
  int place = 0;
  for (const Advice& advice : tuning.best) {
    const std::string but =
        yours_wins && place == 0 ? "of those looked at, yours being faster; " : "";
    row(fmt::format("{}.", ++place), advice.forecast, but + advice.why);
  }
  if (tuning.best.empty() && tuning.considered == 0 && !tuning.left_out.empty()) {
    text += "  " +
            wrap_text(fmt::format("nothing that this engine runs: it does not run {}",
                                  fmt::join(tuning.left_out, ", ")),
                      columns, 2, 2) +
            '\n';
  } else if (tuning.best.empty() && !tuning.indivisible.empty()) {
    text += "  " +
            wrap_text(
                fmt::format("nothing divides; with data parallelism alone: {}", tuning.indivisible),
                columns, 2, 2) +
            '\n';
  } else if (tuning.best.empty()) {
    text += "  nothing fits\n";
  }
  if (tuning.run_here) row("runs", tuning.run_here->forecast, tuning.run_here->why);
  if (tuning.if_it_fitted) {
    row(tuning.best.empty() ? "least" : "but", tuning.if_it_fitted->forecast,
        tuning.best.empty() ? tuning.if_it_fitted->why
                            : fmt::format("would be faster, and {}", tuning.if_it_fitted->why));
  }
  if (tuning.offloaded) row("host", tuning.offloaded->forecast, tuning.offloaded->why);
  if (given != nullptr) {
    row("yours", *given,
        tuning.best.empty() ? verdict(*given, *given, cluster)
                            : verdict(*given, tuning.best.front().forecast, cluster));
  }
  return text;
}

std::string simulation_text(const ClusterStep& step, const Goodput& goodput,
                            const Failures& failures, const Stragglers& stragglers, int columns) {
  columns = std::max(columns, 80);
  std::string text = fmt::format("\nsimulated step of {}\n", count_of(step.gpus, "GPU"));
  const auto line = [&](const char* name, const std::string& value) {
    text += indented_fact(name, value, columns);
  };
  std::string took = seconds_text(step.seconds);
  if (!stragglers.ranks.empty() || stragglers.jitter > 0) {
    took += fmt::format(", {} without slow ranks: {:.1f} % more; the last to finish is replica {}",
                        seconds_text(step.even_seconds),
                        100 * (step.seconds / step.even_seconds - 1), step.slowest_replica);
  }
  line("step", took);
  const std::string differ = step.replicas_run == 1 ? std::string("all replicas are alike")
                                                    : fmt::format("{} of {} replicas differ",
                                                                  step.replicas_run, step.replicas);
  line("events",
       fmt::format("{} passes, messages and reductions; {}", grouped(step.events), differ));
  const auto [least, most] = std::minmax_element(step.idle.begin(), step.idle.end());
  line("idle", fmt::format("{:.1f} % of the step on the busiest stage, {:.1f} % on stage {}",
                           100 * *least, 100 * *most, most - step.idle.begin()));
  line("failures",
       fmt::format("one in {} ({} GPU-hours between them)", compact_duration(goodput.mtbf_s),
                   compact_count(failures.mtbf_hours)));
  line(
      "goodput",
      fmt::format("{:.1f} % with a checkpoint every {} = {} (each stops training for {}, a restart "
                  "takes {})",
                  100 * goodput.expected, count_of(goodput.interval_steps, "step"),
                  compact_duration(goodput.interval_s), seconds_text(failures.checkpoint_s),
                  seconds_text(failures.restart_s)));
  if (goodput.failures > 0) {
    line("", fmt::format("one run drawn: {}, {}, {:.1f} % of the time makes progress",
                         count_of(goodput.failures, "failure"), compact_duration(goodput.wall_s),
                         100 * goodput.simulated));
  }
  return text;
}

namespace {

constexpr double kMostSlower = 1e6;

}  // namespace

Stragglers parse_stragglers(const std::string& text, int world) {
  Stragglers stragglers;
  const auto fail = [&](std::string_view piece) {
    throw Error(Exit::usage,
                Diagnostic{.code = "usage.value",
                           .what = fmt::format("--straggler wants RANK:FACTOR, and '{}' is not one "
                                               "of 0..{} and a factor above 0, up to {}",
                                               piece, world - 1, kMostSlower),
                           .help = "such as --straggler 37:1.2,90:1.5"});
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view piece = std::string_view(text).substr(at, end - at);
    at = end + 1;
    int rank = -1;
    double factor = 0;
    const size_t colon = piece.find(':');
    if (colon == std::string_view::npos) fail(piece);
    const char* last = piece.data() + colon;
    const char* stop = piece.data() + piece.size();
    const auto first = std::from_chars(piece.data(), last, rank);
    const auto second = std::from_chars(last + 1, stop, factor);
    if (first.ec != std::errc() || first.ptr != last || second.ec != std::errc() ||
        second.ptr != stop || rank < 0 || rank >= world || !(factor > 0 && factor <= kMostSlower)) {
      fail(piece);
    }
    stragglers.ranks.emplace_back(rank, factor);
  }
  return stragglers;
}

}  // namespace mtl
