#include "launcher/node/output_relay.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "common/quiet_threads.h"
#include "launcher/node/job_messages.h"

namespace mtl {

namespace {

using std::chrono::milliseconds;

// Lines become blocks of this size, or of what comes within the time.
constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr milliseconds kGather{10};
// Collected beside the block that waits for the link.
constexpr size_t kCollected = 2 * kBlockBytes;
// Of dropped lines, the newest that are sent all the same.
constexpr size_t kNewest = kBlockBytes;
// Between two looks at the link.
constexpr milliseconds kFirstLook{1};
constexpr milliseconds kLongestLook{8};
// What counts at most of the time between two looks that are farther apart: this process, and with
// it the hub, did not run (it was stopped, or its machine was), and the link could not move.
constexpr milliseconds kLongestCounted = 4 * kLongestLook;

// What a line stands for: the agent's own mark for a gap (AgentOutput) for the bytes that are
// missing there, or the sum would be wrong where such a mark is dropped.
int64_t bytes_behind(std::string_view line) {
  constexpr std::string_view kBegin = "[mtl: ";
  constexpr std::string_view kEnd = " bytes of output are not shown here: ";
  int64_t bytes = 0;
  if (line.starts_with(kBegin)) {
    const char* const end = line.data() + line.size();
    const auto [rest, error] = std::from_chars(line.data() + kBegin.size(), end, bytes);
    const std::string_view words(rest, static_cast<size_t>(end - rest));
    if (error == std::errc() && words.starts_with(kEnd)) return bytes;
  }
  return static_cast<int64_t>(line.size()) + 1;
}

}  // namespace

OutputRelay::OutputRelay(LinkHub& hub, LinkId link, int64_t generation,
                         const OutputRelayOptions& options)
    : hub_(hub), link_(link), generation_(generation), options_(options) {}

OutputRelay::~OutputRelay() {
  finish();
}

void OutputRelay::line(int rank, bool is_stderr, std::string_view text) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return bytes_ < kCollected || dropping_; });
  // Also of a fast link: millions of short lines may be left.
  if (ended_ && !dropping_) dropping_ = ended_before(Clock::now());
  if (dropping_) return keep(rank, is_stderr, text);
  if (!thread_.joinable()) {
    const SignalsBlocked for_the_thread;
    thread_ = std::thread([this] { run(); });
  }
  const bool was_empty = blocks_.empty();
  const bool was_complete = block_complete();
  if (was_empty || blocks_.back().rank != rank || blocks_.back().is_stderr != is_stderr ||
      blocks_.back().text.size() + text.size() >= kBlockBytes) {
    blocks_.push_back({rank, is_stderr, {}});
  }
  std::string& block = blocks_.back().text;
  block += text;
  block += '\n';
  bytes_ += text.size() + 1;
  const bool wake = was_empty || was_complete != block_complete();
  lock.unlock();
  if (wake) filled_.notify_one();
}

void OutputRelay::hurry() {
  const std::lock_guard lock(mutex_);
  hurried_ = true;
}

void OutputRelay::ranks_ended() {
  const std::lock_guard lock(mutex_);
  if (!ended_) ended_ = Clock::now();
}

void OutputRelay::finish() {
  {
    const std::lock_guard lock(mutex_);
    hurried_ = true;
    closing_ = true;
  }
  filled_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (dropped_ > 0) {
    gap_.text = fmt::format(
        "[mtl: {} bytes of output were not shown: the connection did not keep up]\n", dropped_);
    dropped_ = 0;
    send(gap_);
  }
  for (auto line = newest_.begin(); line != newest_.end();) {
    Block block = std::move(*line);
    for (++line;
         line != newest_.end() && line->rank == block.rank && line->is_stderr == block.is_stderr;
         ++line) {
      block.text += line->text;
    }
    send(block);
  }
  newest_.clear();
}

void OutputRelay::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    filled_.wait(lock, [this] { return closing_ || !blocks_.empty(); });
    if (blocks_.empty()) return;
    filled_.wait_for(lock, kGather, [this] { return closing_ || block_complete(); });
    wait_for_link(lock);
    const Block block = std::move(blocks_.front());
    blocks_.pop_front();
    bytes_ -= block.text.size();
    lock.unlock();
    room_.notify_one();
    send(block);
    lock.lock();
  }
}

bool OutputRelay::block_complete() const {
  return blocks_.size() > 1 || bytes_ >= kBlockBytes;
}

// Looks at the link again and again: only its hub knows when something has gone out, and whoever
// could be told waits for us at the end (run_agent joins the thread that calls line()).
void OutputRelay::wait_for_link(std::unique_lock<std::mutex>& lock) {
  milliseconds look = kFirstLook;
  size_t queued = hub_.queued_bytes(link_);
  Clock::duration still{0};  // since the ranks' end, without a move of the link
  while (!dropping_ && queued >= options_.budget) {
    const Clock::time_point before = Clock::now();
    lock.unlock();
    std::this_thread::sleep_for(look);
    lock.lock();
    look = std::min(2 * look, kLongestLook);
    const Clock::time_point now = Clock::now();
    const auto counted = std::min<Clock::duration>(now - before, kLongestCounted);
    const size_t left = hub_.queued_bytes(link_);
    still = left < queued || !ended_ ? Clock::duration(0) : still + counted;
    queued = left;
    if (hurried_) waited_ += counted;
    // Ranks may have ended just now.
    if (ended_) *ended_ = std::min(now, *ended_ + (now - before - counted));
    if (waited_ < options_.patience && still < options_.patience &&
        !(ended_ && ended_before(now))) {
      continue;
    }
    // The little that has been collected goes out all the same: the gap comes after it.
    dropping_ = true;
    room_.notify_one();
  }
}

bool OutputRelay::ended_before(Clock::time_point now) const {
  return now >= *ended_ + (hurried_ ? options_.patience : options_.rest);
}

void OutputRelay::send(const Block& block) {
  hub_.send(link_, {static_cast<uint16_t>(JobMessage::output), generation_,
                    encode(OutputMessage{block.rank, block.is_stderr, block.text})});
}

void OutputRelay::drop(int rank, bool is_stderr, std::string_view text) {
  if (dropped_ == 0) gap_ = {rank, is_stderr, {}};
  dropped_ += bytes_behind(text);
}

void OutputRelay::keep(int rank, bool is_stderr, std::string_view text) {
  newest_.push_back({rank, is_stderr, fmt::format("{}\n", text)});
  newest_bytes_ += text.size() + 1;
  while (newest_bytes_ > kNewest) {
    const Block& oldest = newest_.front();
    newest_bytes_ -= oldest.text.size();
    drop(oldest.rank, oldest.is_stderr,
         std::string_view(oldest.text).substr(0, oldest.text.size() - 1));
    newest_.pop_front();
  }
}

}  // namespace mtl
