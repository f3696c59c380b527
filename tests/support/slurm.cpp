#include "support/slurm.h"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "support/text.h"

namespace mtl::test {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool is_free(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

// Below the ports that the kernel gives away, in blocks.
constexpr int kFirstPort = 24000, kBlocks = 216, kPortsOfOne = 37;

// A socket by the name of a block, which one process of this machine's network has at a time: the
// daemons take their ports a while after they were seen to be free. Nothing where another has it.
Fd claim(int block) {
  Fd claimed(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string name = fmt::format("mtl-slurm-ports-{}", block);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // In no folder: gone with its process.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(claimed.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) claimed.reset();
  return claimed;
}

struct Ports {
  int block = 0;
  Fd claimed;
  int first() const { return kFirstPort + block * kPortsOfOne; }
};

Ports free_ports(int count) {
  for (int attempt = 0; attempt < kBlocks; ++attempt) {
    Ports ports{.block = (getpid() + attempt) % kBlocks, .claimed = Fd()};
    ports.claimed = claim(ports.block);
    bool free = bool(ports.claimed);
    for (int i = 0; free && i < count; ++i) free = is_free(ports.first() + i);
    if (free) return ports;
  }
  throw std::runtime_error("no free ports for a SLURM");
}

// A daemon in the foreground that dies with this process.
pid_t spawn(const std::vector<std::string>& words, const std::string& conf, const fs::path& log) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  setenv("SLURM_CONF", conf.c_str(), 1);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    const int in = open("/dev/null", O_RDONLY);
    if (getppid() != parent || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  unsetenv("SLURM_CONF");
  if (pid < 0) throw std::runtime_error("cannot start " + words[0]);
  return pid;
}

std::string name_of(int node) {
  return fmt::format("n{}", node);
}

struct Process {
  pid_t pid = 0;
  std::string command;
  std::string environment;  // entries end in '\0'
};

std::vector<Process> all_processes() {
  std::vector<Process> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = file_text(entry.path() / "stat");
    const size_t state = stat.rfind(')');
    if (state == std::string::npos || stat.substr(state + 2, 1) == "Z") continue;
    std::string command = file_text(entry.path() / "cmdline");
    for (char& c : command) {
      if (c == '\0') c = ' ';
    }
    found.push_back({std::stoi(name), command, file_text(entry.path() / "environ")});
  }
  return found;
}

bool holds(const Process& process, const std::string& variable) {
  const std::string whole = variable + '\0';
  return process.environment.starts_with(whole) ||
         process.environment.find('\0' + whole) != std::string::npos;
}

// The step daemons of a node have its log open.
bool has_open(pid_t pid, const fs::path& file) {
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
    if (fs::read_symlink(entry.path(), ignored) == file) return true;
  }
  return false;
}

}  // namespace

std::string Slurm::missing() {
  for (const char* program : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/sbatch"}) {
    if (access(program, X_OK) != 0) return std::string(program) + " is not installed";
  }
  return {};
}

