#include "launcher/output/console_lines.h"

#include "launcher/output/outlet.h"

namespace mtl {

std::string ConsoleLines::add(std::string_view bytes, Clock::time_point now) {
  std::string out;
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    text_ += bytes.substr(0, end);
    if (end == std::string_view::npos) break;
    if (bytes[end] == '\n') {
      end_line(out);
    } else if (!text_.empty()) {
      bar_.swap(text_);
      text_.clear();
      bar_shown_ = now >= next_bar_;
      if (bar_shown_) {
        emit(out, bar_);
        next_bar_ = now + kBarPeriod;
      }
    }
    bytes.remove_prefix(end + 1);
  }
  if (text_.size() >= LineCutter::kMaxLine) end_line(out);
  return out;
}

std::string ConsoleLines::finish() {
  std::string out;
  if (!text_.empty() || !bar_shown_) end_line(out);
  return out;
}

void ConsoleLines::emit(std::string& out, std::string_view text) const {
  out += prefix_;
  out += text;
  out += '\n';
}

void ConsoleLines::end_line(std::string& out) {
  // "100 %\r\n" and "done\r\n" end with the text in front of the carriage return.
  if (!text_.empty() || bar_.empty()) {
    emit(out, text_);
  } else if (!bar_shown_) {
    emit(out, bar_);
  }
  text_.clear();
  bar_.clear();
  bar_shown_ = true;
}

}  // namespace mtl
