// One generation of a job on its node, as told by the controller and told to it: the other end of
// the job's link while ranks run (run_generation is what runs them).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "launcher/agent/agent.h"
#include "launcher/node/generation.h"
#include "launcher/node/job_messages.h"
#include "launcher/node/output_relay.h"
#include "launcher/system/reserved_port.h"
#include "rendezvous/link.h"

namespace mtl {

class NodeGeneration final : private AgentControl {
 public:
  // `on_other` gets the messages that are no order to the ranks. Hub and assignment have to live as
  // long.
  NodeGeneration(LinkHub& hub, LinkId link, const AssignMessage& assign,
                 std::function<void(const LinkMessage&)> on_other);

  // To the ranks' end. `ears`: what hears them here; null = all they say goes over the link. What
  // keeps them from running is told to the controller, like their end; not so if the lease was
  // over: then they did not do their part, and the link is closed.
  void run(const NodeJob& job, const ReservedPort& port, const JobEars* ears);

  bool lease_ended() const { return lease_ended_; }
  const std::optional<LinkEvent>& lost() const { return lost_; }  // the link, while it ran

 private:
  int fd() const override { return hub_.fd(); }
  Command read() override;
  void started(const WorkerCommand& worker, int pid) override;
  void ended(const WorkerEnd& end) override;
  void interrupted(int signal) override;
  std::optional<std::chrono::nanoseconds> lease_end() const override {
    return hub_.lease_end(link_);
  }
  void lease_over() override;

  JobEars ears_over_link();
  StoppedMessage run_ranks(const NodeJob& job, const ReservedPort& port, const JobEars& ears);
  std::optional<Command> order(const LinkMessage& message);
  Command on_lost(const LinkEvent& event);
  void hurry();
  void send(JobMessage kind, std::string body);

  LinkHub& hub_;
  const LinkId link_;
  const AssignMessage& assign_;
  const std::function<void(const LinkMessage&)> on_other_;
  std::optional<OutputRelay> relay_;  // if all goes over the link
  int unended_ = 0;                   // ranks
  std::optional<LinkEvent> lost_;
  bool lease_ended_ = false;
};

}  // namespace mtl
