// Brings what a job has to say to a person's ears, from any thread and without waiting for them: a
// terminal that stands still (Ctrl-S, a pager) must not keep a controller from hearing Ctrl-C.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/node/generation.h"
#include "launcher/output/outlet.h"

namespace mtl {

// When a person begins to wonder why nothing happens, and how often to say it after that.
constexpr std::chrono::seconds kFirstWord{5};
constexpr std::chrono::seconds kNextWord{30};

class Voice {
 public:
  // `ears` must live as long as the voice; they are called from one thread.
  explicit Voice(const JobEars& ears);
  // Says the rest, however long the ears take.
  ~Voice() = default;

  void output(int rank, bool is_stderr, std::string text);  // whole lines
  void notice(std::string_view line);
  void line(std::string_view text);

 private:
  void push(Consumer& consumer, std::string_view text);

  const JobEars& ears_;
  std::mutex mutex_;
  Consumer notice_, line_;
  std::map<std::pair<int, bool>, Consumer> outputs_;  // by rank and whether it is stderr
  Outlet outlet_;
};

}  // namespace mtl
