#include "runtime/metrics/reporter.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "runtime/metrics/format.h"
#include "runtime/metrics/record.h"
#include "runtime/metrics/run_files.h"
#include "runtime/metrics/run_settings.h"

namespace mtl {

namespace {

constexpr const char* kBoard = "tb";
constexpr const char* kGenerated = "generated.jsonl";

using SystemTime = std::chrono::system_clock::time_point;

std::string utc(SystemTime time) {
  return utc_time(
      std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count());
}

// Markdown that shows the text as it is.
std::string as_code(std::string_view text) {
  std::string code;
  bool begins = true;
  for (const char c : text) {
    if (begins) code += "    ";
    code += c;
    begins = c == '\n';
  }
  return code;
}

// The writing end of the progress pipe. A reader that has stopped (a terminal on hold) must not
// stop the training: step records are dropped while the pipe is full, others wait a little.
class ProgressPipe {
 public:
  explicit ProgressPipe(int fd) : fd_(fd) {
    if (fd_ < 0) return;
    const int flags = fcntl(fd_, F_GETFL);
    if (flags < 0 || fcntl(fd_, F_SETFL, flags | O_NONBLOCK) < 0) fd_ = -1;
  }

  void send(const std::string& line, bool may_drop) {
    const std::string text = (torn_ ? "\n" : "") + line + '\n';
    std::string_view rest = text;
    while (fd_ >= 0 && !rest.empty()) {
      // Up to PIPE_BUF bytes are written whole or not at all.
      const ssize_t n = write(fd_, rest.data(), rest.size());
      if (n >= 0) {
        rest.remove_prefix(static_cast<size_t>(n));
      } else if (errno == EAGAIN) {
        if (may_drop && rest.size() == text.size()) return;
        pollfd ready{fd_, POLLOUT, 0};
        if (poll(&ready, 1, kPatienceMs) == 0) break;
      } else if (errno != EINTR) {
        fd_ = -1;  // nobody listens any more
      }
    }
    if (rest.size() < text.size()) torn_ = !rest.empty();
  }

 private:
  static constexpr int kPatienceMs = 2000;
  int fd_;
  bool torn_ = false;
};

}  // namespace

struct Reporter::State {
  explicit State(ReporterOptions given)
      : options(std::move(given)),
        metrics((drop_steps_after(options.run_dir / "metrics.jsonl", options.resume_step,
                                  options.evaluates_again ? "valid_loss" : ""),
                 options.run_dir / "metrics.jsonl")),
        events(options.run_dir / "events.jsonl"),
        pipe(options.progress_fd),
        checkpoint(options.checkpoint.string()),
        checkpoint_step(options.resume_step) {
    options.log_every = std::max<int64_t>(options.log_every, 1);
    if (options.progress_fd < 0) view.emplace(ViewOptions{});
    drop_steps_after(options.run_dir / kGenerated, options.resume_step,
                     options.generates_again ? "prompt" : "");
    if (options.generates) generated.emplace(options.run_dir / kGenerated);
    if (options.tensorboard) open_board();
  }

  std::string time() const { return utc(options.now()); }

  void send(const Json& record, bool may_drop = false) {
    const std::string line = json_line(record);
    if (view) {
      view->record(line);
    } else {
      pipe.send(line, may_drop);
    }
  }

  // Says once that a file of the run cannot be written.
  void check(int error, const char* file) {
    if (error == 0 || warned) return;
    warned = true;
    send({{"kind", "warning"},
          {"text", "cannot write " + (options.run_dir / file).string() + ": " +
                       std::strerror(error) + "; the run goes on without it"}});
  }

  // One line of metrics.jsonl, now.
  void metric(const Json& json) {
    check(metrics.append(json_line(json)), "metrics.jsonl");
    if (!board) return;
    check(board->scalars(options.now(), json["step"], tagged_scalars(json)), kBoard);
  }

  void open_board() {
    const SystemTime now = options.now();
    board.emplace(options.run_dir / kBoard, now, options.resume_step + 1);
    const std::filesystem::path settings = options.run_dir / "resolved.yaml";
    if (!std::filesystem::exists(settings)) return;
    const std::string text = read_file(settings);
    check(board->text(now, options.resume_step, "run/settings", as_code(text)), kBoard);
    check(board->settings(now, options.resume_step, given_settings(settings_of(text))), kBoard);
  }

  void event(const std::string& name, const Json& more = Json::object()) {
    Json json;
    json["time"] = time();
    json["event"] = name;
    json.update(more);
    check(events.append(json_line(json)), "events.jsonl");
  }

