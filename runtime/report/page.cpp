#include "runtime/report/page.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "common/version.h"
#include "runtime/metrics/format.h"
#include "runtime/metrics/record.h"
#include "runtime/report/chart.h"
#include "runtime/report/compare.h"
#include "runtime/report/page_parts.h"

namespace mtl {

namespace {

constexpr int kColours = 8;
constexpr size_t kFewPoints = 60;  // that are worth a dot each
constexpr size_t kWindows = 100;   // whose means are drawn

// The charts of a page, in their order; those without a value in any run are not there.
struct Shown {
  std::string title;
  std::vector<std::string> keys;  // of metrics.jsonl; the second is dashed
  Unit unit;
  bool log = false, cut_peaks = false, wide = false;
};

std::vector<Shown> shown_charts(const std::vector<RunRecord>& runs) {
  std::vector<Shown> charts = {
      {"Loss", {"loss", "valid_loss"}, Unit::number, true, false, true},
      {"Learning rate", {"lr"}, Unit::exponent, true},
      {"Gradient norm", {"grad_norm"}, Unit::number, true, true},
      {"Tokens per second", {"tokens_per_s"}, Unit::count},
      {"Step time", {"step_time_s"}, Unit::seconds, true, true},
      {"MFU", {"mfu"}, Unit::percent},
      {"Memory of all ranks, planned", {"memory_bytes"}, Unit::bytes},
      {"Memory of the fullest GPU", {"gpus.memory_bytes"}, Unit::bytes},
      {"Power of all GPUs", {"gpus.power_w"}, Unit::watts},
      {"Clock of the slowest GPU", {"gpus.clock_mhz"}, Unit::megahertz},
      {"Temperature of the hottest GPU", {"gpus.temperature_c"}, Unit::celsius},
      {"Share of tokens that are learned", {"learned_share"}, Unit::percent},
      {"Loss scale", {"loss_scale"}, Unit::count, true},
      {"Skipped steps", {"skipped"}, Unit::count},
      {"Load balance of the experts", {"moe_aux_loss"}, Unit::number},
      {"z-loss of the routers", {"moe_z_loss"}, Unit::number},
      {"Turns through the experts", {"moe_turns"}, Unit::number},
  };
  // Behind the loss, that of each validation set.
  std::set<std::string> sets;
  for (const RunRecord& run : runs) {
    for (const auto& curve : run.curves) {
      if (curve.first.starts_with(kSetLoss)) sets.insert(curve.first);
    }
  }
  auto behind = charts.begin() + 1;
  for (const std::string& key : sets) {
    behind = charts.insert(behind, Shown{.title = "Validation loss, " + key.substr(kSetLoss.size()),
                                         .keys = {key},
                                         .unit = Unit::number,
                                         .log = true}) +
             1;
  }
  return charts;
}

std::string html_number(double value, Unit unit) {
  return html_text(unit_text(unit, value));
}

std::string state_badge(const RunRecord& run) {
  static const std::set<std::string> kStates = {"done", "failed", "lost", "running", "stopped"};
  return fmt::format("<span class='state {}'>{}</span>",
                     kStates.contains(run.state) ? run.state : "unknown", html_text(run.state));
}

std::string steps_words(const RunRecord& run) {
  if (run.steps <= 0) return grouped(run.step);
  return run.step == run.steps ? grouped(run.step)
                               : fmt::format("{} of {}", grouped(run.step), grouped(run.steps));
}

void tile(std::string& html, const std::string& name, const std::string& value,
          const std::string& more = "") {
  html += fmt::format("<div><dt>{}</dt><dd>{}", name, value);
  if (!more.empty()) html += fmt::format("<small>{}</small>", more);
  html += "</dd></div>\n";
}

void write_tiles(std::string& html, const RunRecord& run) {
  html += "<dl class='tiles'>\n";
  tile(html, "Steps", steps_words(run),
       run.skipped > 0 ? grouped(run.skipped) + " of them skipped" : "");
  if (run.tokens > 0) {
    tile(html, "Tokens", compact_count(static_cast<double>(run.tokens)), "learned from");
  }
  if (const Curve* valid = run.curve("valid_loss")) {
    const CurvePoint best = valid->lowest();
    tile(html, "Validation loss", html_number(valid->last().value, Unit::number),
         best.step == valid->last().step
             ? "its best"
             : fmt::format("best {} at step {}", html_number(best.value, Unit::number),
                           grouped(best.step)));
  }
  if (const Curve* loss = run.curve("loss")) {
    tile(html, "Training loss", html_number(loss->last().value, Unit::number),
         fmt::format("lowest {}", html_number(loss->lowest().value, Unit::number)));
  }
  if (run.seconds > 0) {
    tile(html, "Time at work", compact_duration(run.seconds),
         run.starts > 1 ? fmt::format("in {} starts", run.starts) : "");
  }
  if (run.tokens_per_s > 0) {
    tile(html, "Speed", compact_count(run.tokens_per_s) + " tok/s", "mean");
  }
  if (const auto mfu = last_value(run, "mfu"); mfu && *mfu > 0) {
    tile(html, "MFU", html_number(*mfu, Unit::percent), "at the last step");
  }
  if (run.checkpoints > 0) tile(html, "Checkpoints", grouped(run.checkpoints), "written");
  html += "</dl>\n";
  if (run.state == "failed") {
    html += "<p class='why'><b>";
    html += run.exit_code ? fmt::format("Failed with exit code {}.", *run.exit_code) : "Failed.";
    html += "</b> " + html_text(run.reason) + "</p>\n";
  } else if (run.state == "lost") {
    html += fmt::format(
        "<p class='why'><b>No longer running since about {}.</b> Nobody works on it, and nobody "
        "has said how it ended: it was killed, or its machine went down. The same command goes on "
        "from its newest checkpoint.</p>\n",
        clock_words(run.last_heard));
  }
}

void write_comparison(std::string& html, const std::vector<RunRecord>& runs,
                      const std::vector<std::string>& labels) {
  const auto best_of = [&](const auto& number) {
    std::optional<double> best;
    for (const RunRecord& run : runs) {
      const std::optional<double> value = number(run);
      if (value && (!best || *value < *best)) best = value;
    }
    return best;
  };
  const auto last_loss = [](const RunRecord& run) { return last_value(run, "loss"); };
  const auto last_valid = [](const RunRecord& run) { return last_value(run, "valid_loss"); };
  const auto best_valid = [](const RunRecord& run) -> std::optional<double> {
    const Curve* curve = run.curve("valid_loss");
    if (curve == nullptr) return std::nullopt;
    return curve->lowest().value;
  };
  html +=
      "<div class='scroll'><table><tr><th>run<th>state<th class='n'>steps<th class='n'>tokens"
      "<th class='n'>training loss<th class='n'>validation loss<th class='n'>its best"
      "<th class='n'>at work<th class='n'>tok/s<th class='n'>MFU</tr>\n";
  const auto loss_cell = [&](const std::optional<double>& value,
                             const std::optional<double>& best) {
    if (!value) return std::string("<td class='n'>");
    return fmt::format("<td class='n{}'>{}", best && *value == *best ? " best" : "",
                       html_number(*value, Unit::number));
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    const auto mfu = last_value(run, "mfu");
    html += fmt::format(
        "<tr><td><span class='key c{}'>{}</span><td>{}<td class='n'>{}<td class='n'>{}{}{}{}"
        "<td class='n'>{}<td class='n'>{}<td class='n'>{}</tr>\n",
        i % kColours, html_text(labels[i]), state_badge(run), steps_words(run),
        run.tokens > 0 ? compact_count(static_cast<double>(run.tokens)) : "",
        loss_cell(last_loss(run), best_of(last_loss)),
        loss_cell(last_valid(run), best_of(last_valid)),
        loss_cell(best_valid(run), best_of(best_valid)),
        run.seconds > 0 ? compact_duration(run.seconds) : "",
        run.tokens_per_s > 0 ? compact_count(run.tokens_per_s) : "",
        mfu && *mfu > 0 ? html_number(*mfu, Unit::percent) : "");
  }
  html += "</table></div>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].state != "failed") continue;
    html += fmt::format("<p class='why'><b>{} failed.</b> {}</p>\n", html_text(labels[i]),
                        html_text(runs[i].reason));
  }
}

// What stands beside the title of a single run's chart.
std::string caption(const Shown& shown, const RunRecord& run) {
  const Curve* curve = run.curve(shown.keys.front());
  if (curve == nullptr) return "";
  std::string text =
      fmt::format("<span class='now'>last {}", html_number(curve->last().value, shown.unit));
  if (shown.cut_peaks) text += ", highest " + html_number(curve->highest().value, shown.unit);
  if (curve->not_finite() > 0) {
    text += fmt::format(", {} not finite", grouped(curve->not_finite()));
  }
  return text + "</span>";
}

void write_chart(std::string& html, const Shown& shown, const std::vector<RunRecord>& runs,
                 const std::vector<std::string>& labels) {
  Chart chart{.title = shown.title,
              .unit = shown.unit,
              .lines = {},
              .wide = shown.wide,
              .log = shown.log,
              .cut_peaks = shown.cut_peaks};
  const bool single = runs.size() == 1;
  std::string keys;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t k = 0; k < shown.keys.size(); ++k) {
      const Curve* curve = runs[i].curve(shown.keys[k]);
      if (curve == nullptr) continue;
      const char* what = k == 0 ? "training" : "validation";
      ChartLine line;
      line.colour = static_cast<int>(single ? k : i) % kColours;
      line.dashed = k > 0;
      line.points = curve->points();
      line.dots = k > 0 && single && line.points.size() <= kFewPoints;
      // What scatters is faint behind its mean; a plan does not scatter.
      if (line.points.size() > 2 * kWindows && shown.unit != Unit::exponent) {
        line.means = curve->means(kWindows);
      }
      if (shown.keys.size() == 1) {
        line.name = single ? shown.title : labels[i];
      } else {
        line.name = single ? what : fmt::format("{}, {}", labels[i], what);
        if (single) {
          keys += fmt::format("<span class='key c{}{}'>{}</span>", line.colour,
                              k > 0 ? " dashed" : "", what);
        }
      }
      chart.lines.push_back(std::move(line));
    }
  }
  if (chart.lines.empty()) return;
  if (shown.keys.size() > 1 && !single) keys = "<span>dashed: validation</span>";
  html += fmt::format("<figure class='{}{}'><figcaption><h3>{}</h3>{}{}</figcaption>\n",
                      shown.wide ? "wide " : "", shown.log ? "both" : "", html_text(shown.title),
                      keys, single ? caption(shown, runs.front()) : "");
  html += chart_svg(chart, false);
  if (shown.log) html += chart_svg(chart, true);
  html += "</figure>\n";
}

