#include "launcher/ssh/loop.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::ssh {

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) {
    throw Error(Exit::environment,
                {.code = "launch.descriptor",
                 .what = fmt::format("cannot wait for hosts: {}", strerror(errno))});
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

uint64_t Loop::watch(int fd, uint32_t events, Handler handler) {
  const uint64_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  watches_.emplace(id, Watch{fd, events, std::make_shared<Handler>(std::move(handler))});
  return id;
}

void Loop::change(uint64_t id, uint32_t events) {
  const auto found = watches_.find(id);
  if (found == watches_.end() || found->second.events == events) return;
  found->second.events = events;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second.fd, &event);
}

void Loop::unwatch(uint64_t id) {
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
  watches_.erase(found);
}

void Loop::forget(uint64_t id) {
  watches_.erase(id);
}

uint64_t Loop::at(Clock::time_point when, Work work) {
  const uint64_t id = next_id_++;
  timers_.emplace(std::pair(when, id), std::move(work));
  timer_times_.emplace(id, when);
  return id;
}

void Loop::cancel(uint64_t timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

void Loop::defer(Work work) {
  deferred_.push_back(std::move(work));
}

void Loop::post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  eventfd_write(wake_.get(), 1);
}

void Loop::stop() {
  post([this] { stopping_ = true; });
}

void Loop::run_deferred() {
  while (!deferred_.empty()) {
    std::vector<Work> now;
    now.swap(deferred_);
    for (Work& work : now) work();
  }
}

void Loop::run_timers() {
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
    run_deferred();
  }
}

int Loop::wait_ms() const {
  if (timers_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

void Loop::run() {
  epoll_event events[64];
  run_deferred();
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events, 64, wait_ms());
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == 0) {
        eventfd_t ignored;
        eventfd_read(wake_.get(), &ignored);
        std::vector<Work> now;
        {
          const std::lock_guard lock(mutex_);
          now.swap(posted_);
        }
        for (Work& work : now) {
          work();
          run_deferred();
        }
        continue;
      }
      const uint64_t id = events[i].data.u64;  // a copy: events are packed
      const auto found = watches_.find(id);
      if (found == watches_.end()) continue;  // unwatched by an earlier handler of this round
      const std::shared_ptr<Handler> handler = found->second.handler;
      (*handler)(events[i].events);
      run_deferred();
    }
    run_timers();
  }
}

}  // namespace mtl::ssh
