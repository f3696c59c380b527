// The same programs over two machines of a lab: the command typed on each, and by ssh from one.
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include "clients/clients.h"
#include "cluster/lab/lab.h"
#include "cluster/machines.h"
#include "support/processes.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// The variables for a machine of the lab: it has no loopback-only meeting.
std::map<std::string, std::string> on_a_machine(std::map<std::string, std::string> env) {
  env.erase("GLOO_SOCKET_IFNAME");
  return env;
}

// Types the command on m1 and m2; machine 0 is m1. Gives both ends. Two ranks on each.
std::vector<CommandEnd> typed_on_both(const Lab& lab, std::vector<std::string> options,
                                      const std::vector<std::string>& program,
                                      const std::map<std::string, std::string>& env) {
  std::vector<Command> commands;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> argv = {MTL_PROGRAM,           "launch",
                                     "--num_machines",      "2",
                                     "--machine_rank",      std::to_string(rank),
                                     "--main_process_ip",   Lab::address(1),
                                     "--main_process_port", "29511",
                                     "--num_processes",     "4"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), program.begin(), program.end());
    commands.push_back(lab.start(rank + 1, argv, env));
  }
  std::vector<CommandEnd> ends;
  for (Command& command : commands) ends.push_back(command.wait(kPatience));
  return ends;
}

// What still runs once connections have had time to close.
std::string left_on(const Lab& lab) {
  std::string left;
  for (const auto until = std::chrono::steady_clock::now() + kPatience;;) {
    left.clear();
    for (int i = 0; i <= lab.machines(); ++i) {
      for (const auto& process : lab.processes(i)) {
        left += Lab::name(i) + ": " + process.command + "\n";
      }
    }
    if (left.empty() || std::chrono::steady_clock::now() > until) return left;
    std::this_thread::sleep_for(10ms);
  }
}

std::vector<std::string> by_ssh(const std::vector<std::string>& program) {
  std::vector<std::string> argv = {MTL_PROGRAM, "launch", "--hosts", "m1:2,m2:2"};
  argv.insert(argv.end(), program.begin(), program.end());
  return argv;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "two machines: DistributedDataParallel trains as on one") {
  need_flag("machine_rank");
  need_flag("hosts");
  const auto env = on_a_machine(torch_environment());
  Shell shell;
  const Outcome one = without_chance([&] {
    return shell.mtl({"launch", "--num_processes", "4", client("ddp.py")}, torch_environment());
  });
  REQUIRE_MESSAGE(one.code == 0, one.err);
  Lab lab(2);
  const auto ends = without_chance([&] { return typed_on_both(lab, {}, {client("ddp.py")}, env); });
  for (const CommandEnd& end : ends) CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(lines(ends[0].out, "step ") == lines(one.out, "step "));
  const CommandEnd ssh =
      without_chance([&] { return lab.run(0, by_ssh({client("ddp.py")}), env, 180s); });
  CHECK_MESSAGE(ssh.code == 0, ssh.err);
  CHECK(lines(ssh.out, "step ") == lines(one.out, "step "));
  CHECK(left_on(lab) == "");
}

TEST_CASE_FIXTURE(Machines, "two machines: processes meet and see every variable") {
  need_flag("machine_rank");
  need_flag("hosts");
  const auto env = on_a_machine(torch_environment());
  Shell shell;
  Lab lab(2);
  auto ends =
      without_chance([&] { return typed_on_both(lab, {}, {client("collectives.py")}, env); });
  for (const CommandEnd& end : ends) CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(ends[0].out.find("met 4 of 2 nodes on m1") != std::string::npos);
  const std::vector<std::string> check = {client("elastic_env.py"), "--nodes", "2", "--local", "2"};
  ends = typed_on_both(lab, {}, check, env);
  for (const CommandEnd& end : ends) CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(ends[0].out.find("all as promised") != std::string::npos);
  CommandEnd ssh = lab.run(0, by_ssh(check), env, 180s);
  CHECK_MESSAGE(ssh.code == 0, ssh.err);
  CHECK(ssh.out.find("all as promised") != std::string::npos);
  ssh = without_chance([&] { return lab.run(0, by_ssh({client("collectives.py")}), env, 180s); });
  CHECK_MESSAGE(ssh.code == 0, ssh.err);
  CHECK(ssh.out.find("met 4 of 2 nodes on m1") != std::string::npos);
}

TEST_CASE_FIXTURE(Machines, "two machines: workers that fail are started again together") {
  need_flag("max_restarts");
  need_flag("hosts");
  const auto env = on_a_machine(torch_environment());
  Shell shell;
  Lab lab(2);
  const std::vector<std::string> argv =
      by_ssh({"--max_restarts", "3", "--grace", "5", client("restarts.py")});
  const CommandEnd end = lab.run(0, argv, env, 180s);
  CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(lines(end.out, "generation ") ==
        "generation 0 of 3 with 4\ngeneration 1 of 3 with 4\ngeneration 2 of 3 with 4\n");
  CHECK(left_on(lab) == "");
}

TEST_CASE_FIXTURE(Machines, "two machines: accelerate's scripts pass") {
  need_flag("machine_rank");
  need_flag("hosts");
  auto env = on_a_machine(accelerate_environment());
  Shell shell;
  Lab lab(2);
  env["HF_HOME"] = (shell.dir() / "hf").string();
  const std::vector<std::vector<std::string>> programs = {
      {"-m", "accelerate.test_utils.scripts.test_script"},
      {"-m", "accelerate.test_utils.scripts.test_sync"},
      {"-m", "accelerate.test_utils.scripts.test_ops"},
      {client("train_accelerate.py")}};
  for (const auto& program : programs) {
    const auto ends = without_chance([&] { return typed_on_both(lab, {"--cpu"}, program, env); });
    for (const CommandEnd& end : ends) {
      CHECK_MESSAGE(end.code == 0, program.back() << "\n" << end.err);
    }
  }
  // ssh brings no PATH along, and the environment is not the far side's usual one.
  const std::vector<std::string> argv =
      by_ssh({"--cpu", "--env", "PATH=" + env.at("PATH"), client("train_accelerate.py")});
  const CommandEnd ssh = without_chance([&] { return lab.run(0, argv, env, 180s); });
  CHECK_MESSAGE(ssh.code == 0, ssh.err);
  CHECK(ssh.out.find("processes 4") != std::string::npos);
}
