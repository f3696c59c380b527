// mtl ckpt verify CHECKPOINT | RUN: reads every byte.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "runtime/checkpoint/catalog.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/find_run.h"

namespace mtl {

namespace {

struct Verified {
  std::filesystem::path path;
  std::vector<Diagnostic> damage;
  bool gone = false;
};

Verified verify_one(const std::filesystem::path& dir) {
  Verified verdict{dir, {}};
  try {
    verdict.damage = CheckpointReader(dir).find_damage().all();
  } catch (const Error& error) {
    if (error.exit() == Exit::environment) throw;  // nothing is known of it
    verdict.damage = error.diagnostics();
  }
  // A run that is under way deletes what its rules do not keep.
  verdict.gone = !std::filesystem::exists(dir);
  return verdict;
}

}  // namespace

int command_ckpt_verify(const Arguments& args) {
  std::string which;
  bool json = false;
  CommandLine line({"ckpt verify [--json] CHECKPOINT | RUN"},
                   "Reads every byte of a checkpoint, or of all complete ones of a run, and "
                   "compares it with the hashes of the manifest. Names each damaged file and "
                   "tensor; exits with 6 if there is one, or no checkpoint at all.");
  line.example("mtl ckpt verify runs/shakespeare", "all checkpoints of the newest run");
  line.example("mtl ckpt verify runs/shakespeare/*/checkpoints/step-00001000", "one");
  line.positional("CHECKPOINT | RUN", which, "checkpoints/step-*, a run directory, or runs/NAME");
  line.flag("json", json, "one JSON document, schema mtl.ckpt-verify/1");
  if (!line.parse(args)) return 0;
  const std::filesystem::path dir = find_run(run_of_job(which));
  std::vector<Verified> verdicts;
  if (std::filesystem::exists(dir / "manifest.json")) {
    verdicts.push_back(verify_one(dir));
  } else {
    for (const CheckpointEntry& entry : list_run(dir, {})) {
      if (entry.status == "unfinished") {
        fmt::print(stderr, "passed over {}: {}\n", entry.path.string(), entry.reason);
      } else {
        verdicts.push_back(verify_one(entry.path));
      }
    }
  }
  bool damaged = false;
  nlohmann::json list = nlohmann::json::array();
  for (const Verified& verdict : verdicts) {
    if (verdict.gone) {
      fmt::print(stderr, "passed over {}: deleted meanwhile\n", verdict.path.string());
      continue;
    }
    damaged = damaged || !verdict.damage.empty();
    nlohmann::json problems = nlohmann::json::array();
    for (const Diagnostic& problem : verdict.damage) {
      problems.push_back({{"code", problem.code}, {"what", problem.what}});
      if (!json) fmt::print(stderr, "{}", render(problem));
    }
    if (!json) {
      fmt::print(
          "{}  {}\n", verdict.path.string(),
          verdict.damage.empty() ? "intact" : fmt::format("{} damaged", verdict.damage.size()));
    }
    list.push_back({{"path", verdict.path.string()},
                    {"intact", verdict.damage.empty()},
                    {"problems", std::move(problems)}});
  }
  const bool none = list.empty();
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "mtl.ckpt-verify/1"},
                                      {"intact", !damaged && !none},
                                      {"checkpoints", std::move(list)}}
                           .dump(2));
  }
  if (none) fmt::print(stderr, "{} has no complete checkpoint\n", dir.string());
  return static_cast<int>(damaged || none ? Exit::data : Exit::done);
}

}  // namespace mtl
