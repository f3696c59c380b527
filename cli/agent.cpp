// mtl agent: this node's part of a job that a launcher elsewhere controls. Started by `mtl launch
// --hosts` over ssh, not by people: the protocol runs over stdin and stdout.
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "common/error.h"
#include "common/version.h"
#include "launcher/job.h"
#include "launcher/node.h"

namespace mtl {

int command_agent(const Arguments& args) {
  CommandLine line({"agent --stdio"},
                   "Runs this machine's ranks of a job for `mtl launch --hosts`, which starts it "
                   "over ssh and speaks to it through stdin and stdout.");
  bool stdio = false;
  double dead_after_s = 5;
  line.flag("stdio", stdio, "speak through stdin and stdout");
  line.option("dead_after", "S", dead_after_s, 0.1,
              "silence of the launcher that counts as its end", "5");
  if (!line.parse(args)) return 0;
  if (!stdio || isatty(STDIN_FILENO) != 0) {
    throw Error(Exit::usage, Diagnostic{.code = "usage.agent",
                                        .what = "mtl agent is started by mtl launch, not by hand",
                                        .help = "mtl launch --hosts m1,m2 train.yaml"});
  }
  // Nothing of ours or of a library may be printed into the protocol.
  Fd in(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  Fd out(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::string magic = std::string(kAgentMagic) + "\n";
  if (!in || !out || !null || write(out.get(), magic.data(), magic.size()) < 0 ||
      dup2(null.get(), STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw Error(Exit::environment, Diagnostic{.code = "launch.descriptor",
                                              .what = "cannot set up the agent's descriptors",
                                              .help = "raise the limit of open files"});
  }
  const std::unique_ptr<LinkHub> hub = make_link_hub(
      {.token = "-",
       .dead_after = std::chrono::milliseconds(static_cast<int64_t>(1000 * dead_after_s))});
  NodeOptions node;
  node.hub = hub.get();
  node.link = hub->adopt(std::move(in), std::move(out), true);
  node.version = version();
  node.controller = "the launcher";
  node.remote = true;
  const NodeResult result = run_node(node);
  hub->flush(std::chrono::seconds(2));
  return result.exit_code;
}

}  // namespace mtl