  void warn(const std::string& name, int64_t step, const Diagnostic& diagnostic, bool shown,
            const Json& more = Json::object()) {
    Json json = {{"step", step}, {"code", diagnostic.code}, {"reason", diagnostic.what}};
    json.update(more);
    event(name, json);
    if (!shown) return;
    std::string text = fmt::format("[{}] {}", diagnostic.code, diagnostic.what);
    for (const std::string& note : diagnostic.notes) text += "; " + note;
    if (!diagnostic.help.empty()) text += "; " + diagnostic.help;
    send({{"kind", "warning"}, {"text", text}});
  }

  void write_status(bool always) {
    const SystemTime now = options.now();
    // A clock that was set back must not silence the status.
    if (!always && status_written && now >= *status_written &&
        now - *status_written < std::chrono::seconds(1)) {
      return;
    }
    status_written = now;
    Json json;
    json["schema"] = "mtl.status/1";
    json["state"] = state;
    json["time"] = utc(now);
    json["pid"] = getpid();
    json["step"] = last ? last->step : options.resume_step;
    if (options.steps > 0) json["steps"] = options.steps;
    if (last) {
      json["steps"] = last->steps;
      json["loss"] = last->loss;
      json["tokens_per_s"] = last->tokens_per_s;
      json["eta_s"] = state == "running" ? last->eta_s : 0.0;
      if (last->loss_scale > 0) json["loss_scale"] = last->loss_scale;
      if (last->skipped > 0) json["skipped"] = last->skipped;
    }
    if (valid_loss) json["valid_loss"] = *valid_loss;
    for (const auto& [rank, report] : stragglers) {
      json["stragglers"].push_back(straggler_json(report));
    }
    if (!checkpoint.empty()) {
      json["checkpoint"] = checkpoint;
      json["checkpoint_step"] = checkpoint_step;
    }
    check(replace_file(options.run_dir / "status.json", json_line(json) + '\n'), "status.json");
  }

  void end(const std::string& how, const std::vector<std::string>& lines) {
    if (last && !last_logged) {
      metric(step_json(*last, last_time));
      last_logged = true;
    }
    state = how;
    finished = true;
    event(how, {{"step", last ? last->step : options.resume_step}});
    write_status(true);
    send({{"kind", "finish"}, {"time", time()}, {"state", how}, {"lines", lines}});
  }

