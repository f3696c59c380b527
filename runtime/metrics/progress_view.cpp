// The view of a run's records: a redrawn line on a terminal, plain lines elsewhere.
#include <cmath>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/terminal.h"
#include "runtime/metrics/format.h"
#include "runtime/metrics/lines.h"
#include "runtime/metrics/record.h"
#include "runtime/metrics/reporter.h"

namespace mtl {

namespace {

constexpr size_t kRecentLosses = 64;
constexpr std::chrono::milliseconds kRedrawInterval{100};

std::string text_of(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> lines_of(const Json& record) {
  std::vector<std::string> lines;
  const auto found = record.find("lines");
  if (found == record.end() || !found->is_array()) return lines;
  for (const Json& line : *found) {
    if (line.is_string()) lines.push_back(line.get<std::string>());
  }
  return lines;
}

// What a terminal would show of a line that a program redrew with carriage returns.
std::string_view last_redraw(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const size_t at = line.rfind('\r');
  return at == std::string_view::npos ? line : line.substr(at + 1);
}

}  // namespace

struct ProgressView::State {
  ViewOptions options;
  std::deque<double> losses;
  std::optional<StepReport> last;
  bool drawn = false;  // a status line stands on the terminal, without a line break
  std::chrono::steady_clock::time_point drawn_at;

  void put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), options.out);
    std::fflush(options.out);
  }

  // The last column stays free: filling it makes some terminals wrap.
  int columns() const {
    return (options.columns > 0 ? options.columns : terminal_columns(fileno(options.out))) - 1;
  }

  std::string status() const {
    const std::vector<double> recent(losses.begin(), losses.end());
    return status_line(*last, recent, columns(), options.utf8, options.color);
  }

  void draw() {
    put('\r' + status() + "\033[K");
    drawn = true;
    drawn_at = options.now();
  }

  // Prints a line above the status line.
  void print(std::string_view line) {
    std::string text = drawn ? "\r\033[K" : "";
    text += last_redraw(line);
    text += '\n';
    put(text);
    if (drawn) draw();
  }

  void on_step(const Json& record) {
    last = step_from_json(record);
    losses.push_back(last->loss);
    if (losses.size() > kRecentLosses) losses.pop_front();
    const auto logged = record.find("logged");
    if (!options.terminal) {
      if (logged == record.end() || *logged == true)
        print(plain_line(*last, text_of(record, "time")));
      return;
    }
    if (!drawn || last->step == last->steps || options.now() - drawn_at >= kRedrawInterval) draw();
  }

  // A step without an update is said whatever is logged: a run that skips all of them learns
  // nothing.
  void on_skip(const Json& record) {
    last = step_from_json(record);
    if (options.terminal) {
      print(fmt::format("skip   step {}  {}", grouped(last->step), skip_text(*last)));
      if (!drawn) draw();
    } else {
      print(fmt::format("{} step={} skipped: {}", text_of(record, "time"), last->step,
                        skip_text(*last)));
    }
  }

  void on_eval(const Json& record) {
    const StepReport report = step_from_json(record);
    std::string words;
    for (const auto& [key, value] : record.items()) {
      if (key != "valid_loss" && !key.starts_with(kSetLoss)) continue;
      words +=
          fmt::format("{}{}{}{:.4f}", options.terminal ? "  " : " ", key,
                      options.terminal ? ' ' : '=', value.is_number() ? value.get<double>() : NAN);
    }
    if (options.terminal) {
      print(fmt::format("eval   step {}{}", grouped(report.step), words));
    } else {
      print(fmt::format("{} step={}{}", text_of(record, "time"), report.step, words));
    }
  }

  void on_generated(const Json& record) {
    const int64_t step = step_from_json(record).step;
    const std::string prompt = text_of(record, "prompt"), text = text_of(record, "text");
    if (options.terminal) {
      print(fit_width(fmt::format("text   step {}  {}", grouped(step), one_line(prompt + text)),
                      columns(), options.utf8));
    } else {
      print(one_line(fmt::format("{} step={} prompt={} text={}", text_of(record, "time"), step,
                                 json_line(prompt), json_line(text))));
    }
  }

  void on_checkpoint(const Json& record) {
    const int64_t step = step_from_json(record).step;
    if (options.terminal) {
      print(fmt::format("saved  step {}  {}", grouped(step), text_of(record, "path")));
    } else {
      print(fmt::format("{} step={} checkpoint={}", text_of(record, "time"), step,
                        text_of(record, "path")));
    }
  }

  void on_warning(const Json& record) {
    const char* mark = options.color ? "\033[1;33mwarning\033[0m: " : "warning: ";
    print(mark + text_of(record, "text"));
  }

  // Leaves the last status where it is, below everything else, and goes to a new line.
  void leave() {
    if (!drawn) return;
    draw();
    put("\n");
    drawn = false;
  }
};

ProgressView::ProgressView(ViewOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}

ProgressView::~ProgressView() {
  close();
}

void ProgressView::record(const std::string& json_line) {
  const Json record = Json::parse(json_line, nullptr, false);
  if (!record.is_object()) {
    text(json_line);
    return;
  }
  const std::string kind = text_of(record, "kind");
  if (kind == "start") {
    for (const std::string& line : lines_of(record)) state_->print(line);
  } else if (kind == "step") {
    state_->on_step(record);
  } else if (kind == "skip") {
    state_->on_skip(record);
  } else if (kind == "eval") {
    state_->on_eval(record);
  } else if (kind == "generated") {
    state_->on_generated(record);
  } else if (kind == "checkpoint") {
    state_->on_checkpoint(record);
  } else if (kind == "warning") {
    state_->on_warning(record);
  } else if (kind == "finish") {
    state_->leave();
    for (const std::string& line : lines_of(record)) state_->print(line);
  }
}

void ProgressView::text(const std::string& line) {
  state_->print(line);
}

void ProgressView::close() {
  state_->leave();
}

}  // namespace mtl
