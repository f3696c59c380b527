// The hub as its owner sees it: requests go to the hub's thread through one list, events come back
// through another, with an eventfd for poll().
#include "rendezvous/link.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include <sys/eventfd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "common/error.h"
#include "common/quiet_threads.h"
#include "rendezvous/link_loop.h"
#include "rendezvous/longest_wait.h"

namespace mtl {

namespace {

namespace asio = boost::asio;
using link::Loop;
using link::Outgoing;
using link::Peer;

void check_body(const LinkMessage& message) {
  if (message.body.size() <= link::kMaxBody) return;
  throw Error(
      Exit::environment,
      {.code = "rendezvous.too_large",
       .what = fmt::format("a message of {} bytes (kind {}) does not fit on a link; at most "
                           "{} do",
                           message.body.size(), message.kind, link::kMaxBody),
       .help = "send it in parts"});
}

class Hub final : public LinkHub {
 public:
  explicit Hub(const LinkHubOptions& options)
      : options_(options),
        event_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        work_(asio::make_work_guard(io_)),
        loop_(io_, options, [this](LinkEvent event) { push(std::move(event)); }) {
    if (!event_fd_) {
      throw Error(Exit::environment,
                  {.code = "rendezvous.links",
                   .what = fmt::format("cannot make an eventfd: {}", strerror(errno)),
                   .help = "raise the limit of open files (ulimit -n)"});
    }
    loop_.new_id = [this] { return ++last_id_; };
    loop_.drained = [this] { answer_flushes(); };
    loop_.leased_until = [this](LinkId link, std::optional<link::Nanoseconds> end) {
      const std::lock_guard lock(leases_mutex_);
      if (end) {
        leases_[link] = *end;
      } else {
        leases_.erase(link);
      }
    };
    start_thread();
  }

  ~Hub() override {
    io_.stop();
    thread_.join();
  }

  uint16_t listen(const std::string& address, uint16_t port) override {
    auth::check_token(options_.token);
    std::vector<Fd> sockets = net::listen_on_all(address, port, 2 * options_.dead_after);
    const uint16_t bound = net::port_of(sockets.front().get());
    run([this, sockets = std::make_shared<std::vector<Fd>>(std::move(sockets))] {
      for (Fd& socket : *sockets) loop_.listen(std::move(socket));
    });
    return bound;
  }

  LinkId connect(const std::string& address, uint16_t port, std::chrono::milliseconds patience,
                 const std::string& from) override {
    auth::check_token(options_.token);
    const LinkId id = ++last_id_;
    run([=, this] {
      const auto peer = std::make_shared<Peer>(loop_, id);
      loop_.peers[id] = peer;
      peer->connect(address, port, patience, from);
    });
    return id;
  }

  LinkId adopt(Fd in, Fd out, bool leased) override {
    const LinkId id = ++last_id_;
    run([=, this, ends = std::make_shared<std::pair<Fd, Fd>>(std::move(in), std::move(out))] {
      const auto peer = std::make_shared<Peer>(loop_, id);
      loop_.peers[id] = peer;
      peer->adopt(std::move(ends->first), std::move(ends->second), leased);
    });
    return id;
  }

  void send(LinkId link, LinkMessage message) override {
    check_body(message);
    Sending sending{link, outgoing(std::move(message))};
    loop_.backlog.asked(link, static_cast<int64_t>(sending.frame.size()));
    request(std::move(sending));
  }

  void close(LinkId link, std::chrono::milliseconds linger) override {
    {
      const std::lock_guard lock(events_mutex_);
      silenced_.insert(link);
      std::erase_if(events_, [link](const LinkEvent& event) { return event.link == link; });
      if (events_.empty()) lower();
    }
    linger = std::clamp(linger, std::chrono::milliseconds(0), kLongestWait);
    run([this, link, linger] {
      const auto found = loop_.peers.find(link);
      if (found != loop_.peers.end()) {
        const std::shared_ptr<Peer> peer = found->second;
        peer->close(linger);
      }
      const std::lock_guard lock(events_mutex_);
      silenced_.erase(link);
    });
  }

  bool flush(std::chrono::milliseconds patience) override {
    const auto done = std::make_shared<std::promise<void>>();
    std::future<void> future = done->get_future();
    run([this, done] {
      flushes_.push_back(done);
      if (loop_.is_drained()) answer_flushes();
    });
    patience = std::clamp(patience, std::chrono::milliseconds(0), kLongestWait);
    return future.wait_for(patience) == std::future_status::ready;
  }

  size_t queued_bytes(LinkId link) const override { return loop_.backlog.of(link); }
  std::optional<std::chrono::nanoseconds> lease_end(LinkId link) const override {
    const std::lock_guard lock(leases_mutex_);
    const auto found = leases_.find(link);
    return found != leases_.end() ? std::optional(found->second) : std::nullopt;
  }

  std::chrono::milliseconds dead_after() const override { return options_.dead_after; }

  int fd() const override { return event_fd_.get(); }

