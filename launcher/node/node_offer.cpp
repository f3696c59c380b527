#include "launcher/node/node_offer.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/program.h"
#include "launcher/node/generation.h"
#include "launcher/ranks/placement.h"
#include "rendezvous/network.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

// What keeps this node from taking part, all of it at once. The exit code is that of the first.
class Problems {
 public:
  void add(Diagnostic problem, Exit exit) {
    if (all_.empty()) exit_ = exit;
    all_.push_back(std::move(problem));
  }
  template <typename Action>
  void add_errors_of(Action action) {
    try {
      action();
    } catch (const Error& error) {
      for (const Diagnostic& problem : error.diagnostics()) add(problem, error.exit());
    }
  }
  void throw_if_any() const {
    if (!all_.empty()) throw Error(exit_, all_);
  }

 private:
  std::vector<Diagnostic> all_;
  Exit exit_ = Exit::environment;
};

void look_for_program(const JobProgram& program, Problems& problems) {
  const std::string& folder = program.working_directory;
  if (!folder.empty() && chdir(folder.c_str()) != 0) {
    problems.add({.code = "launch.remote_files",
                  .what = "there is no folder " + folder,
                  .help = "start from a folder that all hosts share, or copy it there"},
                 Exit::environment);
    return;
  }
  problems.add_errors_of([&] { look_for_files(program); });
  if (program.argv.empty()) return;
  const std::vector<std::string>& files = program.needed_files;
  const bool told = std::find(files.begin(), files.end(), program.argv.front()) != files.end() &&
                    access(program.argv.front().c_str(), F_OK) != 0;
  if (told) return;
  WorkerCommand command;
  command.argv = program.argv;
  command.env = program.env;
  problems.add_errors_of([&] { prepare_launch(command); });
}

// The third word of sshd's "client port server port".
std::string address_of_ssh_session() {
  const char* connection = std::getenv("SSH_CONNECTION");
  const std::string text = connection != nullptr ? connection : "";
  const size_t begin = text.find(' ', text.find(' ') + 1);
  if (begin == std::string::npos) return {};
  return text.substr(begin + 1, text.find(' ', begin + 1) - begin - 1);
}

// Best first: what the user chose, the one that the controller reaches us by, all others.
std::vector<std::string> addresses_here(const std::string& interface, const NodeReach& reach) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& address) {
    if (!address.empty() && std::find(found.begin(), found.end(), address) == found.end()) {
      found.push_back(address);
    }
  };
  if (!interface.empty()) {
    for (const LocalAddress& local : addresses_of(interface)) add(local.address);
  }
  // A host's own name often means 127.0.1.1 there, where nobody else finds it.
  if (reach.on_loopback || !is_loopback(reach.link_address)) add(reach.link_address);
  if (reach.by_ssh) add(address_of_ssh_session());
  for (const LocalAddress& local : local_addresses()) {
    if (!local.is_loopback) add(local.address);
  }
  add(reach.link_address);
  add("127.0.0.1");
  return found;
}

}  // namespace

void look_for_files(const JobProgram& program) {
  Problems problems;
  for (const std::string& file : program.needed_files) {
    // A program may be run without being readable.
    const bool is_program = !program.argv.empty() && file == program.argv.front();
    if (access(file.c_str(), is_program ? F_OK : R_OK) == 0) continue;
    // Of a program it is the program itself, or its script.
    const int of_program = errno == ENOENT ? kNotFound : kNotExecutable;
    problems.add({.code = "launch.remote_files",
                  .what = "cannot read " + file,
                  .help = "it has to be on every host, at the same path (a shared file system, "
                          "or a copy); run.dir of a train.yaml has to be shared"},
                 program.is_ours ? Exit::environment : static_cast<Exit>(of_program));
  }
  problems.throw_if_any();
}

void prepare_node(NodeJob& job) {
  Problems problems;
  look_for_program(job.program, problems);
  const auto look_at_machine = [&] {
    job.slots = node_slots(job);
    if (!job.interface.empty()) addresses_of(job.interface);
  };
  problems.add_errors_of(look_at_machine);
  problems.throw_if_any();
}

NodeOffer offer_of(const NodeJob& job, int rank, uint16_t port, const NodeReach& reach) {
  NodeOffer offer;
  offer.host = job.host.empty() ? host_name() : job.host;
  offer.key = rank >= 0           ? fmt::format("rank {}", rank)
              : job.position >= 0 ? fmt::format("host {}", job.position)
                                  : make_token().substr(0, 16);
  offer.slots = job.slots;
  offer.rank = rank;
  offer.position = job.position;
  offer.addresses = addresses_here(job.interface, reach);
  offer.port = port;
  offer.machine = machine_identity();
  offer.on_gpus = !job.config.use_cpu && !inspect_hardware(false).gpus.empty();
  return offer;
}

}  // namespace mtl
