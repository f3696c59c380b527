#include "runtime/report/page_parts.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/metrics/format.h"
#include "runtime/report/chart.h"

namespace mtl {

namespace {

constexpr size_t kShownEvents = 200;

// Bytes of a plan's stage by category: weights, gradients, optimizer, activations, scratch.
void write_memory(std::string& html, const RunRecord& run) {
  static const std::vector<const char*> kCategories = {"weights", "gradients", "optimizer",
                                                       "activations", "scratch"};
  const nlohmann::json stages = run.plan.value("stages", nlohmann::json::array());
  if (!stages.is_array()) return;
  std::string rows;
  double most = 0;
  const auto bytes_of = [](const nlohmann::json& stage, const char* name) {
    const nlohmann::json memory = stage.is_object()
                                      ? stage.value("memory_per_rank", nlohmann::json::object())
                                      : nlohmann::json();
    const auto found = memory.find(name);
    return found != memory.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  for (const nlohmann::json& stage : stages) most = std::max(most, bytes_of(stage, "total_bytes"));
  if (most <= 0) return;
  for (size_t i = 0; i < stages.size(); ++i) {
    const double total = bytes_of(stages[i], "total_bytes");
    rows += fmt::format("<tr><td>{}<td><div class='bar' style='width:{:.1f}%'>",
                        stages.size() > 1 ? fmt::format("stage {}", i) : "a rank",
                        std::max(2.0, 100 * total / most));
    std::string cells;
    for (size_t c = 0; c < kCategories.size(); ++c) {
      const double bytes = bytes_of(stages[i], kCategories[c]);
      rows += fmt::format("<i class='c{}' style='width:{:.2f}%'></i>", c,
                          100 * bytes / std::max(total, 1.0));
      cells += fmt::format("<td class='n'>{}", human_bytes(bytes));
    }
    rows += fmt::format("</div>{}<td class='n best'>{}</tr>\n", cells, human_bytes(total));
  }
  html += "<h2>Memory per rank, as planned</h2>\n<div class='scroll'><table><tr><th><th>";
  for (size_t c = 0; c < kCategories.size(); ++c) {
    html += fmt::format("<th class='n'><span class='swatch c{}'>{}</span>", c, kCategories[c]);
  }
  html += "<th class='n'>together</tr>\n" + rows + "</table></div>\n";
  if (const Curve* measured = run.curve("gpus.memory_bytes")) {
    html += fmt::format(
        "<p class='sub'>Measured: at most {} in use on the fullest GPU, by the driver, with all "
        "that others had there.</p>\n",
        human_bytes(measured->highest().value));
  }
}

}  // namespace

std::string clock_words(const std::string& time) {
  std::string words = time;
  if (const size_t at = words.find('T'); at != words.npos) words[at] = ' ';
  if (words.ends_with('Z')) words.replace(words.size() - 1, 1, " UTC");
  return html_text(words);
}

void write_plan(std::string& html, const RunRecord& run) {
  const auto row = [&](const std::string& name, const std::string& value) {
    html += fmt::format("<tr><td class='t'>{}<td>{}</tr>\n", html_text(name), html_text(value));
  };
  html += "<h2>Plan</h2>\n<div class='scroll'><table>\n";
  for (const std::string& line : run.start_lines) {
    const size_t word = line.find(' ');
    const size_t rest = line.find_first_not_of(' ', word);
    if (word != line.npos && rest != line.npos) row(line.substr(0, word), line.substr(rest));
  }
  if (run.start_lines.empty()) {
    const nlohmann::json grid = run.plan.value("grid", nlohmann::json::object());
    std::string words;
    for (const char* axis : {"world", "dp", "tp", "pp", "cp", "ep"}) {
      if (!grid.is_object() || !grid.contains(axis)) continue;
      words += fmt::format("{}{} {}", words.empty() ? "" : ", ", axis, grid[axis].dump());
    }
    if (!words.empty()) row("layout", words);
  }
  html += "</table></div>\n";
  write_memory(html, run);
  if (run.environment.empty()) return;
  html += "<h2>Environment</h2>\n<div class='scroll'><table>\n";
  for (const auto& [name, value] : run.environment.items()) {
    row(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  html += "</table></div>\n";
}

void write_generated(std::string& html, const RunRecord& run) {
  if (run.generated.empty()) return;
  html += "<h2>What it writes</h2>\n";
  std::vector<std::string> prompts;
  for (const GeneratedText& text : run.generated) {
    if (std::ranges::find(prompts, text.prompt) == prompts.end()) prompts.push_back(text.prompt);
  }
  for (const std::string& prompt : prompts) {
    html += "<div class='scroll'><table><tr><th class='n'>step<th class='written'>" +
            html_text(prompt) + "</tr>\n";
    for (const GeneratedText& text : run.generated) {
      if (text.prompt != prompt) continue;
      html += fmt::format("<tr><td class='n'>{}<td class='written'>{}", grouped(text.step),
                          html_text(text.text));
      if (!text.ended.empty()) html += fmt::format(" <small>{}</small>", html_text(text.ended));
      html += "</tr>\n";
    }
    html += "</table></div>\n";
  }
}

void write_events(std::string& html, const RunRecord& run) {
  if (run.events.empty()) return;
  html += "<h2>What happened</h2>\n<div class='scroll'><table>\n";
  const size_t begin =
      run.events.size() > kShownEvents ? run.events.size() - kShownEvents : size_t{0};
  if (begin > 0) html += fmt::format("<tr><td colspan='4'>{} earlier ones</tr>\n", begin);
  for (size_t i = begin; i < run.events.size(); ++i) {
    const RunEvent& event = run.events[i];
    std::string name = event.name;
    std::string steps = event.last_step > 0 ? "step " + grouped(event.last_step) : "";
    if (event.count > 1) {
      name = fmt::format("{} {}s", event.count, event.name);
      steps = fmt::format("steps {} to {}", grouped(event.first_step), grouped(event.last_step));
    }
    html += fmt::format("<tr><td class='t'>{}<td{}>{}<td class='t'>{}<td>{}</tr>\n",
                        clock_words(event.time), event.name == "failed" ? " class='failed'" : "",
                        html_text(name), steps, html_text(event.words));
  }
  html += "</table></div>\n";
  if (run.damaged_lines > 0) {
    html += fmt::format("<p class='sub'>{} of the run's lines could not be read.</p>\n",
                        run.damaged_lines);
  }
}

void write_settings(std::string& html, const RunRecord& run) {
  if (run.settings.empty()) return;
  const auto table = [&](bool all) {
    html += "<div class='scroll'><table><tr><th>setting<th>value<th>from</tr>\n";
    for (const RunSetting& setting : run.settings) {
      if (!all && setting.origin == "built-in") continue;
      html +=
          fmt::format("<tr><td><code>{}</code><td><code>{}</code><td>{}</tr>\n",
                      html_text(setting.key), html_text(setting.value), html_text(setting.origin));
    }
    html += "</table></div>\n";
  };
  html += "<h2>Settings</h2>\n";
  table(false);
  html += fmt::format("<details><summary>All {} settings</summary>\n", run.settings.size());
  table(true);
  html += "</details>\n";
}

}  // namespace mtl
