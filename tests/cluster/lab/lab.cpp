#include "cluster/lab/lab.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cluster/lab/machine.h"
#include "cluster/lab/warden.h"

namespace mtl::test {
namespace fs = std::filesystem;

std::string Lab::missing() {
  if (geteuid() != 0) return "this is not root";
  for (const char* program : {"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
    if (access(program, X_OK) != 0) return std::string(program) + " is not there";
  }
  // In a child, because there is no way back.
  const pid_t child = fork();
  if (child == 0) {
    const int all = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID;
    _exit(unshare(all) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status == 0 ? "" : "namespaces cannot be made here";
}

Lab::Lab(int machines) : machines_(machines) {
  const std::string reason = missing();
  if (!reason.empty()) throw std::runtime_error("no lab: " + reason);
  sweep_dead_labs();
  std::string name = "/tmp/mtl-lab-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no lab: mkdtemp failed");
  dir_ = name;
  int ends[2] = {-1, -1};
  try {
    write_lab_files(dir_, machines);
    fs::create_directory(dir_ / "work");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("no lab: no socketpair");
    }
  } catch (...) {
    fs::remove_all(dir_);
    throw;
  }
  socket_ = ends[0];
  warden_ = fork();
  if (warden_ == 0) {
    close(ends[0]);
    run_warden({dir_, machines, ends[1]});
  }
  close(ends[1]);
  try {
    std::istringstream report(ask(""));
    inits_.resize(static_cast<size_t>(machines) + 1);
    for (Machine& machine : inits_) {
      report >> machine.init;
      machine.pidfd = static_cast<int>(syscall(SYS_pidfd_open, machine.init, 0));
    }
    for (Machine& machine : inits_) {
      report >> machine.cgroup_procs;
      if (machine.cgroup_procs == "-") machine.cgroup_procs.clear();
    }
  } catch (...) {
    close(socket_);
    waitpid(warden_, nullptr, 0);
    throw;
  }
}

Lab::~Lab() {
  close(socket_);
  for (const Machine& machine : inits_) {
    if (machine.pidfd >= 0) close(machine.pidfd);
  }
  // Bounded: a warden that hangs is ended, and the next lab sweeps behind it.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (waitpid(warden_, nullptr, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      ::kill(warden_, SIGKILL);
      waitpid(warden_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string Lab::ask(const std::string& request) const {
  if (!request.empty() && send(socket_, request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    throw std::runtime_error("lab: the warden is gone");
  }
  std::string answer(16384, '\0');
  const ssize_t size = recv(socket_, answer.data(), answer.size(), 0);
  answer.resize(size > 0 ? static_cast<size_t>(size) : 0);
  if (!answer.starts_with("ok")) throw std::runtime_error("lab: " + request + ": " + answer);
  return answer.substr(answer.size() > 2 ? 3 : 2);
}

fs::path Lab::home(int machine) const {
  return dir_ / machine_name(machine) / "home";
}
fs::path Lab::ssh_config() const {
  return home(0) / ".ssh" / "config";
}
fs::path Lab::host_key(int machine) const {
  return dir_ / machine_name(machine) / "host_key";
}
fs::path Lab::sshd_config(int machine) const {
  return dir_ / machine_name(machine) / "sshd_config";
}
std::string Lab::name(int machine) {
  return machine_name(machine);
}
std::string Lab::address(int machine, int network, bool ipv6) {
  return machine_address(machine, network, ipv6);
}

Command Lab::start(int machine, const std::vector<std::string>& argv,
                   const std::map<std::string, std::string>& env) const {
  const Machine& place = inits_.at(static_cast<size_t>(machine));
  if (place.frozen) throw std::runtime_error("lab: " + machine_name(machine) + " is frozen");
  std::map<std::string, std::string> variables = env;
  variables.try_emplace("HOME", home(machine).string());
  const std::string output = machine_name(machine) + "-command-" + std::to_string(++commands_);
  return Command({place.pidfd, machine > 0, place.cgroup_procs, dir_ / "work", dir_ / output}, argv,
                 variables);
}

CommandEnd Lab::run(int machine, const std::vector<std::string>& argv,
                    const std::map<std::string, std::string>& env,
                    std::chrono::seconds within) const {
  return start(machine, argv, env).wait(within);
}

void Lab::kill(int machine) {
  ask("kill " + std::to_string(machine));
}

void Lab::boot(int machine) {
  Machine& place = inits_.at(static_cast<size_t>(machine));
  place.init = std::stoi(ask("boot " + std::to_string(machine)));
  close(place.pidfd);
  place.pidfd = static_cast<int>(syscall(SYS_pidfd_open, place.init, 0));
  place.frozen = false;
  place.loss_percent = 0;
  place.round_trip = std::chrono::milliseconds(0);
}

void Lab::freeze(int machine) {
  ask("freeze " + std::to_string(machine));
  inits_.at(static_cast<size_t>(machine)).frozen = true;
}
void Lab::thaw(int machine) {
  ask("thaw " + std::to_string(machine));
  inits_.at(static_cast<size_t>(machine)).frozen = false;
}

void Lab::cut(int machine, int network) {
  ask("cut " + std::to_string(machine) + " " + std::to_string(network));
}
void Lab::heal(int machine, int network) {
  ask("heal " + std::to_string(machine) + " " + std::to_string(network));
}

void Lab::loss(int machine, int percent) {
  inits_.at(static_cast<size_t>(machine)).loss_percent = percent;
  shape(machine);
}
void Lab::delay(int machine, std::chrono::milliseconds round_trip) {
  inits_.at(static_cast<size_t>(machine)).round_trip = round_trip;
  shape(machine);
}
void Lab::shape(int machine) const {
  const Machine& place = inits_.at(static_cast<size_t>(machine));
  ask("shape " + std::to_string(machine) + " " + std::to_string(place.round_trip.count() * 500) +
      " " + std::to_string(place.loss_percent * 10'000));
}

void Lab::stop_sshd(int machine) {
  ask("sshd " + std::to_string(machine) + " off");
}
void Lab::start_sshd(int machine) {
  ask("sshd " + std::to_string(machine) + " on");
}

std::vector<Lab::Process> Lab::processes(int machine) const {
  std::vector<Process> found;
  const pid_t init = inits_.at(static_cast<size_t>(machine)).init;
  // The head shares its pids with the host: there it is the network that tells.
  for (const pid_t pid : processes_beside(init, machine == 0 ? "net" : "pid")) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    // read() alone takes it as an end when the process goes meanwhile.
    std::string command(4096, '\0');
    in.read(command.data(), static_cast<std::streamsize>(command.size()));
    command.resize(static_cast<size_t>(in.gcount()));
    if (command.empty()) continue;  // gone, or a zombie
    for (char& c : command) {
      if (c == '\0') c = ' ';
    }
    if (command.find("[listener]") == std::string::npos) found.push_back({pid, command});
  }
  return found;
}

}  // namespace mtl::test
