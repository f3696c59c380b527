#include "cli/plan/plan_tables.h"

#include <algorithm>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/plan/plan_text.h"
#include "cli/plan/plan_words.h"
#include "common/terminal.h"
#include "runtime/metrics/format.h"
#include "runtime/plan/memory/gpu_memory.h"

namespace mtl {

namespace {

// Of a longer table the first and the last rows are shown.
constexpr size_t kMostRows = 20, kHead = 14, kTail = 4;

std::string bytes_text(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

std::string bytes_or_dash(int64_t bytes) {
  return bytes == 0 ? "-" : bytes_text(bytes);
}

struct Row {
  std::string name;  // what the row is for: a number, or a range of them
  std::string text;
};

std::string with_middle_left_out(const std::vector<Row>& rows, size_t name_width) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows.size() > kMostRows && i == kHead) {
      const size_t left_out = rows.size() - kHead - kTail;
      text += fmt::format("  {:>{}}  {} more\n", "...", name_width, left_out);
      i += left_out;
    }
    text += fmt::format("  {:>{}}  {}\n", rows[i].name, name_width, rows[i].text);
  }
  return text;
}

// Rows of the stages; neighbours that say the same become one row.
std::vector<Row> stage_rows(size_t stages, const std::function<std::string(size_t)>& text_of) {
  std::vector<Row> rows;
  size_t first = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    std::string text = text_of(stage);
    if (stage > first && text == rows.back().text) {
      rows.back().name = fmt::format("{}-{}", first, stage);
      continue;
    }
    first = stage;
    rows.push_back({std::to_string(stage), std::move(text)});
  }
  return rows;
}

constexpr size_t kStageWidth = 7;

std::string stage_table(const std::string& header, size_t stages,
                        const std::function<std::string(size_t)>& text_of) {
  return fmt::format("  {:>{}}  {}\n", "stage", kStageWidth, header) +
         with_middle_left_out(stage_rows(stages, text_of), kStageWidth);
}

std::string chunk_text(const ChunkRange& chunk) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  if (chunk.embedding) add("embedding");
  if (chunk.layers == 1) add(std::to_string(chunk.first_layer));
  if (chunk.layers > 1) add(fmt::format("{}-{}", chunk.first_layer, chunk.end_layer() - 1));
  if (chunk.head) add("head");
  return text.empty() ? "nothing" : text;
}

// As many of the chunks as fit.
std::string chunks_text(const std::vector<ChunkRange>& chunks, size_t width) {
  std::string text;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::string piece = (i == 0 ? "" : " | ") + chunk_text(chunks[i]);
    const bool last = i + 1 == chunks.size();
    if (text.size() + piece.size() + (last ? 0 : 4) > width) return text + " ...";
    text += piece;
  }
  return text;
}

int64_t parameters_of_rank(const StagePlan& stage) {
  int64_t parameters = 0;
  for (const ParamLayout* layout : {&stage.layout, &stage.frozen}) {
    for (const ParamPlacement& placement : layout->params) parameters += placement.numel;
  }
  return parameters;
}

}  // namespace

std::string group_lines(const Grid& grid, int columns) {
  std::string text;
  for (Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp}) {
    if (grid.sizes()[axis] == 1) continue;
    const int groups = grid.world() / grid.sizes()[axis];
    const std::string more = fmt::format(" ... {} groups", grouped(groups));
    std::string line = fmt::format("  {:<10}", axis_word(axis));
    int shown = 0;
    // Groups in the order of their first ranks, which are those with position 0.
    for (int rank = 0; rank < grid.world() && shown < groups; ++rank) {
      if (grid.coord(rank)[axis] != 0) continue;
      const std::string piece = fmt::format(" [{}]", ranks_text(grid.group(rank, {axis})));
      const size_t reserve = shown + 1 == groups ? 0 : more.size();
      if (shown > 0 && line.size() + piece.size() + reserve > static_cast<size_t>(columns)) break;
      line += piece;
      ++shown;
    }
    text += line + (shown < groups ? more : "") + '\n';
  }
  return text;
}

std::string phase_table(const Plan& plan) {
  std::vector<Row> rows;
  for (const BatchPhase& phase : plan.batch.phases()) {
    const double bubble = plan.schedules.at(phase.micro_batches).facts.bubble;
    rows.push_back(
        {grouped(phase.first_step),
         fmt::format("{:>12}  {:>14}  {:>22}{}", grouped(phase.global_batch),
                     grouped(phase.global_batch * plan.seq), grouped(phase.micro_batches),
                     plan.stages.size() > 1 ? fmt::format("  {:>6.1f} %", 100 * bubble) : "")});
  }
  return fmt::format("  {:>12}  {:>12}  {:>14}  {:>22}{}\n", "from step", "sequences", "tokens",
                     "micro-batches per rank", plan.stages.size() > 1 ? "    bubble" : "") +
         with_middle_left_out(rows, 12);
}

