// A run directory, a progress pipe whose reading end the test holds, and a clock, for a Reporter.
#pragma once

#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/metrics/reporter.h"
#include "support/temp_dir.h"
#include "support/text.h"

namespace mtl::test {

inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline StepReport step(int64_t number, int64_t steps = 100) {
  StepReport report;
  report.step = number;
  report.steps = steps;
  report.loss = 4.0 - static_cast<double>(number) / 100;
  report.lr = 1e-3;
  report.grad_norm = 0.5;
  report.tokens_per_s = 1000;
  report.step_time_s = 0.25;
  report.mfu = 0.3;
  report.mfu_of = 2e12;
  report.mfu_of_peak = true;
  report.memory_bytes = 1 << 20;
  report.eta_s = 12;
  return report;
}

class ReporterRun {
 public:
  ReporterRun() { REQUIRE(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) == 0); }
  ~ReporterRun() {
    close_reader();
    close(pipe_[1]);
  }
  ReporterRun(const ReporterRun&) = delete;
  ReporterRun& operator=(const ReporterRun&) = delete;

  ReporterOptions options() const {
    ReporterOptions options;
    options.run_dir = dir.path();
    options.progress_fd = pipe_[1];
    options.now = [this] { return now_; };
    return options;
  }
  void pass(int ms) { now_ += std::chrono::milliseconds(ms); }
  void close_reader() {
    if (pipe_[0] >= 0) close(pipe_[0]);
    pipe_[0] = -1;
  }

  // What has come down the pipe since the last time.
  std::vector<nlohmann::json> records() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(pipe_[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return json_lines(text);
  }
  std::vector<nlohmann::json> metrics() const {
    return json_lines(file_text(dir / "metrics.jsonl"));
  }
  std::vector<nlohmann::json> events() const { return json_lines(file_text(dir / "events.jsonl")); }
  nlohmann::json status() const { return nlohmann::json::parse(file_text(dir / "status.json")); }

  const TempDir dir;

 private:
  int pipe_[2] = {-1, -1};
  std::chrono::system_clock::time_point now_{std::chrono::seconds(1795225330)};
};

}  // namespace mtl::test
