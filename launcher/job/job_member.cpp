// A job whose command is typed on every node. Each process is its node's agent; one is the
// controller as well, in a thread beside it: machine_rank 0, or with an elastic rendezvous whoever
// can listen at its address first.
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <sys/eventfd.h>

#include <fmt/format.h>

#include "common/quiet_threads.h"
#include "launcher/controller/controller_loop.h"
#include "launcher/job/dial.h"
#include "launcher/job/job.h"
#include "launcher/node/node.h"
#include "launcher/node/voice.h"
#include "launcher/system/reserved_port.h"
#include "rendezvous/network.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

// How long the controller may take to send its last messages (see drive()), and to end a job whose
// node here is the first to know, beyond the grace of the others.
constexpr std::chrono::seconds kLastMessages{5};
constexpr std::chrono::seconds kLastNodes{15};

// Of the node beside the controller, among those without one: the first, so that rank 0's output is
// seen where the rendezvous is.
constexpr int kOwnPosition = 0;

class ControllerThread {
 public:
  ControllerThread(const JobOptions& options, std::unique_ptr<LinkHub> hub)
      : hub_(std::move(hub)), end_(eventfd(0, EFD_CLOEXEC)), port_(*hub_, silent_) {
    ControllerOptions policy = controller_options(options);
    policy.tell_nodes = true;
    policy.membership.by_rank = !options.request.elastic;
    policy.grows = options.request.elastic;
    policy.own_position = kOwnPosition;
    if (policy.membership.by_rank) policy.ranks = options.request.ranks;
    policy.total_said = options.request.total_said;
    if (policy.is_ours) policy.token = make_token();
    controller_.emplace(std::move(policy), port_, std::chrono::steady_clock::now());
    const SignalsBlocked for_the_thread;
    thread_ = std::thread([this] {
      std::optional<JobOutcome> outcome =
          drive(*controller_, *hub_, {{end_.get(), [] {}}}, [this] { return ending_.load(); });
      const std::lock_guard lock(mutex_);
      outcome_ = std::move(outcome);
      over_.notify_all();
    });
  }
  ~ControllerThread() {
    ending_ = true;
    eventfd_write(end_.get(), 1);
    if (thread_.joinable()) thread_.join();
  }
  ControllerThread(const ControllerThread&) = delete;
  ControllerThread& operator=(const ControllerThread&) = delete;

  // After the end of this node's part: how the job ended. Nothing if this controller never had the
  // job, because another one answers at the address.
  std::optional<JobOutcome> outcome(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    over_.wait_for(lock, patience, [&] { return outcome_.has_value(); });
    return outcome_;
  }

 private:
  const JobEars silent_;
  std::unique_ptr<LinkHub> hub_;
  const Fd end_;
  std::atomic<bool> ending_{false};
  HubPort port_;
  std::optional<Controller> controller_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::optional<JobOutcome> outcome_;
  std::thread thread_;
};

// At the first of `ports` that nobody else has; the port. What is thrown for the last one, if all
// are taken.
uint16_t listen_at(LinkHub& hub, const std::string& address, const std::vector<uint16_t>& ports) {
  for (size_t i = 0; i + 1 < ports.size(); ++i) {
    try {
      return hub.listen(address, ports[i]);
    } catch (const Error& error) {
      if (error.diagnostics().front().code != "rendezvous.port") throw;
    }
  }
  return hub.listen(address, ports.back());
}

// Somebody on this machine has the port.
bool is_taken(const Error& error) {
  const Diagnostic& why = error.diagnostics().front();
  return why.code == "rendezvous.port" && why.what.find("in use") != std::string::npos;
}

// The same error, with who has the port.
Error with_owner(const Error& error, uint16_t port) {
  std::vector<Diagnostic> reports = error.diagnostics();
  if (const std::string owner = port_owner(port); !owner.empty()) {
    reports.front().notes.push_back(fmt::format("port {} is taken by {}", port, owner));
  }
  return Error(error.exit(), std::move(reports));
}

