#include "launcher/controller/controller_loop.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

namespace mtl {

void HubPort::send(LinkId link, JobMessage kind, int64_t generation, std::string body) {
  hub_.send(link, {static_cast<uint16_t>(kind), generation, std::move(body)});
}

void HubPort::close(LinkId link) {
  hub_.close(link);
}

void HubPort::notice(const std::string& line) {
  voice_.notice(line);
}

void HubPort::output(const OutputMessage& message) {
  voice_.output(message.rank, message.is_stderr, message.text);
}

void HubPort::line(const std::string& text) {
  voice_.line(text);
}

void JobSignals::hear(SignalPipe& signals, Controller& controller) {
  for (const int signal : signals.take()) {
    const auto now = std::chrono::steady_clock::now();
    const auto asked = [&](std::chrono::milliseconds grace, const char* more) {
      port_.notice(fmt::format("{}: asked the job to stop (up to {:.3g} s{}", signal_name(signal),
                               std::chrono::duration<double>(grace).count(), more));
    };
    switch (signal) {
      case SIGTSTP:
        if (!std::exchange(told_not_stopped_, true)) port_.notice(kNotStopped);
        break;
      case SIGUSR1:
      case SIGQUIT:
        controller.pass_on(signal);
        break;
      case SIGUSR2:
        if (!std::exchange(time_nearly_over_, true))
          asked(warning_grace_, "): its time is nearly over");
        controller.interrupt(signal, now);
        break;
      default:
        if (++urged_ == 1) asked(grace_, "; once more = kill)");
        controller.interrupt(signal, now);
    }
  }
}

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::optional<JobOutcome> drive(Controller& controller, LinkHub& hub,
                                const std::vector<LoopSource>& sources,
                                const std::function<bool()>& abandon) {
  while (!controller.outcome()) {
    std::vector<pollfd> polled = {{hub.fd(), POLLIN, 0}};
    for (const LoopSource& source : sources) polled.push_back({source.fd, POLLIN, 0});
    int patience = -1;
    if (const auto next = controller.next_tick(Clock::now())) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
      patience = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
    }
    poll(polled.data(), polled.size(), patience);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (polled[i + 1].revents != 0) sources[i].on_ready();
    }
    if (abandon && abandon()) return {};
    while (!controller.outcome()) {
      const std::optional<LinkEvent> event = hub.next();
      if (!event) break;
      switch (event->kind) {
        case LinkEvent::opened:
          break;
        case LinkEvent::arrived:
          controller.received(event->link, event->message, event->clock_ahead, Clock::now());
          break;
        case LinkEvent::turned_away:
          controller.turned_away(event->reason);
          break;
        case LinkEvent::lost:
          controller.lost(event->link, event->loss, event->reason, Clock::now());
          break;
      }
    }
    controller.tick(Clock::now());
  }
  hub.flush(std::chrono::seconds(2));
  return controller.outcome();
}

}  // namespace mtl
