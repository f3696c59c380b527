#include "launcher/ssh/libssh_fleet.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <sys/socket.h>

#include "common/quiet_threads.h"
#include "launcher/ssh/events.h"
#include "launcher/ssh/messages.h"
#include "launcher/ssh/start_up.h"

namespace mtl::ssh {

namespace {

// A host from which nothing comes for so long does not keep its place in the window of handshakes.
constexpr std::chrono::milliseconds kPlaceWithoutAnswer{1'000};
constexpr int kSilentPerPlace = 4;

struct Window;

// One host from its start to the end of its command.
class HostRun final : public Dial::User {
 public:
  HostRun(Shared& shared, JumpHosts& jumps, EventQueue& events, Window& window,
          const FleetOptions& options, Route route, size_t index);
  void start();
  bool silent() const { return dial_.silent(); }

 private:
  enum class State { queued, dialling, opening, asking, waiting, running, over };

  void ready() override;
  void failed(const Diagnostic& error) override;
  void activity() override;
  void lost(const std::string& why) override;
  void advance();
  void begin_stream(std::string_view rest);
  void fail_start(const std::string& lost);
  void report(FleetEvent event);
  void finish();
  void leave_window();

  friend struct Window;

  Shared& shared_;
  EventQueue& events_;
  Window& window_;
  const FleetOptions& options_;
  Route route_;
  size_t index_;
  Dial dial_;
  State state_ = State::queued;
  std::unique_ptr<ChannelStream> stream_;
  std::unique_ptr<MagicFilter> filter_;
  std::string rest_;  // what followed the magic line, until the stream is attached
  bool magic_seen_ = false;
  Tail errors_;
  uint64_t timer_ = 0, place_timer_ = 0;
  bool holds_place_ = false, holds_silent_place_ = false;
};

// Who may be in its handshake.
struct Window {
  Loop& loop;
  int places;
  int silent_places = kSilentPerPlace * places;
  std::vector<std::unique_ptr<HostRun>> hosts = {};
  size_t next = 0;

  void fill() {
    while (places > 0 && next < hosts.size()) {
      --places;
      HostRun& host = *hosts[next++];
      host.holds_place_ = true;
      host.place_timer_ = loop.at(Clock::now() + kPlaceWithoutAnswer, [this, &host] {
        if (!host.holds_place_ || !host.silent() || silent_places == 0) return;
        host.holds_place_ = false;
        host.holds_silent_place_ = true;
        --silent_places;
        ++places;
        fill();
      });
      host.start();
    }
  }
};

HostRun::HostRun(Shared& shared, JumpHosts& jumps, EventQueue& events, Window& window,
                 const FleetOptions& options, Route route, size_t index)
    : shared_(shared),
      events_(events),
      window_(window),
      options_(options),
      route_(std::move(route)),
      index_(index),
      dial_(shared, jumps, route_.host, std::move(route_.hops), *this) {}

void HostRun::start() {
  state_ = State::dialling;
  const Clock::time_point deadline = Clock::now() + options_.connect_timeout;
  timer_ = shared_.loop.at(deadline, [this] {
    if (state_ < State::opening || state_ > State::waiting) return;
    Diagnostic error = timed_out(
        route_.host, options_.connect_timeout.count(),
        state_ == State::waiting ? "the command's first line" : "the start of the command",
        filter_ ? filter_->noise() : "");
    add_lines(error.notes, "stderr:", errors_.text());
    failed(error);
  });
  // ConnectTimeout of the configuration can only shorten it, and ends with the authentication.
  std::chrono::milliseconds patience = options_.connect_timeout;
  if (const int seconds = route_.host.connect_timeout_s; seconds > 0) {
    patience = std::min<std::chrono::milliseconds>(patience, std::chrono::seconds(seconds));
  }
  dial_.start(Clock::now() + patience, patience);
}

void HostRun::leave_window() {
  shared_.loop.cancel(place_timer_);
  if (holds_place_) ++window_.places;
  if (holds_silent_place_) ++window_.silent_places;
  holds_place_ = holds_silent_place_ = false;
  shared_.loop.defer([this] { window_.fill(); });
}

void HostRun::report(FleetEvent event) {
  event.host = index_;
  events_.push(std::move(event));
}

void HostRun::failed(const Diagnostic& error) {
  if (state_ == State::over) return;
  finish();
  FleetEvent event;
  event.kind = FleetEvent::failed;
  event.error = error;
  event.stderr_tail = errors_.text();
  report(std::move(event));
}

void HostRun::finish() {
  state_ = State::over;
  shared_.loop.cancel(timer_);
  leave_window();
  // Not now: this may run inside of what is to be destroyed.
  shared_.loop.defer([this] {
    if (stream_) stream_->close();
    stream_.reset();
    filter_.reset();
    dial_.hang_up();
  });
}

void HostRun::ready() {
  state_ = State::opening;
  filter_ = std::make_unique<MagicFilter>(options_.magic);
  stream_ = std::make_unique<ChannelStream>(shared_.loop, dial_.connection(), [this] {
    activity();
    if (state_ != State::over) dial_.connection().rearm();
  });
  stream_->on_stdout = [this](std::string_view bytes) {
    std::string_view rest;
    if (magic_seen_) {
      rest_.append(bytes);
    } else if (filter_->feed(bytes, rest)) {
      magic_seen_ = true;
      rest_ = rest;
    }
  };
  stream_->on_stderr = [this](std::string_view bytes) { errors_.add(bytes); };
  activity();
  if (state_ != State::over) dial_.connection().rearm();
}

void HostRun::activity() {
  if (state_ == State::over || !stream_) return;
  advance();
  if (state_ == State::running) {
    stream_->update();
    dial_.connection().pause_reading(stream_->congested());
    if (stream_->finished()) {
      FleetEvent event;
      event.kind = FleetEvent::ended;
      event.exit_code = stream_->exit_code;
      event.signal = stream_->exit_signal;
      event.stderr_tail = errors_.text();
      finish();
      report(std::move(event));
    }
  }
}

void HostRun::advance() {
  if (state_ == State::opening) {
    const int rc = ssh_channel_open_session(stream_->channel());
    if (rc == SSH_AGAIN) return;
    if (rc != SSH_OK) return fail_start(ssh_get_error(dial_.connection().session()));
    state_ = State::asking;
  }
  if (state_ == State::asking) {
    const int rc = ssh_channel_request_exec(stream_->channel(), options_.command.c_str());
    if (rc == SSH_AGAIN) return;
    if (rc != SSH_OK) return fail_start(ssh_get_error(dial_.connection().session()));
    state_ = State::waiting;
    leave_window();
  }
  if (state_ != State::waiting) return;
  if (magic_seen_) {
    begin_stream(rest_);
  } else if (stream_->remote_closed()) {
    fail_start("");
  }
}

void HostRun::begin_stream(std::string_view rest) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return fail_start(strerror(errno));
  }
  shared_.loop.cancel(timer_);
  state_ = State::running;
  filter_.reset();
  FleetEvent event;
  event.kind = FleetEvent::started;
  event.stream = Fd(ends[1]);
  report(std::move(event));
  stream_->attach(Fd(ends[0]), rest);
  rest_ = {};
}

void HostRun::fail_start(const std::string& lost) {
  failed(command_failed(route_.host, options_.command,
                        {.exit_code = stream_->exit_code,
                         .signal = stream_->exit_signal,
                         .lost = lost,
                         .noise = filter_->noise(),
                         .errors = errors_.text()}));
}

void HostRun::lost(const std::string& why) {
  if (state_ == State::over) return;
  if (state_ != State::running) return fail_start(why);
  stream_->connection_lost();
  if (stream_->finished()) return activity();
  // The reader has not taken everything yet; its socket's events bring us to the end.
}

class LibsshFleet final : public SshFleet {
 public:
  LibsshFleet(const FleetOptions& options, std::vector<Route> routes,
              std::vector<Diagnostic> warnings)
      : options_(options), warnings_(std::move(warnings)), shared_(options.handshakes) {
    for (size_t i = 0; i < routes.size(); ++i) {
      window_.hosts.push_back(std::make_unique<HostRun>(shared_, jumps_, events_, window_, options_,
                                                        std::move(routes[i]), i));
    }
    const SignalsBlocked for_the_thread;
    thread_ = std::thread([this] { run(); });
  }
  ~LibsshFleet() override {
    shared_.loop.stop();
    thread_.join();
  }
  int fd() const override { return events_.fd(); }
  std::optional<FleetEvent> next() override { return events_.pop(); }
  std::vector<Diagnostic> warnings() const override { return warnings_; }

 private:
  void run() {
    shared_.loop.defer([this] { window_.fill(); });
    shared_.loop.run();
    window_.hosts.clear();
    jumps_.close();
  }

  const FleetOptions options_;
  const std::vector<Diagnostic> warnings_;
  EventQueue events_;
  Shared shared_;
  JumpHosts jumps_{shared_};
  Window window_{shared_.loop, std::max(1, options_.handshakes)};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<SshFleet> start_libssh_fleet(const FleetOptions& options, std::vector<Route> routes,
                                             std::vector<Diagnostic> warnings) {
  return std::make_unique<LibsshFleet>(options, std::move(routes), std::move(warnings));
}

}  // namespace mtl::ssh