void write_charts(std::string& html, const std::vector<RunRecord>& runs,
                  const std::vector<std::string>& labels) {
  std::string charts;
  for (const Shown& shown : shown_charts(runs)) {
    // What never changes is a number of the plan and no course.
    const bool constant = std::all_of(runs.begin(), runs.end(), [&](const RunRecord& run) {
      const Curve* curve = run.curve(shown.keys.front());
      return curve == nullptr || curve->lowest().value == curve->highest().value;
    });
    const std::string_view key = shown.keys.front();
    if (constant && (key == "memory_bytes" || key == "skipped")) continue;
    write_chart(charts, shown, runs, labels);
  }
  if (charts.empty()) {
    html += "<h2>Curves</h2>\n<p class='sub'>No step has been logged.</p>\n";
    return;
  }
  html +=
      "<section><input type='checkbox' id='log'><div class='head'><h2>Curves</h2><label "
      "class='switch' for='log'>logarithmic axes</label></div>\n";
  if (runs.size() > 1) {
    html += "<p class='legend'>";
    for (size_t i = 0; i < runs.size(); ++i) {
      html += fmt::format("<span class='key c{}'>{}</span>", i % kColours, html_text(labels[i]));
    }
    html += "</p>\n";
  }
  html += "<div class='charts'>\n" + charts + "</div></section>\n";
}

