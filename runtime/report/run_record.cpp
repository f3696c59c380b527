#include "runtime/report/run_record.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <simdjson.h>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/metrics/run_state.h"
#include "runtime/plan/plan_json.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostEvents = 2000;
constexpr size_t kShownTexts = 12;  // steps whose texts are kept

std::string whole_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

nlohmann::json object_in(const fs::path& path) {
  nlohmann::json value = nlohmann::json::parse(whole_text(path), nullptr, false);
  return value.is_object() ? value : nlohmann::json::object();
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t integer_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// Of "2026-11-21T01:42:10Z"; nothing of any other text.
std::optional<double> seconds_of(const std::string& time) {
  std::tm parts{};
  if (strptime(time.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) return std::nullopt;
  return static_cast<double>(timegm(&parts));
}

double seconds_between(const std::string& begin, const std::string& end) {
  const auto from = seconds_of(begin), to = seconds_of(end);
  return from && to ? std::max(0.0, *to - *from) : 0;
}

// The lines of metrics.jsonl. They may be millions, so they are read without building a tree.
class MetricsReader {
 public:
  MetricsReader(RunRecord& run, size_t buckets) : run_(run), buckets_(buckets) {}

  void read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    for (std::string line; std::getline(in, line);) {
      if (line.empty()) continue;
      if (!read_line(line)) ++run_.damaged_lines;
    }
    if (seconds_ > 0) run_.tokens_per_s = tokens_ / seconds_;
  }

 private:
  bool read_line(const std::string& line) {
    simdjson::dom::object object;
    int64_t step = 0;
    if (parser_.parse(line).get(object) != simdjson::SUCCESS) return false;
    if (object["step"].get(step) != simdjson::SUCCESS) return false;
    for (const auto& [key, value] : object) {
      simdjson::dom::object inner;
      if (key == "gpus" && value.get(inner) == simdjson::SUCCESS) {
        for (const auto& [name, of_gpus] : inner) add("gpus.", name, step, of_gpus);
      } else if (key != "step") {
        add("", key, step, value);
      }
    }
    std::string_view time;
    if (object["time"].get(time) == simdjson::SUCCESS) run_.last_heard = time;
    run_.step = std::max(run_.step, step);
    int64_t skipped = 0;
    if (object["skipped"].get(skipped) == simdjson::SUCCESS) run_.skipped = skipped;
    double rate = 0, seconds = 0;
    const bool timed = object["tokens_per_s"].get(rate) == simdjson::SUCCESS &&
                       object["step_time_s"].get(seconds) == simdjson::SUCCESS;
    if (timed && step > 1) {
      tokens_ += rate * seconds;
      seconds_ += seconds;
    }
    return true;
  }

  void add(const char* group, std::string_view key, int64_t step, simdjson::dom::element value) {
    double number = std::numeric_limits<double>::quiet_NaN();
    if (!value.is_null() && value.get(number) != simdjson::SUCCESS) return;
    name_ = group;
    name_ += key;
    auto found = run_.curves.find(name_);
    if (found == run_.curves.end()) found = run_.curves.emplace(name_, Curve(buckets_)).first;
    found->second.add(step, number);
  }

  RunRecord& run_;
  const size_t buckets_;
  simdjson::dom::parser parser_;
  std::string name_;
  double tokens_ = 0, seconds_ = 0;
};

// The story: starts and ends, and what happened in between.
class EventsReader {
 public:
  explicit EventsReader(RunRecord& run) : run_(run) {}

  void read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    for (std::string line; std::getline(in, line);) {
      if (line.empty()) continue;
      const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
      if (!event.is_object() || text_in(event, "event").empty()) {
        ++run_.damaged_lines;
      } else {
        take(event);
      }
    }
    // What has no end was at work as long as it was heard of.
    if (open_) run_.seconds += seconds_between(begun_, std::max(last_time_, run_.last_heard));
    run_.last_heard = std::max(run_.last_heard, last_time_);
  }
  const std::string& end() const { return end_; }

 private:
  void take(const nlohmann::json& line) {
    RunEvent event;
    event.name = text_in(line, "event");
    event.time = text_in(line, "time");
    event.first_step = event.last_step = integer_in(line, "step");
    const std::string code = text_in(line, "code");
    event.words = text_in(line, "reason");
    if (!code.empty()) event.words = fmt::format("[{}] {}", code, event.words);
    if (run_.began.empty()) run_.began = event.time;
    if (event.name == "started" || event.name == "resumed") {
      if (open_) run_.seconds += seconds_between(begun_, last_time_);
      open_ = true;
      begun_ = event.time;
      end_.clear();
      ++run_.starts;
      take_lines(line);
    } else if (event.name == "done" || event.name == "stopped" || event.name == "failed") {
      if (open_) run_.seconds += seconds_between(begun_, event.time);
      open_ = false;
      end_ = event.name;
    } else if (event.name == "checkpoint") {
      ++run_.checkpoints;
    }
    last_time_ = event.time;
    keep(std::move(event));
  }

  void take_lines(const nlohmann::json& line) {
    run_.start_lines.clear();
    const auto lines = line.find("lines");
    if (lines == line.end() || !lines->is_array()) return;
    for (const nlohmann::json& one : *lines) {
      if (one.is_string()) run_.start_lines.push_back(one.get<std::string>());
    }
  }

  void keep(RunEvent event) {
    RunEvent* before = run_.events.empty() ? nullptr : &run_.events.back();
    const bool again = before != nullptr && before->name == event.name;
    if (again && event.name == "checkpoint") {
      before->last_step = event.last_step;
      before->time = event.time;
      ++before->count;
      return;
    }
    // The rank that fails says so, and then the launcher why.
    if (again && event.name == "failed" && before->words.empty()) {
      before->words = event.words;
      return;
    }
    if (event.name == "failed") ++run_.failures;
    run_.events.push_back(std::move(event));
    if (run_.events.size() > kMostEvents) run_.events.erase(run_.events.begin());
  }

  RunRecord& run_;
  std::string begun_, last_time_, end_;
  bool open_ = false;  // started, and not ended
};

