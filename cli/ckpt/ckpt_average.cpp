// mtl ckpt average A B ... -o DIR: the mean of the weights.
#include <fmt/format.h>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/find_run.h"

namespace mtl {

int command_ckpt_average(const Arguments& args) {
  std::vector<std::string> inputs;
  std::string out;
  CommandLine line({"ckpt average -o DIR CHECKPOINT CHECKPOINT ..."},
                   "Writes the mean of the weights of several checkpoints of one model, summed in "
                   "double precision. The optimizer is left out: the result is for generating, "
                   "evaluating and exporting.");
  line.example("mtl ckpt average -o averaged runs/a/*/checkpoints/step-0000{8,9}000", "");
  line.rest("CHECKPOINT", inputs, "checkpoints, or runs: their newest; at least two");
  line.option("output,o", "DIR", out, "where to; not there yet");
  if (!line.parse(args)) return 0;
  if (out.empty()) fail_missing_option("average", "-o DIR");
  if (inputs.size() < 2) fail_missing_option("average", "at least two checkpoints");
  std::vector<std::filesystem::path> checkpoints;
  for (const std::string& input : inputs) checkpoints.push_back(find_checkpoint(run_of_job(input)));
  average_checkpoints(checkpoints, out);
  fmt::print("{}\n", out);
  return 0;
}

}  // namespace mtl
