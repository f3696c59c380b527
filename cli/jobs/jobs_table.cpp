#include "cli/jobs/jobs_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/fitted_table.h"
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

constexpr int kMostName = 24, kLeastName = 12;
constexpr int kLeastRun = 32;  // of a path: all of a short one

// The slowest of each run; where there are more, status.json has them.
std::string slow_ranks_text(const std::vector<JobView>& jobs, int columns) {
  constexpr size_t kMostShown = 4;
  std::string text;
  for (const JobView& job : jobs) {
    for (size_t i = 0; i < std::min(kMostShown, job.slow.size()); ++i) {
      const SlowRank& one = job.slow[i];
      std::string line = fmt::format("{}: rank {}", job.id, one.rank);
      if (!one.host.empty()) line += fmt::format(" ({}, {})", one.host, one.device);
      line += " is slow";
      if (std::isfinite(one.factor)) line += fmt::format(" ({:.2f} x)", one.factor);
      if (!one.phase.empty()) line += fmt::format(", most of it in {}", one.phase);
      if (std::isfinite(one.job_speed)) {
        line += fmt::format("; the job runs at about {:.2f} of its speed", one.job_speed);
      }
      text += (columns > 0 ? wrap_text(line, columns, 2, 0) : line) + "\n";
    }
    if (job.slow.size() > kMostShown) {
      text +=
          fmt::format("{}: {} more are slow (status.json)\n", job.id, job.slow.size() - kMostShown);
    }
  }
  return text.empty() ? text : fmt::format("\n{}", text);
}

nlohmann::ordered_json slow_json(const std::vector<SlowRank>& slow) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const SlowRank& one : slow) {
    all.push_back({{"rank", one.rank},
                   {"host", one.host},
                   {"device", one.device},
                   {"phase", one.phase},
                   {"factor", number_or_null(one.factor)},
                   {"job_speed", number_or_null(one.job_speed)}});
  }
  return all;
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
  std::vector<FittedTable::Column> titles = {{.title = "ID"},
                                             {.title = "NAME", .least = kLeastName},
                                             {.title = "WHERE", .goes = 2},
                                             {.title = "STATE"},
                                             {.title = "NODES", .goes = 1},
                                             {.title = "TIME", .goes = 5},
                                             {.title = "STEP"},
                                             {.title = "LOSS", .goes = 6}};
  const bool again =
      std::any_of(jobs.begin(), jobs.end(), [](const JobView& job) { return job.starts > 1; });
  if (again) titles.push_back({.title = "STARTS", .goes = 1});
  if (wide) {
    titles.push_back({.title = "TOKENS/S", .goes = 4});
    titles.push_back({.title = "LEFT", .goes = 7});
  }
  titles.push_back({.title = "RUN", .goes = 3, .least = kLeastRun});
  FittedTable table(std::move(titles));
  for (const JobView& job : jobs) {
    const std::string step = job.step < 0    ? "-"
                             : job.steps < 0 ? fmt::format("{}", job.step)
                                             : fmt::format("{}/{}", job.step, job.steps);
    std::vector<std::string> row = {
        job.id,
        fit_width(job.name, kMostName, utf8),
        job.where,
        job.reason.empty() ? job.state : fmt::format("{} ({})", job.state, job.reason),
        job.nodes > 0 ? fmt::format("{}", job.nodes) : "-",
        clock_text(static_cast<double>(job.run_s)),
        step,
        number_text(job.loss, "{:.4f}")};
    if (again) row.push_back(fmt::format("{}", job.starts));
    if (wide) {
      row.push_back(number_text(job.tokens_per_s, "{:.0f}"));
      row.push_back(clock_text(job.eta_s));
    }
    row.push_back(short_path(job.run));
    table.add(std::move(row));
  }
  return table.text(columns, utf8) + slow_ranks_text(jobs, columns);
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
    one["starts"] = job.starts;
    one["time_s"] = whole_or_null(job.run_s);
    one["step"] = whole_or_null(job.step);
    one["steps"] = whole_or_null(job.steps);
    one["loss"] = number_or_null(job.loss);
    one["tokens_per_s"] = number_or_null(job.tokens_per_s);
    one["eta_s"] = number_or_null(job.eta_s);
    one["stragglers"] = slow_json(job.slow);
    one["run"] = job.run;
    one["log"] = job.log;
    json["jobs"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace mtl
