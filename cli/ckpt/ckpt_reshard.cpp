// mtl ckpt reshard CHECKPOINT -o DIR: the same checkpoint in other files.
#include <fmt/format.h>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/find_run.h"

namespace mtl {

int command_ckpt_reshard(const Arguments& args) {
  std::string which, out;
  std::optional<int64_t> tp, pp, dp, shards;
  CommandLine line({"ckpt reshard [options] CHECKPOINT -o DIR"},
                   "Rewrites a checkpoint into the files that another layout would write, "
                   "optimizer and state included. Training and every command here load any "
                   "checkpoint into any layout, so this is for programs of others, and for a "
                   "faster start of large jobs.");
  line.example("mtl ckpt reshard RUN -o one --shards 1", "all in two files");
  line.example("mtl ckpt reshard CHECKPOINT -o wide --tp 4 --pp 2", "one pair per rank");
  line.positional("CHECKPOINT", which, "checkpoints/step-*, or a run: its newest");
  line.option("output,o", "DIR", out, "where to; not there yet");
  line.option("tp", "N", tp, 1, "tensor-parallel ranks", "1");
  line.option("pp", "N", pp, 1, "pipeline stages", "1");
  line.option("dp", "N", dp, 1, "replicas that take turns", "1");
  line.option("shards", "N", shards, 1, "instead: so many files of nearly the same size");
  if (!line.parse(args)) return 0;
  if (out.empty()) fail_missing_option("reshard", "-o DIR");
  constexpr int64_t kMost = 65536;
  if (shards && (tp || pp || dp)) {
    throw Error(Exit::usage, {.code = "usage.extra",
                              .what = "--shards goes without --tp, --pp and --dp",
                              .help = "give one or the other"});
  }
  for (const auto& degree : {tp, pp, dp, shards}) {
    if (degree.value_or(1) <= kMost) continue;
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = fmt::format("{} is too many", *degree),
                              .help = fmt::format("give at most {}", kMost)});
  }
  reshard_checkpoint(find_checkpoint(run_of_job(which)),
                     {.tp = static_cast<int>(tp.value_or(1)),
                      .pp = static_cast<int>(pp.value_or(1)),
                      .dp = static_cast<int>(dp.value_or(1)),
                      .shards = static_cast<int>(shards.value_or(0))},
                     out);
  fmt::print("{}\n", out);
  return 0;
}

}  // namespace mtl