Slurm::Slurm(int nodes, const std::string& lines) : nodes_(nodes) {
  std::string name = (fs::temp_directory_path() / "mtl-slurm-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  dir_ = fs::canonical(name);
  for (const char* folder : {"state", "log", "run", "work", "home"}) {
    fs::create_directories(dir_ / folder);
  }
  Ports ports = free_ports(nodes + 1);
  const int port = ports.first();
  ports_ = std::move(ports.claimed);
  // Below 4000, so that their ports (20000 and more) are below those of the daemons.
  first_job_ = 1 + ports.block * 16;
  const char* const user = geteuid() == 0 ? "root" : getenv("USER");
  std::ostringstream conf;
  conf << "ClusterName=mtltest\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=" << port
       << "\nFirstJobId=" << first_job_ << "\nSlurmUser=" << user << "\nSlurmdUser=" << user
       << "\nAuthType=auth/none\nCredType=cred/none"
          "\nCommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
       << "\nStateSaveLocation=" << dir_.string() << "/state\nSlurmdSpoolDir=" << dir_.string()
       << "/spool/%n\nSlurmctldPidFile=" << dir_.string()
       << "/run/slurmctld.pid\nSlurmdPidFile=" << dir_.string()
       << "/run/slurmd.%n.pid\nSlurmctldLogFile=" << dir_.string()
       << "/log/slurmctld.log\nSlurmdLogFile=" << dir_.string()
       << "/log/slurmd.%n.log"
          "\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none"
          "\nMpiDefault=none\nAccountingStorageType=accounting_storage/none"
          "\nJobAcctGatherType=jobacct_gather/none"
          "\nSchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0"
          "\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU"
          "\nSlurmdParameters=config_overrides\nGresTypes=gpu\nReturnToService=2"
          "\nSlurmdTimeout=10\nKillWait=5\nMinJobAge=600\nPropagateResourceLimits=NONE"
          "\nJobRequeue=1\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
          "\nSlurmctldParameters=preempt_send_user_signal\n"
       << lines << "\n";
  for (int i = 1; i <= nodes; ++i) {
    conf << "NodeName=n" << i << " NodeHostname=localhost NodeAddr=127.0.0.1 Port=" << port + i
         << " CPUs=8 RealMemory=1000 Gres=gpu:8 State=UNKNOWN\n";
    fs::create_directories(dir_ / "spool" / (name_of(i)));
  }
  conf << "PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 "
          "PreemptMode=REQUEUE GraceTime=30\n"
          "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 "
          "PreemptMode=OFF\n";
  std::ofstream(dir_ / "slurm.conf") << conf.str();
  std::ofstream(dir_ / "gres.conf")
      << "NodeName=n[1-" << nodes << "] Name=gpu File=/dev/tty[0-7]\n";
  try {
    daemons_["slurmctld"] = spawn({"slurmctld", "-D", "-c", "-f", dir_ / "slurm.conf"},
                                  dir_ / "slurm.conf", dir_ / "log" / "slurmctld.out");
    for (int i = 1; i <= nodes; ++i) start_node(i);
    const auto until = Clock::now() + std::chrono::seconds(120);
    for (;;) {
      const CommandEnd idle = run({"sinfo", "-h", "-p", "debug", "-t", "idle", "-o", "%D"});
      if (idle.code == 0 && idle.out == std::to_string(nodes) + "\n") break;
      if (Clock::now() > until) throw std::runtime_error("SLURM did not come up: " + idle.err);
      std::this_thread::sleep_for(milliseconds(30));
    }
  } catch (...) {
    stop();
    throw;
  }
}

Slurm::~Slurm() {
  stop();
}

void Slurm::stop() {
  for (const auto& [name, pid] : daemons_) ::kill(pid, SIGTERM);
  for (const auto& [name, pid] : daemons_) {
    for (int i = 0; i < 500 && waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      if (i == 400) ::kill(pid, SIGKILL);
    }
  }
  daemons_.clear();
  const std::string conf = "SLURM_CONF=" + (dir_ / "slurm.conf").string();
  for (const Process& process : all_processes()) {
    const bool daemon = process.command.find(dir_.string()) != std::string::npos;
    const bool step = process.command.starts_with("slurmstepd");
    if ((holds(process, conf) && process.pid != getpid()) || daemon ||
        (step && has_open(process.pid, dir_ / "log"))) {
      ::kill(process.pid, SIGKILL);
    }
  }
  std::error_code ignored;
  if (getenv("MTL_KEEP_SLURM") == nullptr) fs::remove_all(dir_, ignored);
}

std::map<std::string, std::string> Slurm::environment() const {
  return {{"SLURM_CONF", dir_ / "slurm.conf"},
          {"HOME", dir_ / "home"},
          {"XDG_CONFIG_HOME", dir_ / "home" / ".config"},
          {"XDG_STATE_HOME", dir_ / "home" / ".local" / "state"},
          {"XDG_CACHE_HOME", dir_ / "home" / ".cache"},
          {"MTL_DEVICE", "cpu"}};
}

Command Slurm::start(const std::vector<std::string>& argv,
                     const std::map<std::string, std::string>& env) const {
  std::map<std::string, std::string> all = environment();
  for (const auto& [name, value] : env) all[name] = value;
  CommandPlace place;
  place.working_directory = work();
  place.output = dir_ / "log" / ("command-" + std::to_string(++commands_));
  return Command(place, argv, all);
}

CommandEnd Slurm::run(const std::vector<std::string>& argv,
                      const std::map<std::string, std::string>& env,
                      std::chrono::seconds within) const {
  return start(argv, env).wait(within);
}

std::string Slurm::ask(const std::vector<std::string>& argv) const {
  CommandEnd end = run(argv);
  if (end.code != 0) throw std::runtime_error(argv[0] + ": " + end.err);
  while (end.out.ends_with('\n')) end.out.pop_back();
  return end.out;
}

namespace {

// "JobState=RUNNING" of `scontrol -o show job`.
std::string field(const std::string& text, const std::string& name) {
  const size_t at = text.find(' ' + name + '=');
  if (at == std::string::npos) return {};
  const size_t start = at + name.size() + 2;
  return text.substr(start, text.find_first_of(" \n", start) - start);
}

}  // namespace

std::string Slurm::state(const std::string& job) const {
  return field(run({"scontrol", "-o", "show", "job", job}).out, "JobState");
}

std::string Slurm::exit_code(const std::string& job) const {
  return field(run({"scontrol", "-o", "show", "job", job}).out, "ExitCode");
}

bool Slurm::reaches(const std::string& job, const std::vector<std::string>& states,
                    std::chrono::seconds within) const {
  const auto until = Clock::now() + within;
  while (Clock::now() < until) {
    const std::string now = state(job);
    for (const std::string& one : states) {
      if (now == one) return true;
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return false;
}

bool Slurm::start_again(const std::string& job) const {
  // It has to have seen the end of the job on all nodes: what starts before that is taken for the
  // job that ended.
  for (int i = 0; i < 150; ++i) {
    const std::string idle = run({"sinfo", "-h", "-p", "debug", "-t", "idle", "-o", "%D"}).out;
    if (idle == std::to_string(nodes_) + "\n" && processes().empty()) break;
    std::this_thread::sleep_for(milliseconds(100));
  }
  // The exit code of the script that has ended may still be on its way.
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const auto shown = [&] { return run({"scontrol", "-o", "show", "job", job}).out; };
  const std::string restarts = field(shown(), "Restarts");
  for (int i = 0; i < 200; ++i) {
    // What is said while the hold is being set is forgotten.
    if (i % 20 == 0) run({"scontrol", "update", "jobid=" + job, "StartTime=now"});
    const std::string text = shown();
    if (field(text, "JobState") != "PENDING" || field(text, "Restarts") != restarts) return true;
    std::this_thread::sleep_for(milliseconds(50));
  }
  return false;
}

void Slurm::kill_node(int node) {
  const std::string name = name_of(node);
  const auto daemon = daemons_.find(name);
  if (daemon != daemons_.end()) {
    ::kill(daemon->second, SIGKILL);
    waitpid(daemon->second, nullptr, 0);
    daemons_.erase(daemon);
  }
  const std::string conf = "SLURM_CONF=" + (dir_ / "slurm.conf").string();
  const fs::path log = dir_ / "log" / ("slurmd." + name + ".log");
  for (const Process& process : all_processes()) {
    if ((holds(process, conf) && holds(process, "SLURMD_NODENAME=" + name)) ||
        (process.command.starts_with("slurmstepd") && has_open(process.pid, log))) {
      ::kill(process.pid, SIGKILL);
    }
  }
}

void Slurm::start_node(int node) {
  const std::string name = name_of(node);
  daemons_[name] = spawn({"slurmd", "-D", "-f", dir_ / "slurm.conf", "-N", name},
                         dir_ / "slurm.conf", dir_ / "log" / (name + ".out"));
}

std::vector<std::string> Slurm::processes() const {
  const std::string conf = "SLURM_CONF=" + (dir_ / "slurm.conf").string();
  std::vector<std::string> found;
  for (const Process& process : all_processes()) {
    const bool of_job = process.environment.find("SLURM_JOB_ID=") != std::string::npos;
    if (of_job && holds(process, conf)) found.push_back(process.command);
  }
  return found;
}

}  // namespace mtl::test
