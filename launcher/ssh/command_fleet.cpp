#include "launcher/ssh/command_fleet.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "common/quiet_threads.h"
#include "launcher/ssh/child.h"
#include "launcher/ssh/events.h"
#include "launcher/ssh/loop.h"
#include "launcher/ssh/messages.h"
#include "launcher/ssh/start_up.h"

namespace mtl::ssh {

namespace {

constexpr int kFailureOfSsh = 255;
constexpr int kMostStarts = 12;
constexpr int kFirstRestMs = 100, kLongestRestMs = 2'000;

std::vector<std::string> command_line(const FleetOptions& options, const Host& host) {
  // The shell splits what the person wrote; all else is passed as it is.
  std::vector<std::string> argv{"/bin/sh", "-c", "exec " + options.ssh_command + " \"$@\"",
                                "mtl-ssh"};
  const auto add = [&](std::initializer_list<std::string> words) {
    argv.insert(argv.end(), words);
  };
  if (options.config_file == "none") {
    add({"-F", "/dev/null"});
  } else if (!options.config_file.empty()) {
    add({"-F", options.config_file});
  }
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(options.connect_timeout).count();
  add({"-T", "-o", "BatchMode=yes", "-o", fmt::format("ConnectTimeout={}", seconds)});
  if (host.port > 0) add({"-p", std::to_string(host.port)});
  if (!host.user.empty()) add({"-l", host.user});
  add({"--", host.name, options.command});
  return argv;
}

struct Places {
  int free;
  std::function<void()> fill;
};

class CommandRun {
 public:
  CommandRun(Loop& loop, EventQueue& events, Places& places, const FleetOptions& options,
             size_t index)
      : loop_(loop), events_(events), places_(places), options_(options), index_(index) {}
  ~CommandRun() { unwatch(); }
  CommandRun(const CommandRun&) = delete;
  CommandRun& operator=(const CommandRun&) = delete;

  void start() {
    deadline_ = Clock::now() + options_.connect_timeout;
    timer_ = loop_.at(deadline_, [this] { time_out(); });
    spawn();
  }

 private:
  const Host& host() const { return options_.hosts[index_]; }

  void spawn() {
    ++tries_;
    filter_ = std::make_unique<MagicFilter>(options_.magic);
    errors_ = {};
    int ends[2], pipe[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return fail(classify(host(), options_, kFailureOfSsh, "", strerror(errno)));
    }
    stream_ = Fd(ends[0]);
    const Fd theirs(ends[1]);
    if (pipe2(pipe, O_CLOEXEC) != 0) {
      return fail(classify(host(), options_, kFailureOfSsh, "", strerror(errno)));
    }
    stderr_ = Fd(pipe[0]);
    const Fd their_stderr(pipe[1]);
    make_nonblocking(stream_.get());
    make_nonblocking(stderr_.get());
    child_ = Child(command_line(options_, host()), theirs.get(), their_stderr.get());
    if (child_.pid() < 0) {
      return fail(classify(host(), options_, kFailureOfSsh, "", strerror(errno)));
    }
    // By edges: an unfinished line stays in the socket, as what follows is not ours.
    stream_watch_ = loop_.watch(stream_.get(), EPOLLIN | EPOLLET, [this](uint32_t) { look(); });
    stderr_watch_ = loop_.watch(stderr_.get(), EPOLLIN, [this](uint32_t) { read_errors(); });
    child_watch_ = loop_.watch(child_.ended_fd(), EPOLLIN, [this](uint32_t) { ended(); });
  }

  void unwatch() {
    for (uint64_t* watch : {&stream_watch_, &stderr_watch_, &child_watch_}) {
      if (*watch != 0) loop_.unwatch(*watch);
      *watch = 0;
    }
    loop_.cancel(timer_);
    loop_.cancel(retry_);
  }

