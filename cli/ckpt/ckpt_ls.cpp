// mtl ckpt ls RUN: the checkpoints of a run.
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/fitted_table.h"
#include "cli/jobs/run_of_job.h"
#include "common/terminal.h"
#include "runtime/checkpoint/catalog.h"
#include "runtime/find_run.h"
#include "runtime/run_directory.h"

namespace mtl {

namespace {

std::string text_of(const nlohmann::json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : "-";
}

std::string loss_of(const nlohmann::json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_number() ? fmt::format("{:.4f}", found->get<double>())
                                                    : "-";
}

}  // namespace

int command_ckpt_ls(const Arguments& args) {
  std::string run;
  bool json = false;
  CommandLine line({"ckpt ls [--json] RUN"},
                   "Lists the checkpoints of a run, newest first: when it was written, its size, "
                   "the layout of the ranks that wrote it, its losses, whether it is complete, and "
                   "which of the run's rules keep it. Reads manifests only; mtl ckpt verify reads "
                   "everything.");
  line.example("mtl ckpt ls runs/shakespeare", "the newest run of that name");
  line.example("mtl ckpt ls --json RUN | jq '.checkpoints[0].step'", "for programs");
  line.positional("RUN", run, "a run directory, runs/NAME (its newest run), or an ID of mtl ps");
  line.flag("json", json, "one JSON document, schema mtl.ckpt-ls/1");
  if (!line.parse(args)) return 0;
  const std::filesystem::path dir = find_run(run_of_job(run));
  const std::vector<CheckpointEntry> entries = list_run(dir, keep_rules_of_run(dir));
  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const CheckpointEntry& entry : entries) list.push_back(to_json(entry));
    fmt::print("{}\n", nlohmann::json{{"schema", "mtl.ckpt-ls/1"},
                                      {"run", dir.string()},
                                      {"checkpoints", std::move(list)}}
                           .dump(2));
    return 0;
  }
  FittedTable table({{.title = "step", .right = true},
                     {.title = "written", .goes = 3},
                     {.title = "size", .goes = 4, .right = true},
                     {.title = "layout", .goes = 1},
                     {.title = "loss", .goes = 2},
                     {.title = "valid", .goes = 5},
                     {.title = "status"},
                     {.title = "kept by"}});
  for (const CheckpointEntry& entry : entries) {
    const nlohmann::json facts = to_json(entry);
    std::vector<std::string> why;
    if (const auto kept = facts.find("kept_by"); kept != facts.end()) {
      why = kept->get<std::vector<std::string>>();
    }
    if (entry.latest) why.emplace_back("(latest)");
    if (entry.best) why.emplace_back("(best)");
    table.add({fmt::format("{}", entry.step), text_of(facts, "time"), size_words(entry.bytes),
               layout_words(entry.state), loss_of(facts, "loss"), loss_of(facts, "valid_loss"),
               entry.status,
               entry.reason.empty() ? fmt::format("{}", fmt::join(why, " ")) : entry.reason});
  }
  const Terminal terminal = inspect_terminal(STDOUT_FILENO);
  if (!entries.empty()) {
    fmt::print("{}", table.text(terminal.is_tty ? terminal.columns : 0, terminal.utf8));
  }
  if (entries.empty()) fmt::print(stderr, "{} has no checkpoints\n", dir.string());
  return 0;
}

}  // namespace mtl