std::string layer_table(const Plan& plan, int columns) {
  // Of ZB-H1 what backward leaves for the products that give gradients of weights.
  const bool leaves = plan.largest().shape.weights_later;
  const size_t numbers = 2 + 14 + 2 + 14 + (leaves ? 2 + 14 : 0);
  const size_t width = static_cast<size_t>(columns) - 2 - kStageWidth - 2 - numbers;
  size_t used = std::string_view("layers").size();
  for (const StagePlan& stage : plan.stages) {
    used = std::max(used, chunks_text(stage.chunks, width).size());
  }
  const auto row = [&](const std::string& layers, const std::string& parameters,
                       const std::string& kept, const std::string& later) {
    std::string text = fmt::format("{:<{}}  {:>14}  {:>14}", layers, used, parameters, kept);
    if (leaves) text += fmt::format("  {:>14}", later);
    return text;
  };
  return stage_table(
      row(plan.stages.front().chunks.size() > 1 ? "layers by chunk" : "layers", "parameters",
          "backward keeps", "left for later"),
      plan.stages.size(), [&](size_t at) {
        const StagePlan& stage = plan.stages[at];
        const MemoryPlan& memory = stage.memory;
        const auto slots = [](int64_t count, int64_t bytes) {
          return fmt::format("{} x {}", count, bytes_text(bytes));
        };
        const std::string later =
            memory.later_slots > 0 ? slots(memory.later_slots, memory.later_bytes) : "";
        return row(chunks_text(stage.chunks, width), grouped(parameters_of_rank(stage)),
                   slots(memory.slots, memory.slot_bytes), later);
      });
}

std::string memory_table(const Plan& plan) {
  std::string header;
  for (int i = 0; i < kMemoryCategories; ++i) {
    header += fmt::format("{:>{}}", category_name(static_cast<MemoryCategory>(i)), i == 0 ? 9 : 12);
  }
  header += fmt::format("{:>11}", "total");
  return stage_table(header, plan.stages.size(), [&](size_t at) {
    const MemoryPlan& memory = plan.stages[at].memory;
    std::string text;
    for (int i = 0; i < kMemoryCategories; ++i) {
      text += fmt::format("{:>{}}",
                          bytes_text(memory.bytes_of_category(static_cast<MemoryCategory>(i))),
                          i == 0 ? 9 : 12);
    }
    return text + fmt::format("{:>11}", bytes_text(memory.total_bytes));
  });
}

std::string host_lines(const Plan& plan) {
  int64_t state = 0, copy = 0;
  for (const StagePlan& stage : plan.stages) {
    state = std::max(state, stage.memory.host_bytes);
    copy = std::max(copy, stage.snapshot_bytes);
  }
  const auto line = [](int64_t bytes, const char* what) {
    return bytes == 0 ? std::string()
                      : fmt::format("  and {} of the host for {}\n",
                                    human_bytes(static_cast<double>(bytes)), what);
  };
  return line(state, "the optimizer's state (optimizer.offload)") +
         line(copy, "the copy of a checkpoint (checkpoint.async)");
}

std::string gpu_line(const Plan& plan) {
  const auto most = [&](bool hopper) {
    int64_t bytes = 0;
    for (const StagePlan& stage : plan.stages) {
      bytes = std::max(bytes, gpu_memory(stage.kernels, hopper).total());
    }
    return human_bytes(static_cast<double>(bytes));
  };
  std::string text = fmt::format("  beside it on a GPU: {} for kernels and products", most(false));
  if (most(true) != most(false)) text += fmt::format(", on Hopper {}", most(true));
  int64_t messages = 0;
  for (const StagePlan& stage : plan.stages) {
    messages = std::max(messages, message_memory(plan, stage));
  }
  if (messages > 0) {
    text += fmt::format("; {} for messages", human_bytes(static_cast<double>(messages)));
  }
  return text + '\n';
}

std::string link_table(const Plan& plan, int columns) {
  std::string text =
      fmt::format("  {:<11}{:>6}{:>8}{:>11}{:>10}{:>10}{:>10}{:>10}\n", "link", "ranks", "stage",
                  "all-reduce", "scatter", "gather", "send", "on wire");
  std::vector<std::string> totals;
  double total = 0;
  for (int i = 0; i < kLinks; ++i) {
    const auto link = static_cast<Link>(i);
    const int ranks = link_ranks(link, plan.model, plan.grid.sizes());
    double of_link = 0;
    for (const StagePlan& stage : plan.stages) {
      of_link += static_cast<double>(stage.traffic[link].on_the_wire(ranks));
    }
    if (of_link == 0) continue;
    of_link *= plan.grid.world() / static_cast<double>(plan.stages.size());
    total += of_link;
    totals.push_back(fmt::format("{} {}", link_name(link), human_bytes(of_link)));
    std::vector<Row> rows = stage_rows(plan.stages.size(), [&](size_t at) {
      const LinkBytes& bytes = plan.stages[at].traffic[link];
      if (bytes == LinkBytes{}) return std::string();
      return fmt::format("{:>11}{:>10}{:>10}{:>10}{:>10}", bytes_or_dash(bytes.all_reduce),
                         bytes_or_dash(bytes.reduce_scatter), bytes_or_dash(bytes.all_gather),
                         bytes_or_dash(bytes.send + bytes.all_to_all),
                         bytes_text(bytes.on_the_wire(ranks)));
    });
    std::erase_if(rows, [](const Row& row) { return row.text.empty(); });
    // Uneven stages may all differ: what the first, the middle and the last do says enough.
    constexpr size_t kMostOfLink = 5;
    if (rows.size() > kMostOfLink) {
      rows.erase(rows.begin() + 3, rows.end() - 1);
      rows.insert(rows.end() - 1, {"...", ""});
    }
    for (size_t at = 0; at < rows.size(); ++at) {
      // A long name takes of the room for the ranks.
      const std::string name = at == 0 ? link_name(link) : "";
      const std::string count = at == 0 ? fmt::format(" {}", ranks) : "";
      const size_t room = std::max(count.size(), 17 - name.size());
      text += fmt::format("  {}{:>{}}{:>8}{}\n", name, count, room, rows[at].name, rows[at].text);
    }
  }
  if (totals.empty()) return {};
  const std::string together = fmt::format("all ranks together, on the wire: {} = {}",
                                           human_bytes(total), fmt::join(totals, " + "));
  return text + "  " + wrap_text(together, columns, 4, 2) + '\n';
}

}  // namespace mtl
