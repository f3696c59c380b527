// How far a long command is: one redrawn line on a terminal, a line now and then elsewhere.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "common/terminal.h"

namespace mtl {

class CounterLine {
 public:
  CounterLine();
  ~CounterLine();  // takes the line off the terminal
  // Calls `text` only when it is to be shown.
  void show(const std::function<std::string()>& text);
  // A message of several lines, above the line.
  void message(const std::string& text);

 private:
  void clear();

  Terminal terminal_;
  std::chrono::steady_clock::time_point shown_at_;
  bool drawn_ = false;
};

}  // namespace mtl
