#include "launcher/agent/end_notes.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "launcher/agent/error_file.h"
#include "launcher/output/outlet.h"

namespace mtl {

namespace {

// Of the error that a rank wrote down.
constexpr size_t kErrorLines = 8;
constexpr size_t kErrorLineBytes = 500;

}  // namespace

bool read_own_words(WorkerEnd& end, const std::filesystem::path& error_file) {
  const bool failed = end.exit_code != 0 && end.exit_code != static_cast<int>(Exit::requeue);
  if (!failed || error_file.empty()) return false;
  const std::optional<ErrorFile> error = read_error_file(error_file);
  if (!error) return false;
  size_t lines = 0;
  each_line(error->message, [&](std::string_view line) {
    if (lines++ < kErrorLines) {
      end.notes.push_back((lines == 1 ? "its error: " : "  ") +
                          std::string(line.substr(0, kErrorLineBytes)));
    }
  });
  if (!error->when) return false;
  end.when = std::min(end.when, *error->when);
  return true;
}

void end_as_stopped(WorkerEnd& end, std::chrono::system_clock::time_point since) {
  end.signal = SIGSTOP;
  end.exit_code = static_cast<int>(Exit::timeout);
  end.notes.push_back(fmt::format(
      "it had been stopped (state T) for {:.3g} s: somebody sent it SIGSTOP, or it read from a "
      "terminal in the background (job control)",
      std::chrono::duration<double>(std::chrono::system_clock::now() - since).count()));
  end.when = since;
}

}  // namespace mtl
