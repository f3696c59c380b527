// mtl ckpt diff A B: what two checkpoints differ in.
#include <cmath>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/jobs/run_of_job.h"
#include "common/error.h"
#include "common/terminal.h"
#include "runtime/checkpoint/compare.h"
#include "runtime/find_run.h"

namespace mtl {

int command_ckpt_diff(const Arguments& args) {
  std::string a, b;
  bool json = false, tensors_only = false;
  CommandLine line({"ckpt diff [options] A B"},
                   "Compares two checkpoints, whatever layouts wrote them: state, extra files, and "
                   "every tensor, element by element. Exits with 1 if they differ.");
  line.example("mtl ckpt diff A B", "and echo $?");
  line.example("mtl ckpt diff --tensors_only A B", "not the state: step, time, metrics");
  line.positional("A", a, "a checkpoint, or a run: its newest");
  line.positional("B", b, "the other");
  line.flag("tensors_only", tensors_only, "compare tensors alone");
  line.flag("json", json, "one JSON document, schema mtl.ckpt-diff/1");
  if (!line.parse(args)) return 0;
  CheckpointDifference difference =
      compare(find_checkpoint(run_of_job(a)), find_checkpoint(run_of_job(b)), !tensors_only);
  if (tensors_only) difference.extras.clear();
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(fmt::format("{}", value));
  };
  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const TensorDifference& tensor : difference.tensors) {
      nlohmann::json row = {{"tensor", tensor.tensor}, {"what", tensor.what}};
      if (tensor.what == "values") {
        row["elements"] = tensor.elements;
        row["max_abs"] = number(tensor.max_abs);
        row["max_rel"] = number(tensor.max_rel);
      }
      list.push_back(std::move(row));
    }
    fmt::print("{}\n", nlohmann::json{{"schema", "mtl.ckpt-diff/1"},
                                      {"equal", difference.none()},
                                      {"equal_tensors", difference.equal_tensors},
                                      {"state", difference.state},
                                      {"extra_files", difference.extras},
                                      {"tensors", std::move(list)}}
                           .dump(2));
    return static_cast<int>(difference.none() ? Exit::done : Exit::run_failed);
  }
  const Terminal terminal = inspect_terminal(STDOUT_FILENO);
  const auto say = [&](const std::string& text) {
    fmt::print("{}\n", terminal.is_tty ? wrap_text(text, terminal.columns, 2, 0) : text);
  };
  for (const nlohmann::json& change : difference.state) {
    fmt::print("state {:<8} {} {}\n", change.at("op").get<std::string>(),
               change.at("path").get<std::string>(),
               change.contains("value") ? change.at("value").dump() : "");
  }
  for (const std::string& name : difference.extras) say(fmt::format("file  {} differs", name));
  for (const TensorDifference& tensor : difference.tensors) {
    if (tensor.what == "values") {
      say(fmt::format("tensor {}: {} elements differ, at most {:.6g} (relative {:.3g})",
                      tensor.tensor, tensor.elements, tensor.max_abs, tensor.max_rel));
    } else if (tensor.what.starts_with("only")) {
      say(fmt::format("tensor {}: {}", tensor.tensor, tensor.what));
    } else {
      say(fmt::format("tensor {}: another {}", tensor.tensor, tensor.what));
    }
  }
  say(fmt::format("{} tensors are equal, {} differ", difference.equal_tensors,
                  difference.tensors.size()));
  return static_cast<int>(difference.none() ? Exit::done : Exit::run_failed);
}

}  // namespace mtl
