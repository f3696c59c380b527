#include "cli/plan/plan_text.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "cli/plan/plan_tables.h"
#include "cli/plan/plan_words.h"
#include "common/terminal.h"
#include "runtime/metrics/format.h"
#include "runtime/plan/schedule/schedule_drawing.h"

namespace mtl {

namespace {

constexpr int kNameWidth = 12;

std::string flops(double value) {
  constexpr std::array<const char*, 7> kUnits = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}FLOP", value, value < 9.95 ? 2 : 1, kUnits[unit]);
}

// Name and value, the value filled into lines under each other.
std::string fact(const char* name, const std::string& value, int columns) {
  return fmt::format("{:<{}}{}\n", name, kNameWidth,
                     wrap_text(value, columns, kNameWidth, kNameWidth));
}

std::string batch_words(const Plan& plan) {
  const BatchPhase& batch = plan.batch.phases().front();
  return fmt::format("{} x {} tokens = {} tokens per step; per rank {} of {}",
                     count_of(batch.global_batch, "sequence"), grouped(plan.seq),
                     grouped(batch.global_batch * plan.seq),
                     count_of(batch.micro_batches, "micro-batch"),
                     count_of(plan.micro_batch, "sequence"));
}

// The drawing; of a deep pipeline the first and the last stages.
std::string drawing(const StepSchedule& step, int columns) {
  constexpr size_t kMostLines = 20, kFirstLines = 14, kLastLines = 4;
  const std::string whole = schedule_text(step.shape, step.facts, columns - 2);
  std::vector<std::string_view> lines;
  for (std::string_view rest = whole; !rest.empty();) {
    const size_t end = rest.find('\n');
    lines.push_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  const size_t stages = lines.size() - 1;  // the last line is the legend
  std::string text;
  bool cut = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (stages > kMostLines && i == kFirstLines) {
      text += fmt::format("  ... {} more\n", stages - kFirstLines - kLastLines);
      i = stages - kLastLines;
      cut = true;
    }
    cut = cut || lines[i].ends_with(" ...");
    text += fmt::format("  {}\n", lines[i]);
  }
  return text + (cut ? "  ... goes on; all of it as a picture: --svg FILE\n" : "");
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

std::string plan_text(const Plan& plan, int columns, const BesideSteps& beside) {
  columns = std::max(columns, 80);
  const GridSizes& sizes = plan.grid.sizes();
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fact(name, value, columns);
  };
  line("model", model_words(plan.model));
  line("", blocks_words(plan.model));
  const auto count = [](int64_t parameters) {
    return fmt::format("{} ({})", compact_count(static_cast<double>(parameters)),
                       grouped(parameters));
  };
  std::string parameters = count(plan.cost.parameters);
  if (plan.model.lora) parameters += "; trained " + count(plan.cost.trained);
  if (plan.model.experts > 0) parameters += "; active " + count(plan.cost.active_parameters);
  line("parameters", parameters);
  line("grid", grid_words(plan.grid));
  text += group_lines(plan.grid, columns);
  if (sizes[Axis::tp] * sizes[Axis::cp] > 1) line("sequence", sequence_words(plan));
  if (sizes[Axis::ep] > 1) line("experts", expert_words(plan));

  const std::string steps = count_of(plan.steps, "step");
  const std::vector<BatchPhase>& phases = plan.batch.phases();
  if (phases.size() == 1) {
    line("batch", fmt::format("{}; {}", batch_words(plan), steps));
  } else {
    line("batch", fmt::format("{} tokens per sequence, {} per micro-batch; {}", grouped(plan.seq),
                              count_of(plan.micro_batch, "sequence"), steps));
    text += phase_table(plan);
  }
  if (const std::string words = beside_words(plan, beside); !words.empty()) line("beside", words);
  line("precision", precision_words(plan));
  line("optimizer", optimizer_words(plan));
  if (plan.grid.data_ranks() > 1) line("gradients", bucket_words(plan));
  line("recompute", recompute_words(plan.recompute));
  line("compute", fmt::format("{} per token", flops(plan.cost.flops_per_token)));

  text += "\nlayers and parameters on a rank\n" + layer_table(plan, columns);
  text += "\nmemory of a rank\n" + memory_table(plan) + gpu_line(plan) + host_lines(plan);
  if (plan.grid.world() > 1) {
    text += fmt::format("  all ranks together: {}\n",
                        human_bytes(static_cast<double>(plan.total_bytes())));
    text += fmt::format("\nbytes of a rank in {} step: payload by operation, and what rings send\n",
                        phases.size() > 1 ? "the largest" : "a") +
            link_table(plan, columns);
  }
  const StepSchedule& step = plan.largest();
  std::string schedule =
      fmt::format("schedule of {} step: {}", phases.size() > 1 ? "the largest" : "a",
                  schedule_words(step.shape));
  if (step.shape.stages > 1) {
    schedule += fmt::format("; bubble {:.1f} % of the work", 100 * step.facts.bubble);
  }
  text += '\n' + wrap_text(schedule, columns, 2, 0) + '\n';
  return text + drawing(step, columns);
}

}  // namespace mtl