// The texts that a model wrote while it learned. There may be more of them than memory should hold
// for a page that shows a few, so the file is read twice: to count its evaluations, and to keep
// some of these.
class GeneratedReader {
 public:
  explicit GeneratedReader(const fs::path& path) : path_(path) {}

  void read(RunRecord& run) {
    size_t evaluations = 0;
    // The run may write more meanwhile.
    const size_t lines = each(SIZE_MAX, run.damaged_lines, [&](size_t evaluation, GeneratedText&) {
      evaluations = evaluation + 1;
    });
    std::set<size_t> kept;
    const size_t most = std::min(kShownTexts, evaluations);
    for (size_t i = 0; i < most; ++i) {
      kept.insert(most < 2 ? 0 : i * (evaluations - 1) / (most - 1));
    }
    int64_t again = 0;
    each(lines, again, [&](size_t evaluation, GeneratedText& text) {
      if (kept.contains(evaluation)) run.generated.push_back(std::move(text));
    });
  }

 private:
  // Calls take(number of the evaluation, text) for each text of the first `most` lines; returns how
  // many lines there were.
  size_t each(size_t most, int64_t& damaged,
              const std::function<void(size_t, GeneratedText&)>& take) {
    std::ifstream in(path_, std::ios::binary);
    std::optional<int64_t> step;
    size_t lines = 0, evaluation = 0;
    for (std::string line; lines < most && std::getline(in, line); ++lines) {
      if (line.empty()) continue;
      GeneratedText text;
      if (!read_line(line, text)) {
        ++damaged;
        continue;
      }
      if (step && *step != text.step) ++evaluation;
      step = text.step;
      take(evaluation, text);
    }
    return lines;
  }

  bool read_line(const std::string& line, GeneratedText& text) {
    simdjson::dom::object object;
    if (parser_.parse(line).get(object) != simdjson::SUCCESS) return false;
    for (const auto& [key, to] : {std::pair("prompt", &text.prompt), std::pair("text", &text.text),
                                  std::pair("ended", &text.ended)}) {
      std::string_view words;
      if (object[key].get(words) == simdjson::SUCCESS) *to = words;
    }
    if (object["step"].get(text.step) != simdjson::SUCCESS) text.step = 0;
    return !text.prompt.empty();
  }

  const fs::path path_;
  simdjson::dom::parser parser_;
};

// What the steps up to `step` have learned from.
int64_t tokens_before(const nlohmann::json& plan, int64_t step) {
  try {
    const nlohmann::json& batch = plan.at("batch");
    const BatchSchedule schedule = batch_from_json(batch);
    if (schedule.phases().empty()) return 0;
    return schedule.first_sample(step) * batch.at("seq_len").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    return 0;  // of another version
  }
}

}  // namespace

const Curve* RunRecord::curve(const std::string& key) const {
  const auto found = curves.find(key);
  return found == curves.end() || found->second.empty() ? nullptr : &found->second;
}

RunRecord read_run(const fs::path& dir, size_t buckets) {
  RunRecord run;
  run.dir = dir;
  std::error_code ignored;
  fs::path whole = fs::absolute(dir, ignored).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  run.id = whole.filename().string();
  run.name = whole.parent_path().filename().string();
  run.settings = settings_of(whole_text(dir / "resolved.yaml"));
  run.plan = object_in(dir / "plan.json");
  run.environment = object_in(dir / "env.json");
  const nlohmann::json status = object_in(dir / "status.json");
  MetricsReader(run, buckets).read(dir / "metrics.jsonl");
  run.last_heard = std::max(run.last_heard, text_in(status, "time"));
  EventsReader events(run);
  events.read(dir / "events.jsonl");
  GeneratedReader(dir / "generated.jsonl").read(run);

  run.state = state_of_run(dir, status, run.last_heard);
  if (run.state.empty()) run.state = events.end().empty() ? "unknown" : events.end();
  run.reason = text_in(status, "reason");
  if (run.reason.empty() && run.state == "failed" && !run.events.empty()) {
    run.reason = run.events.back().words;
  }
  if (status.contains("exit_code")) {
    run.exit_code = static_cast<int>(integer_in(status, "exit_code"));
  }
  run.step = std::max(run.step, integer_in(status, "step"));
  run.steps = std::max(integer_in(status, "steps"), integer_in(run.plan, "steps"));
  run.skipped = std::max(run.skipped, integer_in(status, "skipped"));
  run.tokens = tokens_before(run.plan, run.step);
  return run;
}

}  // namespace mtl
