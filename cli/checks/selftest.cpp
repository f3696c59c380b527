// mtl selftest: one rank of `mtl test`. Not shown in the overview: nobody types it.
#include "runtime/selftest.h"

#include <csignal>
#include <optional>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "runtime/link_bench.h"

namespace mtl {

int command_selftest(const Arguments& args) {
  std::string hosts;
  double timeout_s = 15;
  bool links = false;
  std::optional<std::string> until;
  CommandLine line({"selftest [options]"},
                   "Runs one rank of mtl test. Started by mtl test and mtl topo --bench, once per "
                   "rank, with the environment of torchrun and MTL_TOKEN_FD.");
  line.option("timeout", "SECONDS", timeout_s, 0.1, "of each stage", "15");
  line.option("hosts", "H1,H2", hosts, "what to call the hosts, in order of nodes");
  line.choice("until", {std::begin(kSelftestStages), std::end(kSelftestStages)}, until,
              "the last stage", std::end(kSelftestStages)[-1]);
  line.flag("links", links, "measure the links between the ranks, and nothing else");
  if (!line.parse(args)) return 0;
  // Whoever reads the progress may die first; that must not end a rank.
  std::signal(SIGPIPE, SIG_IGN);
  if (links) return static_cast<int>(run_link_bench());
  SelftestOptions options;
  if (until) options.stages = selftest_stages_until(*until);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  for (size_t begin = 0; begin < hosts.size();) {
    const size_t end = std::min(hosts.find(',', begin), hosts.size());
    options.hosts.push_back(hosts.substr(begin, end - begin));
    begin = end + 1;
  }
  return static_cast<int>(run_selftest(options));
}

}  // namespace mtl