// The hub of the controller, listening; nothing if another node's process has the address.
// `port`: where it listens. `taken`: that process is on this machine.
std::unique_ptr<LinkHub> listening_hub(const JobOptions& options, const LinkHubOptions& hub_options,
                                       uint16_t& port, bool& taken) {
  const LaunchRequest& request = options.request;
  std::unique_ptr<LinkHub> hub = make_link_hub(hub_options);
  const bool own_name = request.max_nodes > 1 && !is_loopback(request.address) &&
                        resolves_to_loopback(request.address);
  std::vector<uint16_t> ports = {request.port};
  ports.insert(ports.end(), request.ports.begin(), request.ports.end());
  try {
    port = listen_at(*hub, own_name ? "::" : request.address, ports);
    return hub;
  } catch (const Error& error) {
    taken = is_taken(error);
    if (request.elastic) return nullptr;
    if (taken) throw with_owner(error, ports.back());
    // An address that this machine does not have itself (port forwarding, a container): then all of
    // them.
    if (options.ears.on_notice) {
      options.ears.on_notice(
          fmt::format("note: {} is no address of {}; it waits for the others on all that it has",
                      request.address, host_name()));
    }
    port = listen_at(*hub, "::", ports);
    return hub;
  }
}

// Joins where it is not known which of several ports the controller could get. Other jobs may be
// behind the rest: they refuse our token.
LinkEvent open_link(LinkHub& hub, const JobOptions& options, uint16_t own_port) {
  const LaunchRequest& request = options.request;
  std::vector<DialTarget> targets;
  if (own_port != 0) {
    targets.push_back({request.address, own_port});
  } else {
    targets.push_back({request.address, request.port});
    for (const uint16_t port : request.ports) targets.push_back({request.address, port});
  }
  const auto until = Clock::now() + request.join_timeout;
  std::chrono::milliseconds patience = kFirstWord;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    LinkEvent event = dial_first(hub, targets, std::min(patience, left));
    if (event.kind == LinkEvent::opened || Clock::now() + kFirstWord > until) return event;
    if (options.ears.on_notice) {
      options.ears.on_notice(
          fmt::format("waiting for the rendezvous at {}: {}", request.address, event.reason));
    }
    patience = kNextWord;
  }
}

}  // namespace

JobOutcome run_member_job(const JobOptions& options) {
  const LaunchRequest& request = options.request;
  LinkHubOptions hub_options{.token = request.token, .dead_after = request.dead_after};
  if (hub_options.token.empty()) hub_options.token = "run " + request.run_id;

  std::optional<ControllerThread> controller;
  uint16_t own_port = 0;
  bool taken = false;
  const bool may_control = request.elastic || request.machine_rank == 0;
  if (may_control) {
    if (std::unique_ptr<LinkHub> hub = listening_hub(options, hub_options, own_port, taken)) {
      if (request.token.empty() && options.ears.on_notice) {
        options.ears.on_notice(fmt::format(
            "note: whoever reaches {} port {} and knows the run's id may join; --token_file FILE "
            "keeps others out",
            request.address, own_port));
      }
      controller.emplace(options, std::move(hub));
    }
  }

  const std::unique_ptr<LinkHub> hub = make_link_hub(hub_options);
  NodeOptions node;
  node.hub = hub.get();
  node.join_timeout = request.join_timeout;
  if (request.ports.empty()) {
    node.redial = [&](std::chrono::milliseconds patience) {
      return hub->connect(request.address, request.port, patience);
    };
    node.link = node.redial(std::min<std::chrono::milliseconds>(kFirstWord, request.join_timeout));
  } else {
    node.opened = open_link(*hub, options, own_port);
    node.link = node.opened->link;
  }
  node.version = options.version;
  node.job = node_job(options);
  if (!request.elastic) {
    node.rank = request.machine_rank;
    node.said_nodes = request.max_nodes;
    if (request.total_said) node.said_ranks = request.ranks;
    node.job->master_address = request.address;
  } else if (controller) {
    node.job->position = kOwnPosition;
  }
  node.controller = fmt::format("{} port {}", request.address, request.port);
  node.on_loopback = request.max_nodes == 1 || is_loopback(request.address);
  node.ears = options.ears;
  // As its scheduler calls this node, where the machine's own name says less.
  if (const char* name = std::getenv("SLURMD_NODENAME"); name != nullptr && *name != '\0') {
    node.job->host = name;
    if (node.job->logs.host.empty()) node.job->logs.host = name;
  }
  const NodeResult result = [&] {
    try {
      return run_node(node);
    } catch (const Error& error) {
      // Whom we took for the rendezvous of our job is that of another, or none at all.
      if (!taken || !error.diagnostics().front().code.starts_with("rendezvous.")) throw;
      throw with_owner(error, request.port);
    }
  }();

  if (controller) {
    const auto patience = result.controller_lost ? request.grace + kLastNodes : kLastMessages;
    if (auto outcome = controller->outcome(patience)) return std::move(*outcome);
  }
  JobOutcome outcome;
  outcome.exit_code = result.exit_code;
  outcome.report = result.report;
  return outcome;
}

}  // namespace mtl
