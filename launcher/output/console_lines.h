// A rank's output for a console that several ranks share: whole lines, each with its rank in front.
// Progress bars (text between carriage returns) would overwrite that, and each other: of a bar, a
// line is shown now and then, and what it ended with.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace mtl {

class ConsoleLines {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kBarPeriod{5};

  ConsoleLines() = default;
  explicit ConsoleLines(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that are complete with these bytes, prefixes and newlines included; may be empty.
  std::string add(std::string_view bytes, Clock::time_point now);
  // The unfinished one at the end of the stream.
  std::string finish();

 private:
  void emit(std::string& out, std::string_view text) const;
  void end_line(std::string& out);

  std::string prefix_;
  std::string text_;       // since the last newline or carriage return
  std::string bar_;        // what stood before the last carriage return of this line
  bool bar_shown_ = true;  // nothing of bar_ is owed
  Clock::time_point next_bar_;
};

}  // namespace mtl
