// The last thing on the screen after a failure: which rank, where, why, since when, its last
// lines, and what to do. The others' collateral noise stays in their logs.
#include <algorithm>
#include <csignal>
#include <ctime>

#include <fmt/format.h>

#include "common/utf8.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/signals.h"

namespace mtl {

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

std::string clock_text(std::chrono::system_clock::time_point when) {
  const auto since_epoch = duration_cast<milliseconds>(when.time_since_epoch()).count();
  const std::time_t seconds = since_epoch / 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[64];
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return fmt::format("{}.{:03}", text, since_epoch % 1000);
}

std::string duration_text(milliseconds span) {
  const auto ms = std::max<int64_t>(span.count(), 0);
  if (ms < 60'000) return fmt::format("{:.1f} s", static_cast<double>(ms) / 1000);
  const int64_t s = ms / 1000;
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

// A worker's bytes must neither break the terminal nor the report's encoding; colours go too.
std::string printable(std::string_view line) {
  std::string text;
  while (!line.empty()) {
    if (line.starts_with("\x1b[")) {
      size_t end = 2;
      while (end < line.size() && (line[end] < 0x40 || line[end] > 0x7E)) ++end;
      line.remove_prefix(std::min(end + 1, line.size()));
      continue;
    }
    const size_t length = utf8_length(line, 0);
    const auto first = static_cast<unsigned char>(line[0]);
    if (length == 0) {
      text += "\xEF\xBF\xBD";
    } else if (first == '\t') {
      text += "    ";
    } else if (first >= 0x20 && first != 0x7F) {
      text += line.substr(0, length);
    }
    line.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

// Where a person finds it: of another host, with its name in front.
std::string log_place(const WorkerEnd& end) {
  return end.host.empty() ? end.log.string() : end.host + ":" + end.log.string();
}

// Where a rank of ours has said what to do, in the last error that it printed: a place in its last
// lines, or their number if it has not.
constexpr std::string_view kHelp = "  help: ";
size_t own_advice(const WorkerEnd& end) {
  bool in_error = false;
  size_t place = end.last_lines.size();
  for (size_t i = 0; i < end.last_lines.size(); ++i) {
    if (end.last_lines[i].starts_with("error[")) in_error = true;
    if (in_error && end.last_lines[i].starts_with(kHelp)) place = i;
  }
  return place;
}

// `own`: what it said itself, "" = nothing.
std::string advice(const WorkerEnd& end, bool is_ours, const std::string& own) {
  const std::string log = !end.log.empty() ? "its log, " + log_place(end)
                          : end.shown      ? "its output above"
                                      : "its output (--tee 3 shows it, --log_dir DIR keeps it)";
  const auto noted = [&](const char* words) {
    return std::any_of(end.notes.begin(), end.notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  };
  switch (end.signal) {
    case 0:
      break;
    case SIGKILL:
      if (noted("out-of-memory killer")) {
        return "it needs less memory or the job more: a smaller micro-batch, fewer ranks per node, "
               "a higher memory limit";
      }
      return "somebody or the system killed it: look for an out-of-memory kill in dmesg, and at "
             "the scheduler's limits";
    case SIGSTOP:
      return "wake a stopped process with kill -CONT within the time that a stop may last, or do "
             "not "
             "stop single ranks: the others wait for them";
    case SIGBUS:
      return "usually shared memory is full (df -h /dev/shm) or a mapped file was cut; see " + log;
    case SIGSEGV:
    case SIGABRT:
    case SIGILL:
    case SIGFPE:
      if (noted("a core was dumped")) {
        return "it crashed; look at the stack in its core with gdb; see " + log;
      }
      return "it crashed; see " + log +
             ", and for a stack: coredumpctl gdb, or ulimit -c unlimited and run again";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "somebody outside stopped this one process; stop a run with a signal to the launcher";
    default:
      break;
  }
  if (!own.empty()) return own + "; see " + log;
  switch (is_ours ? end.exit_code : 0) {
    case static_cast<int>(Exit::out_of_memory):
      return "use a smaller micro-batch or split the model over more ranks; see " + log;
    case static_cast<int>(Exit::timeout):
      return "a rank hung or was too slow: compare the ends of all ranks' logs; see " + log;
    default:
      return "see " + log;
  }
}

}  // namespace

std::string how_it_ended(const WorkerEnd& end) {
  if (end.signal == SIGSTOP) return "was stopped by SIGSTOP";
  return end.signal != 0 ? "was killed by " + signal_name(end.signal)
                         : fmt::format("exited with code {}", end.exit_code);
}

std::string ranks_name(const WorkerEnd& end) {
  return end.ranks == 1 ? fmt::format("rank {}", end.rank)
                        : fmt::format("ranks {}-{}", end.rank, end.rank + end.ranks - 1);
}

Diagnostic failure_report(const AgentResult& result, bool is_ours) {
  if (!result.first_failure) {
    return Diagnostic{
        .code = "run.stopped",
        .what = result.interrupted ? "the run was stopped on request" : "no rank failed",
        .severity = Diagnostic::Severity::warning};
  }
  const WorkerEnd& end = *result.first_failure;
  const size_t own = is_ours && end.signal == 0 ? own_advice(end) : end.last_lines.size();
  const bool advised = own < end.last_lines.size();
  const std::string place =
      end.host.empty() ? "" : fmt::format("local {} on {}, ", end.local_rank, end.host);
  Diagnostic report{
      .code = "rank.died",
      .what = fmt::format("{} ({}pid {}) {}", ranks_name(end), place, end.pid, how_it_ended(end)),
      .help =
          advice(end, is_ours, advised ? printable(end.last_lines[own].substr(kHelp.size())) : "")};
  report.notes.push_back(
      fmt::format("at {}, {} after the start", clock_text(end.when),
                  duration_text(duration_cast<milliseconds>(end.when - result.started))));
  for (const std::string& note : end.notes) report.notes.push_back(printable(note));
  if (!end.last_lines.empty()) {
    report.notes.push_back("its last lines on stderr:");
    for (size_t i = 0; i < end.last_lines.size(); ++i) {
      // Its advice is that of the report, and stands there.
      if (advised && i == own) continue;
      report.notes.push_back("| " + printable(end.last_lines[i]));
    }
  }
  size_t stopped = 0;
  std::string also;
  for (const WorkerEnd& other : result.ends) {
    if (other.rank == end.rank) continue;
    if (other.stopped_by_us) {
      stopped += static_cast<size_t>(other.ranks);
    } else if (other.exit_code != 0) {
      also +=
          fmt::format("{}{} {}", also.empty() ? "" : ", ", ranks_name(other), how_it_ended(other));
    }
  }
  if (stopped > 0 && !end.stopped_by_us) {
    report.notes.push_back(fmt::format("{} other rank{} stopped because of it", stopped,
                                       stopped == 1 ? " was" : "s were"));
  } else if (end.stopped_by_us && result.interrupted) {
    report.notes.push_back("it had been asked to stop before");
  }
  if (!also.empty()) report.notes.push_back("then " + also);
  if (!end.log.empty()) report.notes.push_back("log: " + log_place(end));
  return report;
}

}  // namespace mtl
