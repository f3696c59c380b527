// What Counts has counted, as text.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ptx/counts.h"
#include "ptx/machine.h"

namespace mtl::ptx {

namespace {

// Columns as wide as what stands in them; all but the last `left` to the right.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  if (rows.empty()) return "";
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      const bool is_left = i + left >= row.size();
      line += is_left ? fmt::format("{:<{}}", row[i], widths[i])
                      : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string percent(uint64_t part, uint64_t all) {
  if (all == 0 || part == 0) return "-";
  return fmt::format("{:.1f}", 100.0 * static_cast<double>(part) / static_cast<double>(all));
}
std::string ratio(const Cost& cost) {
  if (cost.least == 0) return "-";
  return fmt::format("{:.2f}", static_cast<double>(cost.asked) / static_cast<double>(cost.least));
}
std::string per(uint64_t all, uint64_t times) {
  if (times == 0) return "-";
  return fmt::format("{:.1f}", static_cast<double>(all) / static_cast<double>(times));
}

struct Worst {
  const Kernel* kernel;
  const Instruction* instruction;
  const Counts::Line* line;
};

template <typename Body>
void each_line(const Kernel& kernel, const Counts::OfKernel& counted, Body body) {
  for (size_t i = 0; i < counted.lines.size(); ++i) {
    if (counted.lines[i].times > 0 || counted.lines[i].shared.asked > 0 ||
        counted.lines[i].global.asked > 0) {
      body(kernel.instructions[i], counted.lines[i]);
    }
  }
  for (const auto& [instruction, line] : counted.odd) body(*instruction, line);
}

std::string statement(const Instruction& instruction) {
  std::string text;
  for (const char c : instruction.text) {
    const bool is_space = c == '\t' || c == '\n' || c == ' ';
    if (!is_space) text += c;
    if (is_space && !text.empty() && text.back() != ' ') text += ' ';
  }
  constexpr size_t kMost = 70;
  if (text.size() > kMost) text = text.substr(0, kMost - 3) + "...";
  return text;
}

std::string worst_of(std::vector<Worst> lines, Cost Counts::Line::*cost, size_t most,
                     std::string_view unit, const std::vector<const Module*>& modules,
                     const std::vector<Sources>& sources) {
  lines.erase(std::remove_if(lines.begin(), lines.end(),
                             [&](const Worst& worst) { return (worst.line->*cost).lost() == 0; }),
              lines.end());
  if (lines.empty()) return "";
  std::stable_sort(lines.begin(), lines.end(), [&](const Worst& a, const Worst& b) {
    return (a.line->*cost).lost() > (b.line->*cost).lost();
  });
  const size_t all = lines.size();
  uint64_t lost = 0;
  for (const Worst& worst : lines) lost += (worst.line->*cost).lost();
  lines.resize(std::min(all, most));
  std::vector<std::vector<std::string>> rows = {{"lost", "% of all", "each", "least", "times",
                                                 "lanes", "PTX line", "statement", "kernel",
                                                 "source"}};
  for (const Worst& worst : lines) {
    const Cost& of = worst.line->*cost;
    std::string source;
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string& name = worst.kernel->name;
      if (modules[i]->has(name) && &modules[i]->kernel(name) == worst.kernel) {
        source = sources[i].at(worst.instruction->line);
      }
    }
    const uint64_t times = worst.line->times;
    rows.push_back({fmt::format("{}", of.lost()), percent(of.lost(), lost), per(of.asked, times),
                    per(of.least, times), fmt::format("{}", times), per(worst.line->lanes, times),
                    fmt::format("{}", worst.instruction->line), statement(*worst.instruction),
                    short_name(worst.kernel->name), source});
  }
  return fmt::format("\n{} lost, {} in all, by {} lines{}:\n", unit, lost, all,
                     all > most ? fmt::format(" (the worst {})", most) : "") +
         table(rows, 3);
}

}  // namespace

std::string Counts::report(size_t worst, const std::vector<const Module*>& modules) const {
  constexpr std::array<std::string_view, kWorks> kNames = {
      "f32",    "f64",    "int",      "convert", "special", "shared",
      "global", "tensor", "exchange", "control", "other"};
  std::vector<std::vector<std::string>> rows;
  auto& head = rows.emplace_back();
  head = {"launches", "blocks", "instructions"};
  for (const std::string_view name : kNames) head.push_back(fmt::format("{} %", name));
  for (const char* const name :
       {"lanes", "wavefronts", "/ least", "sectors", "/ least", "16-byte %", "kernel"}) {
    head.emplace_back(name);
  }
  std::vector<Worst> lines;
  std::vector<std::pair<uint64_t, std::vector<std::string>>> found;
  for (const auto& each : kernels_) {  // no binding: clang 14 lets no lambda have one
    const Kernel* const kernel = each.first;
    const OfKernel& counted = each.second;
    std::array<uint64_t, kWorks> works = {};
    uint64_t times = 0, lanes = 0, bytes = 0, wide_bytes = 0;
    Cost shared, global;
    each_line(*kernel, counted, [&](const Instruction& instruction, const Line& line) {
      works[static_cast<size_t>(work_of(instruction.opcode))] += line.times;
      times += line.times;
      lanes += line.lanes;
      shared += line.shared;
      global += line.global;
      bytes += line.global_bytes;
      if (line.global_bytes >= 16 * line.lanes) wide_bytes += line.global_bytes;
      lines.push_back({kernel, &instruction, &line});
    });
    std::vector<std::string> row = {fmt::format("{}", counted.launches),
                                    fmt::format("{}", counted.blocks), fmt::format("{}", times)};
    for (const uint64_t work : works) row.push_back(percent(work, times));
    row.insert(row.end(), {per(lanes, times), fmt::format("{}", shared.asked), ratio(shared),
                           fmt::format("{}", global.asked), ratio(global),
                           percent(wide_bytes, bytes), short_name(kernel->name)});
    found.emplace_back(shared.lost() + global.lost(), std::move(row));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [lost, row] : found) rows.push_back(std::move(row));

  std::vector<Sources> sources;
  for (const Module* const module : modules) sources.emplace_back(module->text());
  return table(rows, 1) +
         worst_of(lines, &Line::shared, worst, "wavefronts of shared memory", modules, sources) +
         worst_of(lines, &Line::global, worst, "sectors of global memory", modules, sources);
}

}  // namespace mtl::ptx