  // Takes whole lines up to the magic one and not a byte more: the rest is the owner's.
  void look() {
    std::string bytes(64 * 1024, '\0');
    for (;;) {
      const ssize_t got = recv(stream_.get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;  // at the end, the child's end tells more
      const std::string_view seen(bytes.data(), static_cast<size_t>(got));
      size_t used = 0;
      bool magic = false;
      while (!magic && used < seen.size()) {
        const size_t end = seen.find('\n', used);
        if (end == std::string_view::npos) break;
        std::string_view rest;
        magic = filter_->feed(seen.substr(used, end + 1 - used), rest);
        used = end + 1;
      }
      if (used == 0) {
        if (seen.size() < bytes.size()) return;
        std::string_view rest;
        used = seen.size();
        filter_->feed(seen, rest);
      }
      recv(stream_.get(), bytes.data(), used, MSG_DONTWAIT);
      if (magic) return begin();
    }
  }

  void begin() {
    loop_.unwatch(stream_watch_);
    stream_watch_ = 0;
    loop_.cancel(timer_);
    started_ = true;
    filter_.reset();
    FleetEvent event;
    event.kind = FleetEvent::started;
    event.host = index_;
    event.stream = std::move(stream_);
    events_.push(std::move(event));
    leave();
  }

  void read_errors() {
    char bytes[4096];
    for (;;) {
      const ssize_t got = read(stderr_.get(), bytes, sizeof bytes);
      if (got > 0) {
        errors_.add({bytes, static_cast<size_t>(got)});
      } else if (got == 0 || errno != EINTR) {
        if (got == 0 && stderr_watch_ != 0) {
          loop_.unwatch(stderr_watch_);
          stderr_watch_ = 0;
        }
        return;
      }
    }
  }

  void ended() {
    read_errors();
    if (!started_) {
      look();
      if (!started_) drain();
    }
    const int status = child_.reap();
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailureOfSsh;
    unwatch();
    if (started_) {
      FleetEvent event;
      event.kind = FleetEvent::ended;
      event.host = index_;
      // It says the same for a lost connection and a command that died of a signal.
      if (code != kFailureOfSsh) event.exit_code = code;
      event.stderr_tail = errors_.text();
      events_.push(std::move(event));
      return;
    }
    const std::string errors = errors_.text();
    const int longest = std::min(kFirstRestMs << std::min(tries_, 8), kLongestRestMs);
    std::uniform_int_distribution<int> some(longest / 2, longest);
    const auto again = Clock::now() + std::chrono::milliseconds(some(random_));
    // Dropped before the greeting: the server may be busy.
    if (code == kFailureOfSsh && tries_ < kMostStarts && again < deadline_ &&
        errors.find("kex_exchange_identification") != std::string::npos) {
      timer_ = loop_.at(deadline_, [this] { time_out(); });
      retry_ = loop_.at(again, [this] { spawn(); });
      return;
    }
    fail(classify(host(), options_, code, filter_->noise(), errors));
  }

  void drain() {
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(stream_.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) {
      std::string_view rest;
      filter_->feed({bytes, static_cast<size_t>(got)}, rest);
    }
  }

  void time_out() {
    if (child_.pid() > 0) read_errors();
    drain();
    HostSettings settings;
    settings.name = settings.host_name = host().name;
    settings.user = host().user;
    Diagnostic error = timed_out(settings, options_.connect_timeout.count(),
                                 "ssh, and the command's first line", filter_->noise());
    add_lines(error.notes, "ssh says:", errors_.text());
    error.help = fmt::format("try: {} {}", options_.ssh_command, host().name);
    fail(error);
  }

  void fail(const Diagnostic& error) {
    unwatch();
    child_ = Child();
    stream_.reset();
    FleetEvent event;
    event.kind = FleetEvent::failed;
    event.host = index_;
    event.error = error;
    event.stderr_tail = errors_.text();
    events_.push(std::move(event));
    leave();
  }

  void leave() {
    ++places_.free;
    loop_.defer(places_.fill);
  }

  Loop& loop_;
  EventQueue& events_;
  Places& places_;
  const FleetOptions& options_;
  size_t index_;
  Child child_;
  Fd stream_, stderr_;
  uint64_t stream_watch_ = 0, stderr_watch_ = 0, child_watch_ = 0, timer_ = 0, retry_ = 0;
  std::unique_ptr<MagicFilter> filter_;
  Tail errors_;
  Clock::time_point deadline_;
  std::minstd_rand random_{std::random_device{}()};
  int tries_ = 0;
  bool started_ = false;
};

class CommandFleet final : public SshFleet {
 public:
  explicit CommandFleet(const FleetOptions& options)
      : options_(options), places_{std::max(1, options.handshakes), [this] { fill(); }} {
    for (size_t i = 0; i < options_.hosts.size(); ++i) {
      runs_.push_back(std::make_unique<CommandRun>(loop_, events_, places_, options_, i));
    }
    const SignalsBlocked for_the_thread;
    // The children die with the thread that started them: this one.
    thread_ = std::thread([this] {
      loop_.defer([this] { fill(); });
      loop_.run();
      runs_.clear();
    });
  }
  ~CommandFleet() override {
    loop_.stop();
    thread_.join();
  }
  int fd() const override { return events_.fd(); }
  std::optional<FleetEvent> next() override { return events_.pop(); }
  std::vector<Diagnostic> warnings() const override { return {}; }

 private:
  void fill() {
    while (places_.free > 0 && next_ < runs_.size()) {
      --places_.free;
      runs_[next_++]->start();
    }
  }

  const FleetOptions options_;
  EventQueue events_;
  Loop loop_;
  Places places_;
  std::vector<std::unique_ptr<CommandRun>> runs_;
  size_t next_ = 0;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<SshFleet> start_command_fleet(const FleetOptions& options) {
  return std::make_unique<CommandFleet>(options);
}

}  // namespace mtl::ssh
