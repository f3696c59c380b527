// A job on the nodes of the SLURM job that this process is in: srun starts an agent on each, and
// the agents dial the controller here. Where it is and the token that proves who is who go through
// srun's stdin, which it hands to every agent: nothing secret stands in an argument, a variable or
// a file, where SLURM keeps it for others to read.
#include <algorithm>
#include <csignal>
#include <deque>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/controller_loop.h"
#include "launcher/job.h"
#include "launcher/signals.h"
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
    srun_.emplace(
        agent_step(request_),
        encode_agent_call(
            {.token = token_, .port = port, .addresses = own_addresses(request_.interface)}));
    std::vector<LoopSource> sources(3);
    sources[0] = {signals.fd(), [&] { heard_.hear(signals, controller); }};
    sources[1] = {srun_->output_fd(), [&] {
                    on_words();
                    sources[1].fd = srun_->output_fd();
                  }};
    sources[2] = {srun_->end_fd(), [&] {
                    on_words();
                    sources[1].fd = sources[2].fd = -1;
                    on_end(srun_->take_end());
                  }};
    std::optional<JobOutcome> outcome =
        drive(controller, *hub_, sources, [&] { return heard_.urged() > 2; });
    hub_.reset();
    // Agents that are still on their way would look for us in vain.
    if (!not_come().empty()) srun_->end_step();
    srun_.reset();
    if (!outcome) {
      outcome.emplace();
      outcome->exit_code = 128 + SIGINT;
      outcome->interrupted = true;
    }
    add_words(*outcome);
    return std::move(*outcome);
  }

 private:
  // The name decides where it is one of the job's: SLURM numbers the nodes of a step.
  std::optional<NodeJob> job_of(const std::string& host, int position) {
    const auto& hosts = request_.hosts;
    const auto named =
        std::find_if(hosts.begin(), hosts.end(), [&](const Host& one) { return one.name == host; });
    size_t index = static_cast<size_t>(position);
    if (named != hosts.end()) index = static_cast<size_t>(named - hosts.begin());
    if (position < 0 || index >= hosts.size()) return {};
    come_.insert(static_cast<int>(index));
    NodeJob job = job_;
    job.position = static_cast<int>(index);
    job.host = hosts[index].name;
    job.logs.host = job.host;
    if (hosts[index].slots > 0) job.slots = hosts[index].slots;
    return job;
  }

  std::vector<int> not_come() const {
    std::vector<int> positions;
    for (int i = 0; i < static_cast<int>(request_.hosts.size()); ++i) {
      if (come_.count(i) == 0) positions.push_back(i);
    }
    return positions;
  }

  // Errors go into the report; what a person should know while nothing happens (a wait for busy
  // nodes, an image that is fetched) is said at once.
  void on_words() {
    for (const std::string& line : srun_->read_lines()) {
      words_.push_back(line);
      if (words_.size() > kKeptLines) words_.pop_front();
      const bool error =
          line.find("error: ") != std::string::npos || line.find("fatal: ") != std::string::npos;
      if (line.find("Terminating StepId") != std::string::npos) continue;
      if (line.find("lacks support for cpu binding") != std::string::npos) continue;
      const bool fate = line.find(" CANCELLED AT ") != std::string::npos;
      if (fate || (!error && !not_come().empty())) port_.notice(line);
      if (error && request_.min_nodes < static_cast<int>(request_.hosts.size())) {
        on_error_of_nodes(line);
      }
    }
  }

  // "srun: error: n[2-3]: tasks 1-2: Exited with exit code 127": the others need not wait for them.
  void on_error_of_nodes(const std::string& line) {
    std::vector<int> failed;
    const std::vector<int> missing = not_come();
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
  void on_end(int code) {
    const std::vector<int> missing = not_come();
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
  std::optional<Srun> srun_;
  std::deque<std::string> words_;
  std::set<int> come_;  // nodes whose agents have dialled in, or will not
};

}  // namespace

JobOutcome run_allocation_job(const JobOptions& options) {
  return AllocationJob(options).run();
}

}  // namespace mtl
