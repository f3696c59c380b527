// mtl agent: this node's part of a job that a launcher elsewhere controls. Started by `mtl launch`,
// not by people: over ssh, where the protocol runs over stdin and stdout, or by srun, where it
// dials the launcher.
#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"
#include "common/version.h"
#include "launcher/agent/signals.h"
#include "launcher/job/dial.h"
#include "launcher/job/job.h"
#include "launcher/node/node.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

// The line of stdin by which srun says whom to dial. More is not read: it is nobody's.
constexpr int kCallPatienceMs = 60'000;
// How long all ways to the controller are tried before its loopback address is, too: that one leads
// to whatever listens there, on any other machine.
constexpr std::chrono::seconds kFirstWays{2};

Error not_by_hand() {
  return Error(Exit::usage, Diagnostic{.code = "usage.agent",
                                       .what = "mtl agent is started by mtl launch, not by hand",
                                       .help = "mtl launch --hosts m1,m2 train.yaml"});
}

Error no_descriptors() {
  return Error(Exit::environment, Diagnostic{.code = "launch.descriptor",
                                             .what = "cannot set up the agent's descriptors",
                                             .help = "raise the limit of open files"});
}

std::string read_line(int fd) {
  std::string line;
  char c = 0;
  pollfd polled{fd, POLLIN, 0};
  while (line.size() < 65'536 && poll(&polled, 1, kCallPatienceMs) > 0 && read(fd, &c, 1) == 1) {
    if (c == '\n') return line;
    line += c;
  }
  return {};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Whether it leads to this machine only, unless SLURM itself names it.
std::vector<DialTarget> ways_to(const AgentCall& call, bool loopback) {
  std::vector<DialTarget> ways;
  const auto add = [&](const std::string& address) {
    const bool known = std::any_of(ways.begin(), ways.end(),
                                   [&](const DialTarget& way) { return way.address == address; });
    if (!address.empty() && !known) ways.push_back({address, call.port});
  };
  add(variable("SLURM_LAUNCH_NODE_IPADDR"));
  add(variable("SLURM_SRUN_COMM_HOST"));
  for (const std::string& address : call.addresses) {
    if (loopback || !is_loopback(address)) add(address);
  }
  return ways;
}

// Dials the controller of the allocation.
LinkEvent dial_controller(LinkHub& hub, const AgentCall& call) {
  LinkEvent event = dial_first(hub, ways_to(call, false), kFirstWays);
  if (event.kind != LinkEvent::opened) {
    event = dial_first(hub, ways_to(call, true), std::chrono::seconds(30));
  }
  if (event.kind == LinkEvent::opened) return event;
  std::string ways;
  for (const DialTarget& way : ways_to(call, true)) {
    ways += (ways.empty() ? "" : ", ") + way.address;
  }
  throw Error(Exit::environment,
              Diagnostic{.code = "rendezvous.connect",
                         .what = fmt::format("cannot reach the launcher at {} port {}: {}", ways,
                                             call.port, event.reason),
                         .help = "open ports between the nodes, or choose the network with "
                                 "mtl launch --interface"});
}

int number_of(const char* name) {
  const std::string text = variable(name);
  return text.empty() ? -1 : std::atoi(text.c_str());
}

}  // namespace

int command_agent(const Arguments& args) {
  CommandLine line({"agent --stdio", "agent --connect"},
                   "Runs this machine's ranks of a job for `mtl launch`, which starts it over ssh "
                   "(and speaks to it through stdin and stdout) or by srun (and says on stdin whom "
                   "to dial).");
  bool stdio = false;
  bool connect = false;
  double dead_after_s = 5;
  line.flag("stdio", stdio, "speak through stdin and stdout");
  line.flag("connect", connect, "dial the launcher that a line on stdin names");
  line.option("dead_after", "S", dead_after_s, 0.1,
              "silence of the launcher that counts as its end", "5");
  if (!line.parse(args)) return 0;
  if (stdio == connect || isatty(STDIN_FILENO) != 0) throw not_by_hand();
  hold_usr2();
  std::string token = "-";
  AgentCall call;
  if (connect) {
    const auto read = decode_agent_call(read_line(STDIN_FILENO));
    if (!read) throw not_by_hand();
    call = *read;
    token = call.token;
  }
  // Nothing of ours or of a library may be printed into the protocol.
  Fd in(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  Fd out(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::string magic = std::string(kAgentMagic) + "\n";
  if (!in || !out || !null || (stdio && write(out.get(), magic.data(), magic.size()) < 0) ||
      dup2(null.get(), STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw no_descriptors();
  }
  const std::unique_ptr<LinkHub> hub = make_link_hub(
      {.token = token,
       .dead_after = std::chrono::milliseconds(static_cast<int64_t>(1000 * dead_after_s))});
  NodeOptions node;
  node.hub = hub.get();
  if (connect) {
    in.reset();
    out.reset();
    node.opened = dial_controller(*hub, call);
    node.link = node.opened->link;
    node.host = variable("SLURMD_NODENAME");
    node.position = number_of("SLURM_NODEID");
    node.on_loopback = false;
  } else {
    node.link = hub->adopt(std::move(in), std::move(out), true);
  }
  node.version = version();
  node.controller = "the launcher";
  node.remote = true;
  const NodeResult result = run_node(node);
  hub->flush(std::chrono::seconds(2));
  return result.exit_code;
}

}  // namespace mtl
