#include "cli/data/counter_line.h"

#include <cstdio>
#include <unistd.h>

namespace mtl {

namespace {

constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kPlainLine{10};

}  // namespace

CounterLine::CounterLine()
    : terminal_(inspect_terminal(STDERR_FILENO)), shown_at_(std::chrono::steady_clock::now()) {}

CounterLine::~CounterLine() {
  clear();
}

void CounterLine::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

void CounterLine::show(const std::function<std::string()>& text) {
  const auto now = std::chrono::steady_clock::now();
  const auto pause = terminal_.redraw ? std::chrono::milliseconds(kRedraw) : kPlainLine;
  if (now - shown_at_ < pause) return;
  shown_at_ = now;
  if (!terminal_.redraw) {
    std::fprintf(stderr, "%s\n", text().c_str());
    return;
  }
  const int columns = terminal_columns(STDERR_FILENO);
  std::fprintf(stderr, "\r\x1b[K%s", fit_width(text(), columns - 1, terminal_.utf8).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void CounterLine::message(const std::string& text) {
  clear();
  std::fputs(text.c_str(), stderr);
}

}  // namespace mtl