  ReporterOptions options;
  LineFile metrics;
  LineFile events;
  std::optional<LineFile> generated;
  std::optional<EventFile> board;
  ProgressPipe pipe;
  std::optional<ProgressView> view;
  std::string state = "running";
  bool started = false;
  bool finished = false;
  bool warned = false;
  std::optional<StepReport> last;
  std::string last_time;
  bool last_logged = false;
  std::optional<double> valid_loss;
  std::string checkpoint;  // the newest; "" = none
  int64_t checkpoint_step = 0;
  std::map<int, StragglerReport> stragglers;  // by rank
  std::optional<SystemTime> status_written;
};

Reporter::Reporter(ReporterOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Reporter::~Reporter() {
  if (state_->started && !state_->finished) state_->end("failed", {});
}

void Reporter::start(const std::vector<std::string>& lines) {
  State& s = *state_;
  s.started = true;
  const bool resumed = s.options.resume_step > 0;
  s.event(resumed ? "resumed" : "started",
          {{"step", s.options.resume_step}, {"pid", getpid()}, {"lines", lines}});
  if (s.board) {
    std::string text;
    for (const std::string& line : lines) text += line + '\n';
    s.check(s.board->text(s.options.now(), s.options.resume_step, "run/start", as_code(text)),
            kBoard);
  }
  s.write_status(true);
  s.send({{"kind", "start"}, {"time", s.time()}, {"lines", lines}});
}

void Reporter::step(const StepReport& report) {
  State& s = *state_;
  const bool first = !s.last;
  s.last = report;
  s.last_time = s.time();
  s.last_logged = first || report.step % s.options.log_every == 0 || report.step == report.steps ||
                  report.step_skipped;
  Json record = step_json(report, s.last_time);
  if (s.last_logged) s.metric(record);
  record["kind"] = report.step_skipped ? "skip" : "step";
  record["steps"] = report.steps;
  record["eta_s"] = report.eta_s;
  record["logged"] = s.last_logged;
  // A logged step is a line in somebody's log file, the others only redraw.
  s.send(record, !s.last_logged);
  s.write_status(false);
}

void Reporter::eval(int64_t step, double valid_loss, const std::vector<SetLoss>& sets) {
  State& s = *state_;
  s.valid_loss = valid_loss;
  Json json;
  json["step"] = step;
  json["time"] = s.time();
  json["valid_loss"] = valid_loss;
  for (const SetLoss& set : sets) json[kSetLoss + set.name] = set.loss;
  s.metric(json);
  json["kind"] = "eval";
  s.send(json);
  s.write_status(false);
}

void Reporter::generated(const GeneratedReport& report) {
  State& s = *state_;
  for (size_t i = 0; i < report.texts.size(); ++i) {
    const GeneratedReport::Text& text = report.texts[i];
    Json json;
    json["step"] = report.step;
    json["time"] = s.time();
    json["prompt"] = text.prompt;
    json["text"] = text.text;
    json["tokens"] = text.tokens;
    if (!text.ended.empty()) json["ended"] = text.ended;
    json["seconds"] = report.seconds;
    const std::string line = json_line(json);
    if (s.generated) s.check(s.generated->append(line), kGenerated);
    json = Json::parse(line);  // a model of bytes writes what is no UTF-8; the line has none of it
    if (s.board) {
      const std::string shown = json["prompt"].get<std::string>() + json["text"].get<std::string>();
      const std::string tag = fmt::format("generated/prompt {}", i + 1);
      s.check(s.board->text(s.options.now(), report.step, tag, as_code(shown)), kBoard);
    }
    json["kind"] = "generated";
    s.send(json);
  }
}

void Reporter::checkpoint(int64_t step, const std::filesystem::path& path) {
  State& s = *state_;
  s.checkpoint = path.string();
  s.checkpoint_step = step;
  s.event("checkpoint", {{"step", step}, {"path", s.checkpoint}});
  s.send({{"kind", "checkpoint"}, {"time", s.time()}, {"step", step}, {"path", s.checkpoint}});
  s.write_status(true);
}

void Reporter::warning(const std::string& name, int64_t step, const Diagnostic& diagnostic,
                       bool shown) {
  state_->warn(name, step, diagnostic, shown);
}

void Reporter::straggler(int64_t step, const StragglerReport& report, const Diagnostic& diagnostic,
                         bool shown) {
  State& s = *state_;
  s.stragglers.erase(report.rank);
  if (!report.recovered) s.stragglers.emplace(report.rank, report);
  s.warn(report.recovered ? "straggler_recovered" : "straggler", step, diagnostic, shown,
         straggler_json(report));
  s.write_status(true);
}

void Reporter::finish(const std::string& state, const std::vector<std::string>& lines) {
  if (!state_->finished) state_->end(state, lines);
}

namespace {

constexpr const char* kStatus = "status.json";

Json status_in(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / kStatus;
  if (!std::filesystem::exists(path)) return Json::object();
  Json status = Json::parse(read_file(path), nullptr, false);
  return status.is_object() ? status : Json::object();
}

}  // namespace

void record_start(const std::filesystem::path& run_dir) {
  const Json before = status_in(run_dir);
  Json status;
  status["schema"] = "mtl.status/1";
  status["state"] = "running";
  status["time"] = utc_now();
  status["step"] = before.value("checkpoint_step", Json(0));
  for (const char* key : {"steps", "checkpoint", "checkpoint_step"}) {
    if (before.contains(key)) status[key] = before[key];
  }
  replace_file(run_dir / kStatus, json_line(status) + '\n');
}

namespace {

void record_end(const std::filesystem::path& run_dir, const char* state, const Json& more) {
  Json status = status_in(run_dir);
  const std::string time = utc_now();
  status["schema"] = "mtl.status/1";
  status["state"] = state;
  status["time"] = time;
  status.update(more);
  replace_file(run_dir / kStatus, json_line(status) + '\n');
  Json event = {{"time", time}, {"event", state}};
  event.update(more);
  LineFile(run_dir / "events.jsonl").append(json_line(event));
}

}  // namespace

void record_failure(const std::filesystem::path& run_dir, int exit_code,
                    const std::string& reason) {
  record_end(run_dir, "failed", {{"exit_code", exit_code}, {"reason", reason}});
}

void record_stop(const std::filesystem::path& run_dir) {
  const Json status = status_in(run_dir);
  // Of a file that somebody has edited it may be anything.
  if (status.value("state", Json()) != "running") return;
  record_end(run_dir, "stopped", {{"step", status.value("step", Json(0))}});
}

}  // namespace mtl
