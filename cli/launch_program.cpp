// mtl launch of a program that is not ours: once per rank, with the environment of torchrun and
// accelerate, under the same supervision.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "cli/launch.h"
#include "common/error.h"
#include "common/files.h"
#include "common/terminal.h"
#include "launcher/worker_env.h"

namespace mtl {

namespace {

// A port that was free a moment ago: rank 0 of the program will listen on it.
int free_port() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(
        Exit::environment,
        Diagnostic{.code = "launch.port",
                   .what = std::string("no free TCP port on 127.0.0.1: ") + std::strerror(errno),
                   .help = "check that the loopback interface is up (ip address show lo)"});
  }
  return ntohs(address.sin_port);
}

// A word as a shell would need it, for what is printed.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace

NodeLayout single_node(int world, int port) {
  NodeLayout layout;
  layout.world = world;
  layout.local_ranks = world;
  layout.master_port = port;
  layout.cores = allowed_cores();
  // What the user set counts; else the cores are shared among the ranks.
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) {
    layout.omp_threads = std::max(std::atoi(threads), 0);
  }
  return layout;
}

std::vector<std::string> program_argv(const LaunchOptions& options, const std::string& program,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> argv;
  // Unbuffered, so that the last words of a script that dies are seen.
  if (options.module) {
    argv = {"python3", "-u", "-m"};
  } else if (!options.no_python && program.ends_with(".py")) {
    argv = {"python3", "-u"};
  }
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

int launch_program(const LaunchOptions& options, const std::string& program,
                   const std::vector<std::string>& arguments) {
  Diagnostics diagnostics;
  LaunchConfig config = load_launch_config(options.run, diagnostics);
  check_machines(config, diagnostics);
  diagnostics.throw_if_errors();
  print_warnings(diagnostics.all());
  config.use_cpu = config.use_cpu || options.cpu;
  if (options.run.mixed_precision) config.mixed_precision = *options.run.mixed_precision;
  const int world = world_size(options.run, config);
  const NodeLayout layout = single_node(world, free_port());

  AgentOptions agent;
  for (int rank = 0; rank < world; ++rank) {
    WorkerCommand command;
    command.rank = rank;
    command.local_rank = rank;
    command.argv = program_argv(options, program, arguments);
    command.env = worker_environment(config, layout, rank);
    agent.workers.push_back(std::move(command));
  }
  if (options.dry_run) {
    for (const WorkerCommand& command : agent.workers) {
      for (const auto& [name, value] : command.env) fmt::print("{}={} ", name, quoted(value));
      for (size_t i = 0; i < command.argv.size(); ++i) {
        fmt::print("{}{}", quoted(command.argv[i]), i + 1 < command.argv.size() ? " " : "\n");
      }
    }
    return 0;
  }
  agent.grace = std::chrono::seconds(options.grace_s);
  agent.on_notice = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  const AgentResult result = run_agent(agent);
  for (const std::string& warning : result.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (result.first_failure || result.interrupted) {
    std::fflush(stdout);
    fmt::print(stderr, "{}", render(failure_report(result), inspect_terminal(STDERR_FILENO).color));
  }
  return result.exit_code;
}

}  // namespace mtl
