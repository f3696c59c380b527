#include "cli/jobs_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/terminal.h"

namespace mtl {

namespace {

// As people type it: relative where that is shorter.
std::string short_path(const std::string& path) {
  if (path.empty()) return "-";
  std::error_code ignored;
  const std::string relative = std::filesystem::proximate(path, ignored).string();
  return !ignored && relative.size() < path.size() ? relative : path;
}

std::string number_text(double number, const char* format) {
  return std::isfinite(number) ? fmt::format(fmt::runtime(format), number) : "-";
}

nlohmann::ordered_json number_or_null(double number) {
  return std::isfinite(number) ? nlohmann::ordered_json(number) : nlohmann::ordered_json();
}

nlohmann::ordered_json whole_or_null(int64_t number) {
  return number >= 0 ? nlohmann::ordered_json(number) : nlohmann::ordered_json();
}

}  // namespace

std::string clock_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-";
  const auto all = static_cast<int64_t>(seconds);
  const int64_t days = all / 86'400, hours = all / 3'600 % 24;
  const std::string rest = fmt::format("{:02}:{:02}", all / 60 % 60, all % 60);
  if (days > 0) return fmt::format("{}-{:02}:{}", days, hours, rest);
  return hours > 0 ? fmt::format("{}:{}", hours, rest)
                   : fmt::format("{}:{:02}", all / 60, all % 60);
}

std::string jobs_table(const std::vector<JobView>& jobs, int columns, bool utf8, bool wide) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "WHERE", "STATE", "NODES", "TIME", "STEP", "LOSS"}};
  if (wide) rows[0].insert(rows[0].end(), {"TOKENS/S", "LEFT"});
  rows[0].emplace_back("RUN");
  for (const JobView& job : jobs) {
    const std::string step = job.step < 0    ? "-"
                             : job.steps < 0 ? fmt::format("{}", job.step)
                                             : fmt::format("{}/{}", job.step, job.steps);
    std::vector<std::string> row = {
        job.id,
        job.name,
        job.where,
        job.reason.empty() ? job.state : fmt::format("{} ({})", job.state, job.reason),
        job.nodes > 0 ? fmt::format("{}", job.nodes) : "-",
        clock_text(static_cast<double>(job.run_s)),
        step,
        number_text(job.loss, "{:.4f}")};
    if (wide) {
      row.push_back(number_text(job.tokens_per_s, "{:.0f}"));
      row.push_back(clock_text(job.eta_s));
    }
    row.push_back(short_path(job.run));
    rows.push_back(std::move(row));
  }
  std::vector<int> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  widths[1] = std::min(widths[1], 24);
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = i == 1 ? fit_width(row[i], widths[1], utf8) : row[i];
      line += cell;
      if (i + 1 == row.size()) break;
      line.append(static_cast<size_t>(std::max(widths[i] - display_width(cell), 0)) + 2, ' ');
    }
    text += (columns > 0 ? fit_width(line, columns, utf8) : line) + "\n";
  }
  return text;
}

std::string jobs_json(const std::vector<JobView>& jobs) {
  nlohmann::ordered_json json;
  json["schema"] = "mtl.ps/1";
  json["jobs"] = nlohmann::ordered_json::array();
  for (const JobView& job : jobs) {
    nlohmann::ordered_json one;
    one["id"] = job.id;
    one["name"] = job.name;
    one["where"] = job.where;
    one["state"] = job.state;
    one["reason"] =
        job.reason.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(job.reason);
    one["nodes"] = whole_or_null(job.nodes > 0 ? job.nodes : -1);
    one["time_s"] = whole_or_null(job.run_s);
    one["step"] = whole_or_null(job.step);
    one["steps"] = whole_or_null(job.steps);
    one["loss"] = number_or_null(job.loss);
    one["tokens_per_s"] = number_or_null(job.tokens_per_s);
    one["eta_s"] = number_or_null(job.eta_s);
    one["run"] = job.run;
    one["log"] = job.log;
    json["jobs"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace mtl
