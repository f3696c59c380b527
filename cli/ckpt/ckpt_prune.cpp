// mtl ckpt prune RUN: deletes what some rules do not keep.
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "runtime/checkpoint/catalog.h"
#include "runtime/find_run.h"
#include "runtime/run_directory.h"

namespace mtl {

int command_ckpt_prune(const Arguments& args) {
  std::string run;
  std::optional<int64_t> last, every, best;
  std::optional<std::string> metric, mode;
  bool dry_run = false, json = false;
  CommandLine line({"ckpt prune [options] RUN"},
                   "Deletes the complete checkpoints of a run that no rule keeps. Rules that are "
                   "not given are those of the run (checkpoint.keep_last ...). The newest one "
                   "stays in any case, and so do those without a complete manifest.");
  line.example("mtl ckpt prune --keep_last 1 --dry_run runs/shakespeare", "what would go");
  line.example("mtl ckpt prune --keep_last 2 --keep_every 1000 RUN", "thin out an old run");
  line.example("mtl ckpt prune --keep_last 1 --keep_best 3 --metric valid_loss RUN",
               "the newest and the three best");
  line.positional("RUN", run, "a run directory, or runs/NAME (its newest run)");
  line.option("keep_last", "N", last, 1, "the newest N stay");
  line.option("keep_every", "STEPS", every, 0, "those of every STEPS-th step stay; 0 = none");
  line.option("keep_best", "K", best, 0, "the K with the best metric stay; 0 = none");
  line.choice("metric", {"valid_loss", "loss"}, metric, "what is compared");
  line.choice("mode", {"min", "max"}, mode, "which value is best");
  line.flag("dry_run", dry_run, "says what would go, and deletes nothing");
  line.flag("json", json, "one JSON document, schema mtl.ckpt-prune/1");
  if (!line.parse(args)) return 0;
  const std::filesystem::path dir = find_run(run);
  KeepRules keep = keep_rules_of_run(dir);
  keep.last = last.value_or(keep.last);
  keep.every = every.value_or(keep.every);
  keep.best = best.value_or(keep.best);
  keep.metric = metric.value_or(keep.metric);
  if (mode) keep.lowest = *mode == "min";
  int64_t bytes = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const CheckpointEntry& entry : prune_run(dir, keep, dry_run)) {
    bytes += entry.bytes;
    list.push_back(to_json(entry));
    if (!json) fmt::print("{}  {}\n", entry.path.string(), size_words(entry.bytes));
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "mtl.ckpt-prune/1"},
                                      {"dry_run", dry_run},
                                      {"bytes", bytes},
                                      {"deleted", std::move(list)}}
                           .dump(2));
  } else {
    fmt::print(stderr, "{} {} in {} checkpoint{}\n", dry_run ? "would free" : "freed",
               size_words(bytes), list.size(), list.size() == 1 ? "" : "s");
  }
  return 0;
}

}  // namespace mtl