void write_differences(std::string& html, const std::vector<RunRecord>& runs,
                       const std::vector<std::string>& labels) {
  html += "<h2>Settings that differ</h2>\n";
  const std::vector<DifferentSetting> differences = different_settings(runs);
  if (differences.empty()) {
    html += "<p class='sub'>None: the runs have the same settings.</p>\n";
    return;
  }
  html += "<div class='scroll'><table><tr><th>setting";
  for (size_t i = 0; i < labels.size(); ++i) {
    html += fmt::format("<th><span class='key c{}'>{}</span>", i % kColours, html_text(labels[i]));
  }
  html += "</tr>\n";
  for (const DifferentSetting& setting : differences) {
    html += "<tr><td><code>" + html_text(setting.key) + "</code>";
    for (const std::string& value : setting.values) {
      html += "<td><code>" + html_text(value) + "</code>";
    }
    html += "</tr>\n";
  }
  html += "</table></div>\n";
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs, const std::string& made) {
  const std::vector<std::string> labels = run_labels(runs);
  const bool single = runs.size() == 1;
  const std::string title =
      single ? runs.front().name : fmt::format("{} runs compared", runs.size());
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
      "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<meta name='color-scheme' content='light dark'>\n"
      "<title>{}</title>\n<style>{}</style></head>\n<body><main>\n<header><h1>{}{}</h1>\n",
      html_text(title), kPageStyle, html_text(title), single ? state_badge(runs.front()) : "");
  std::string sub = single ? html_text(runs.front().dir.string()) + " · " : "";
  if (single && !runs.front().began.empty()) {
    sub += fmt::format("began {} · ", clock_words(runs.front().began));
  }
  // Of one that does not say much: it may stand still.
  if (single && runs.front().state == "running") {
    sub += fmt::format("last heard of {} · ", clock_words(runs.front().last_heard));
  }
  html += fmt::format("<p class='sub'>{}report of {} by mtl {}</p></header>\n", sub,
                      clock_words(made), html_text(version()));
  if (single) {
    const RunRecord& run = runs.front();
    write_tiles(html, run);
    write_charts(html, runs, labels);
    write_generated(html, run);
    write_events(html, run);
    write_plan(html, run);
    write_settings(html, run);
  } else {
    html += "<h2>Runs</h2>\n";
    write_comparison(html, runs, labels);
    write_charts(html, runs, labels);
    write_differences(html, runs, labels);
    html += "<h2>Each run</h2>\n";
    for (size_t i = 0; i < runs.size(); ++i) {
      html += fmt::format(
          "<details class='run'><summary><span class='key c{}'>{}</span></summary>\n"
          "<p class='sub'>{}</p>\n",
          i % kColours, html_text(labels[i]), html_text(runs[i].dir.string()));
      write_generated(html, runs[i]);
      write_events(html, runs[i]);
      write_plan(html, runs[i]);
      write_settings(html, runs[i]);
      html += "</details>\n";
    }
  }
  html += fmt::format("</main><script>{}</script></body></html>\n", kPageScript);
  return html;
}

}  // namespace mtl
