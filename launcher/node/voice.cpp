#include "launcher/node/voice.h"

#include <fmt/format.h>

namespace mtl {

namespace {

constexpr size_t kQueueBytes = size_t{64} << 20;

}  // namespace

Voice::Voice(const JobEars& ears) : ears_(ears), outlet_(kQueueBytes, -1, Outlet::Policy::drop) {
  notice_.write = [this](std::string_view block) { each_line(block, ears_.on_notice); };
  line_.write = [this](std::string_view block) { each_line(block, ears_.on_line); };
}

void Voice::output(int rank, bool is_stderr, std::string text) {
  if (!ears_.on_output) return;
  const std::lock_guard lock(mutex_);
  Consumer& consumer = outputs_[{rank, is_stderr}];
  if (!consumer.write) {
    consumer.write = [this, rank, is_stderr](std::string_view block) {
      each_line(block, [&](std::string_view line) { ears_.on_output(rank, is_stderr, line); });
    };
    consumer.gap = [](int64_t bytes) {
      return fmt::format("[{} bytes are missing here: the console was too slow]\n", bytes);
    };
  }
  outlet_.push(consumer, std::move(text));
}

void Voice::notice(std::string_view line) {
  if (ears_.on_notice) push(notice_, line);
}

void Voice::line(std::string_view text) {
  if (ears_.on_line) push(line_, text);
}

void Voice::push(Consumer& consumer, std::string_view text) {
  const std::lock_guard lock(mutex_);
  outlet_.push(consumer, std::string(text) + "\n");
}

}  // namespace mtl
