// A job on the nodes of the SLURM job that this process is in: srun starts an agent on each, and
// the agents dial the controller here. Where it is and the token that proves who is who go through
// srun's stdin, which it hands to every agent: nothing secret stands in an argument, a variable or
// a file, where SLURM keeps it for others to read.
#include <algorithm>
#include <csignal>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/agent/signals.h"
#include "launcher/controller/controller_loop.h"
#include "launcher/job/job.h"
#include "launcher/slurm/srun.h"
#include "launcher/slurm/step.h"
#include "rendezvous/network.h"
#include "rendezvous/node_list.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

// Ports that are tried before any free one: firewalls are told ranges.
constexpr int kPorts = 8;
constexpr size_t kKeptLines = 20;

uint16_t listen_somewhere(LinkHub& hub, const std::string& job_id) {
  for (int attempt = 0;; ++attempt) {
    const int port = attempt < kPorts ? port_of_job(job_id, attempt) : 0;
    try {
      return hub.listen("::", static_cast<uint16_t>(port));
    } catch (const Error&) {
      if (attempt == kPorts) return hub.listen("0.0.0.0", 0);  // without IPv6
    }
  }
}

// What the agents may reach this machine by, besides what SLURM tells them.
std::vector<std::string> own_addresses(const std::string& interface) {
  std::vector<std::string> addresses;
  for (const LocalAddress& local :
       interface.empty() ? local_addresses() : addresses_of(interface)) {
    if (!local.is_loopback) addresses.push_back(local.address);
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

class AllocationJob {
 public:
  explicit AllocationJob(const JobOptions& options)
      : options_(options),
        request_(options.request),
        token_(make_token()),
        hub_(make_link_hub({.token = token_, .dead_after = request_.dead_after})),
        port_(*hub_, options.ears),
        heard_(port_, request_.grace, request_.warning_grace) {}

  JobOutcome run() {
    SignalPipe signals(true);
    ControllerOptions policy = controller_options(options_);
    for (const Host& host : request_.hosts) policy.membership.expected.push_back(host.name);
    policy.job_of = [this](const std::string& host, int position) {
      return job_of(host, position);
    };
    job_ = node_job(options_);
    if (job_.token.empty()) job_.token = make_token();
    Controller controller(std::move(policy), port_, std::chrono::steady_clock::now());
    controller_ = &controller;
    const uint16_t port = listen_somewhere(*hub_, request_.allocation.job_id);
    const std::string call = encode_agent_call(
        {.token = token_, .port = port, .addresses = own_addresses(request_.interface)});
    int position = 0;
    for (const AgentStep& step : agent_steps(request_)) {
      const int first = std::exchange(position, position + static_cast<int>(step.nodes));
      steps_.push_back({std::make_unique<Srun>(step.argv, call), first, position});
    }
    std::vector<LoopSource> sources = {{signals.fd(), [&] { heard_.hear(signals, controller); }}};
    for (const Step& step : steps_) {
      const size_t at = sources.size();
      sources.push_back({step.srun->output_fd(), [&, at] {
                           on_words(step);
                           sources[at].fd = step.srun->output_fd();
                         }});
      sources.push_back({step.srun->end_fd(), [&, at] {
                           on_words(step);
                           sources[at].fd = sources[at + 1].fd = -1;
                           on_end(step);
                         }});
    }
    std::optional<JobOutcome> outcome =
        drive(controller, *hub_, sources, [&] { return heard_.urged() > 2; });
    hub_.reset();
    // Agents that are still on their way would look for us in vain.
    for (const Step& step : steps_) {
      if (!not_come(step).empty()) step.srun->end_step();
    }
    steps_.clear();
    if (!outcome) {
      outcome.emplace();
      outcome->exit_code = 128 + SIGINT;
      outcome->interrupted = true;
    }
    add_words(*outcome);
    return std::move(*outcome);
  }

 private:
  // srun with the agents of some of request_.hosts: first <= position < last.
  struct Step {
    std::unique_ptr<Srun> srun;
    int first = 0, last = 0;
  };

  // The name decides where it is one of the job's: SLURM numbers the nodes of a step. Components of
  // a heterogeneous job may have the same node.
  std::optional<NodeJob> job_of(const std::string& host, int position) {
    const auto& hosts = request_.hosts;
    std::optional<size_t> named;
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (hosts[i].name != host) continue;
      const bool come = come_.count(static_cast<int>(i)) > 0;
      if (!named || !come) named = i;
      if (!come) break;
    }
    const size_t index = named.value_or(static_cast<size_t>(position));
    if (position < 0 || index >= hosts.size()) return {};
    come_.insert(static_cast<int>(index));
    NodeJob job = job_;
    job.position = static_cast<int>(index);
    job.host = hosts[index].name;
    job.logs.host = job.host;
    if (hosts[index].slots > 0) job.slots = hosts[index].slots;
    return job;
  }

  // Of a step those whose agents have not dialled in.
  std::vector<int> not_come(const Step& step) const {
    std::vector<int> positions;
    for (int i = step.first; i < step.last; ++i) {
      if (come_.count(i) == 0) positions.push_back(i);
    }
    return positions;
  }

  // Errors go into the report; what a person should know while nothing happens (a wait for busy
  // nodes, an image that is fetched) is said at once.
  void on_words(const Step& step) {
    for (const std::string& line : step.srun->read_lines()) {
      words_.push_back(line);
      if (words_.size() > kKeptLines) words_.pop_front();
      const bool error =
          line.find("error: ") != std::string::npos || line.find("fatal: ") != std::string::npos;
      if (line.find("Terminating StepId") != std::string::npos) continue;
      if (line.find("lacks support for cpu binding") != std::string::npos) continue;
      const bool fate = line.find(" CANCELLED AT ") != std::string::npos;
      if (fate || (!error && !not_come(step).empty())) port_.notice(line);
      if (error && request_.min_nodes < static_cast<int>(request_.hosts.size())) {
        on_error_of_nodes(step, line);
      }
    }
  }

  // "srun: error: n[2-3]: tasks 1-2: Exited with exit code 127": the others need not wait for them.
  void on_error_of_nodes(const Step& step, const std::string& line) {
    std::vector<int> failed;
    const std::vector<int> missing = not_come(step);
    for (size_t start = 0; start < line.size();) {
      const size_t end = std::min(line.find(' ', start), line.size());
      std::string word = line.substr(start, end - start);
      start = end + 1;
      while (word.ends_with(':') || word.ends_with(',')) word.pop_back();
      Diagnostics ignored;
      for (const std::string& name : expand_node_list(word, ignored)) {
        for (const int position : missing) {
          if (request_.hosts[static_cast<size_t>(position)].name == name) {
            failed.push_back(position);
          }
        }
      }
    }
    for (const int position : failed) come_.insert(position);
    if (!failed.empty()) {
      controller_->hosts_failed(failed,
                                {.code = "slurm.srun",
                                 .what = "srun did not start its agent: " + line,
                                 .help = "look at that node: scontrol show node NAME"},
                                std::chrono::steady_clock::now());
    }
  }

  // Those that have come have links of their own, and need no srun.
  void on_end(const Step& step) {
    const int code = step.srun->take_end();
    const std::vector<int> missing = not_come(step);
    if (missing.empty()) return;
    Diagnostic why{.code = "slurm.srun",
                   .what = fmt::format("srun ended with code {} before its agent was here", code),
                   .notes = {words_.begin(), words_.end()},
                   .help = "srun's own words are above; try: srun --ntasks-per-node=1 hostname"};
    const auto said = [&](const char* text) {
      return std::any_of(words_.begin(), words_.end(), [&](const std::string& line) {
        return line.find(text) != std::string::npos;
      });
    };
    if (said("No such file or directory") || said("Permission denied") || code == 127) {
      why.help =
          "mtl has to be at the same path on every node (a shared file system), or "
          "--remote_program PATH";
    } else if (said("rendezvous.connect")) {
      why.help =
          "the nodes cannot reach this machine: open a port range between them, or choose the "
          "network with --interface";
    } else if (said("More processors requested") || said("Requested node configuration")) {
      why.help = "the job has fewer nodes or CPUs left than it had; ask for a new one";
    }
    controller_->hosts_failed(missing, why, std::chrono::steady_clock::now());
  }

  // SLURM's side of a node that was lost, or of a job that was ended.
  void add_words(JobOutcome& outcome) const {
    if (outcome.report.empty() || outcome.report.front().code != "launch.node_lost") return;
    for (const std::string& line : words_) {
      outcome.report.front().notes.push_back(line);
    }
  }

  const JobOptions& options_;
  const LaunchRequest& request_;
  const std::string token_;
  std::unique_ptr<LinkHub> hub_;
  HubPort port_;
  JobSignals heard_;
  Controller* controller_ = nullptr;
  NodeJob job_;
  std::vector<Step> steps_;
  std::deque<std::string> words_;
  std::set<int> come_;  // nodes whose agents have dialled in, or will not
};

}  // namespace

JobOutcome run_allocation_job(const JobOptions& options) {
  return AllocationJob(options).run();
}

}  // namespace mtl
