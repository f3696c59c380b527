// Drives a Controller over a LinkHub until the job is over.
#pragma once

#include <functional>
#include <vector>

#include "launcher/agent/signals.h"
#include "launcher/controller/controller.h"
#include "launcher/node/generation.h"
#include "launcher/node/voice.h"
#include "rendezvous/link.h"

namespace mtl {

// Something else that the loop waits for: `on_ready` is called when `fd` is readable.
struct LoopSource {
  int fd = -1;
  std::function<void()> on_ready;
};

// The controller's voice: links through the hub, words through `ears`.
class HubPort final : public ControllerPort {
 public:
  HubPort(LinkHub& hub, const JobEars& ears) : hub_(hub), voice_(ears) {}
  void send(LinkId link, JobMessage kind, int64_t generation, std::string body) override;
  void close(LinkId link) override;
  void notice(const std::string& line) override;
  void output(const OutputMessage& message) override;
  void line(const std::string& text) override;

 private:
  LinkHub& hub_;
  Voice voice_;
};

// What a launcher does with the signals that it gets while agents elsewhere run its job.
class JobSignals {
 public:
  // What is said of how long a stop may take, after a signal and after USR2.
  JobSignals(ControllerPort& port, std::chrono::milliseconds grace,
             std::chrono::milliseconds warning_grace)
      : port_(port), grace_(grace), warning_grace_(warning_grace) {}
  void hear(SignalPipe& signals, Controller& controller);
  int urged() const { return urged_; }  // how often it was to stop; more than twice = now

 private:
  ControllerPort& port_;
  const std::chrono::milliseconds grace_, warning_grace_;
  int urged_ = 0;
  bool told_not_stopped_ = false;
  bool time_nearly_over_ = false;
};

// Until the controller has an outcome, or `abandon` says so (then nothing is returned). What was
// sent has left when it returns.
std::optional<JobOutcome> drive(Controller& controller, LinkHub& hub,
                                const std::vector<LoopSource>& sources,
                                const std::function<bool()>& abandon);

}  // namespace mtl
