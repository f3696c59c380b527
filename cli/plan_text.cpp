#include "cli/plan_text.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "runtime/metrics/format.h"

namespace mtl {

namespace {

std::string flops(double value) {
  constexpr std::array<const char*, 7> kUnits = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}FLOP", value, value < 9.95 ? 2 : 1, kUnits[unit]);
}

const char* word_for(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return "tensor";
    case Axis::cp:
      return "context";
    case Axis::ep:
      return "expert";
    case Axis::dp:
      return "data";
    case Axis::pp:
      return "pipeline";
  }
  return "";
}

std::string count_of(int64_t count, const char* one) {
  return fmt::format("{} {}{}", grouped(count), one, count == 1 ? "" : "s");
}

// "8 ranks = 2 pipeline x 2 data x 2 tensor"; axes of degree 1 are not named.
std::string grid_sentence(const Grid& grid) {
  std::string product;
  for (Axis axis : {Axis::pp, Axis::dp, Axis::ep, Axis::cp, Axis::tp}) {
    if (grid.sizes()[axis] == 1) continue;
    product +=
        fmt::format("{}{} {}", product.empty() ? "" : " x ", grid.sizes()[axis], word_for(axis));
  }
  return count_of(grid.world(), "rank") + (product.empty() ? "" : " = " + product);
}

std::string groups_line(const Grid& grid, Axis axis) {
  constexpr size_t kShown = 6;
  const std::vector<std::vector<int>> groups = grid.groups({axis});
  std::string text;
  for (size_t i = 0; i < std::min(groups.size(), kShown); ++i) {
    text += fmt::format(" [{}]", ranks_text(groups[i]));
  }
  if (groups.size() > kShown) text += fmt::format(" ... {} groups", groups.size());
  return fmt::format("  {:<10}{}\n", word_for(axis), text);
}

int64_t parameters_of_rank(const StagePlan& stage) {
  int64_t parameters = 0;
  for (const ParamPlacement& placement : stage.layout.params) parameters += placement.numel;
  return parameters;
}

// Every rank needs the same: the plan has one layout for all.
std::string memory_table(const MemoryPlan& memory) {
  std::string names;
  std::string numbers;
  const auto column = [&](const char* name, int64_t bytes) {
    names += fmt::format("{:>13}", name);
    numbers += fmt::format("{:>13}", human_bytes(static_cast<double>(bytes)));
  };
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    column(category_name(category), memory.bytes_of_category(category));
  }
  column("total", memory.total_bytes);
  return names + '\n' + numbers + '\n';
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string text;
  size_t pieces = 0;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (++pieces > kShown) return text + " ...";
    if (!text.empty()) text += ' ';
    text += std::to_string(ranks[i]);
    // Two neighbours read better as two numbers.
    if (end - i == 2) text += fmt::format(" {}", ranks[i + 1]);
    if (end - i > 2) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string program_text(const Program& program) {
  constexpr size_t kHead = 14;
  constexpr size_t kTail = 4;
  std::vector<std::string> steps;
  std::string end;
  for (const Instruction& instruction : program) {
    const std::string chunk = instruction.chunk > 0 ? fmt::format(".{}", instruction.chunk) : "";
    if (instruction.op == Op::forward) {
      steps.push_back(fmt::format("F{}{}", instruction.micro_batch, chunk));
    } else if (instruction.op == Op::backward) {
      steps.push_back(fmt::format("B{}{}", instruction.micro_batch, chunk));
    } else if (instruction.op == Op::reduce_grads) {
      end += " reduce";
    } else if (instruction.op == Op::step) {
      end += " step";
    }
  }
  std::string text;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps.size() > kHead + kTail + 1 && i == kHead) {
      text += "... ";
      i = steps.size() - kTail;
    }
    text += steps[i] + ' ';
  }
  return text + '|' + end;
}

std::string plan_text(const Plan& plan) {
  const ModelShape& model = plan.model;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<12}{}\n", name, value);
  };
  std::string vocabulary = fmt::format("vocabulary {}", grouped(model.vocab));
  if (model.padded_vocab != model.vocab) {
    vocabulary += fmt::format(" ({} rows in memory)", grouped(model.padded_vocab));
  }
  line("model", fmt::format("{}, hidden {}, {}, ffn {}, {}", count_of(model.layers, "layer"),
                            model.hidden, count_of(model.heads, "head"), model.ffn, vocabulary));

  const GridSizes& sizes = plan.grid.sizes();
  line("parameters", fmt::format("{} ({}), {} on a rank",
                                 compact_count(static_cast<double>(plan.cost.parameters)),
                                 grouped(plan.cost.parameters), grouped(parameters_of_rank(plan.stages.front()))));
  line("grid", grid_sentence(plan.grid));
  for (Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp}) {
    if (sizes[axis] > 1) text += groups_line(plan.grid, axis);
  }
  const BatchPhase& batch = plan.batch.phases().front();
  line("batch", fmt::format("{} x {} tokens = {} tokens per step; per rank {} of {}",
                            count_of(batch.global_batch, "sequence"), grouped(plan.seq),
                            grouped(batch.global_batch * plan.seq),
                            batch.micro_batches == 1
                                ? "1 micro-batch"
                                : grouped(batch.micro_batches) + " micro-batches",
                            count_of(plan.micro_batch, "sequence")));
  line("compute", fmt::format("{}, {} per token", compute_name(plan.compute),
                              flops(plan.cost.flops_per_token)));
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    text += fmt::format("\nmemory per rank of stage {}\n", stage) +
            memory_table(plan.stages[stage].memory);
  }
  text += "\nschedule of a step (F forward, B backward, by micro-batch)\n";
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    text += fmt::format("  stage {}  {}\n", stage, program_text(plan.largest().programs[stage]));
  }
  return text;
}

}  // namespace mtl