  std::optional<LinkEvent> next() override {
    const std::lock_guard lock(events_mutex_);
    if (events_.empty()) return std::nullopt;
    LinkEvent event = std::move(events_.front());
    events_.pop_front();
    if (events_.empty()) lower();
    return event;
  }

 private:
  struct Sending {
    LinkId link;
    Outgoing frame;
  };
  using Request = std::variant<Sending, std::function<void()>>;

  static Outgoing outgoing(LinkMessage message) {
    Outgoing frame;
    frame.head = link::message_head(message.kind, message.generation, message.body.size());
    frame.body = std::move(message.body);
    return frame;
  }

  void run(std::function<void()> action) { request(Request(std::move(action))); }

  // In order, whichever thread asks; the hub's thread is woken once for many of them.
  void request(Request request) {
    {
      const std::lock_guard lock(requests_mutex_);
      requests_.push_back(std::move(request));
      if (requests_.size() > 1) return;  // the hub's thread has been told
    }
    asio::post(io_, [this] { serve_requests(); });
  }

  // A part of them at a time: what the peers say in the meantime has its turn too.
  void serve_requests() {
    constexpr size_t kAtOnce = 128;
    std::vector<Request> requests;
    {
      const std::lock_guard lock(requests_mutex_);
      const auto end = requests_.begin() + std::min<ptrdiff_t>(kAtOnce, std::ssize(requests_));
      std::move(requests_.begin(), end, std::back_inserter(requests));
      requests_.erase(requests_.begin(), end);
      if (!requests_.empty()) asio::post(io_, [this] { serve_requests(); });
    }
    // Everything for one link first, then one write to it.
    std::vector<std::shared_ptr<Peer>> to_write;
    const auto send = [&](Sending& sending) {
      const auto found = loop_.peers.find(sending.link);
      const std::shared_ptr<Peer> peer = found != loop_.peers.end() ? found->second : nullptr;
      const auto bytes = static_cast<int64_t>(sending.frame.size());
      if (peer) peer->send(std::move(sending.frame));
      loop_.backlog.asked(sending.link, -bytes);
      if (!peer) return;
      if (to_write.empty() || to_write.back() != peer) to_write.push_back(peer);
    };
    const auto write = [&] {
      for (const auto& peer : to_write) peer->write();
      to_write.clear();
    };
    for (Request& request : requests) {
      if (Sending* const sending = std::get_if<Sending>(&request)) {
        send(*sending);
      } else {
        write();
        std::get<std::function<void()>>(request)();
      }
    }
    write();
  }

  void answer_flushes() {
    for (const auto& done : flushes_) done->set_value();
    flushes_.clear();
  }

  void push(LinkEvent event) {
    const std::lock_guard lock(events_mutex_);
    if (!silenced_.empty() && silenced_.contains(event.link)) return;
    events_.push_back(std::move(event));
    if (raised_ || raising_) return;
    // Not at once: the handlers that are ready now run first, and the owner wakes up once for all
    // of their events.
    raising_ = true;
    asio::post(io_, [this] { raise(); });
  }

  void raise() {
    const std::lock_guard lock(events_mutex_);
    raising_ = false;
    if (events_.empty() || raised_) return;
    raised_ = true;
    const uint64_t one = 1;
    (void)!::write(event_fd_.get(), &one, sizeof(one));
  }

  void lower() {
    if (!raised_) return;
    raised_ = false;
    uint64_t count = 0;
    (void)!::read(event_fd_.get(), &count, sizeof(count));
  }

  void start_thread() {
    const SignalsBlocked for_the_thread;
    try {
      thread_ = std::thread([this] { run_loop(); });
    } catch (const std::system_error& error) {
      throw Error(Exit::environment,
                  {.code = "rendezvous.links",
                   .what = fmt::format("cannot start a thread: {}", error.what()),
                   .help = "raise the limit of processes and threads (ulimit -u, pids.max)"});
    }
  }

  // One connection's failure (no memory, no random bytes) must not end the others.
  void run_loop() {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception&) {
        // The connection's handler is gone; its deadline removes what is left of it.
      }
    }
  }

  const LinkHubOptions options_;
  Fd event_fd_;
  std::atomic<LinkId> last_id_{0};
  std::mutex requests_mutex_;
  std::deque<Request> requests_;
  std::mutex events_mutex_;
  std::deque<LinkEvent> events_;
  bool raised_ = false;                  // event_fd_ is readable
  bool raising_ = false;                 // ... or will be in a moment
  std::unordered_set<LinkId> silenced_;  // closed by the owner, not yet by the thread
  std::vector<std::shared_ptr<std::promise<void>>> flushes_;
  mutable std::mutex leases_mutex_;
  std::unordered_map<LinkId, link::Nanoseconds> leases_;  // of the open links that are leased
  asio::io_context io_{1};                                // one thread runs it
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Loop loop_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<LinkHub> make_link_hub(const LinkHubOptions& options) {
  return std::make_unique<Hub>(options);
}

}  // namespace mtl
