// mtl ckpt show CHECKPOINT: what is in one.
#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/ckpt/ckpt.h"
#include "cli/command_line.h"
#include "cli/fitted_table.h"
#include "cli/jobs/run_of_job.h"
#include "common/terminal.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/whole_tensor.h"
#include "runtime/find_run.h"

namespace mtl {

int command_ckpt_show(const Arguments& args) {
  std::string which;
  bool json = false;
  CommandLine line({"ckpt show [--json] CHECKPOINT"},
                   "Prints the state of a checkpoint (step, data, model, metrics) and its tensors "
                   "with type, shape and the parts that they are stored in. Reads the manifest "
                   "only.");
  line.example("mtl ckpt show runs/shakespeare", "the newest of that run");
  line.example("mtl ckpt show --json CHECKPOINT | jq .state.model", "for programs");
  line.positional("CHECKPOINT", which, "checkpoints/step-*, or a run: its newest");
  line.flag("json", json, "one JSON document, schema mtl.ckpt-show/1");
  if (!line.parse(args)) return 0;
  const std::filesystem::path dir = find_checkpoint(run_of_job(which));
  const CheckpointReader reader(dir);
  const std::vector<TensorInfo> tensors = tensors_of(reader);
  if (json) {
    nlohmann::json list = nlohmann::json::object();
    for (const TensorInfo& tensor : tensors) {
      list[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"chunks", tensor.chunks},
                           {"optimizer", tensor.optimizer}};
    }
    fmt::print("{}\n", nlohmann::json{{"schema", "mtl.ckpt-show/1"},
                                      {"checkpoint", dir.string()},
                                      {"state", reader.state()},
                                      {"extra_files", reader.extras()},
                                      {"tensors", std::move(list)}}
                           .dump(2));
    return 0;
  }
  fmt::print("{}\n", dir.string());
  const Terminal terminal = inspect_terminal(STDOUT_FILENO);
  const int width = terminal.is_tty ? terminal.columns : 0;
  constexpr int kMost = 160, kIndent = 15;
  const int most = width > 0 ? std::max(width - kIndent, kIndent) : kMost;
  for (const auto& [key, value] : reader.state().items()) {
    fmt::print("  {:<12} {}\n", key, fit_width(value.dump(), most, terminal.utf8));
  }
  if (!reader.extras().empty()) {
    fmt::print("  {:<12} {}\n", "files", fmt::join(reader.extras(), ", "));
  }
  FittedTable table({{.title = "tensor"},
                     {.title = "dtype", .goes = 2},
                     {.title = "shape"},
                     {.title = "parts", .goes = 1, .right = true}});
  int64_t elements = 0;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.optimizer) elements += tensor.elements;
    table.add({tensor.name, tensor.dtype, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
               fmt::format("{}", tensor.chunks)});
  }
  fmt::print("\n{}", table.text(width, terminal.utf8));
  fmt::print("{} tensors; the model has {} parameters\n", tensors.size(), elements);
  return 0;
}

}  // namespace mtl
