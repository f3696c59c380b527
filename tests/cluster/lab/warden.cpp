#include "cluster/lab/warden.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <poll.h>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>

#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cluster/lab/freezer.h"
#include "cluster/lab/machine.h"
#include "cluster/lab/shaper.h"

namespace mtl::test {
namespace fs = std::filesystem;

std::vector<pid_t> processes_beside(pid_t init, const char* space) {
  std::vector<pid_t> found;
  std::error_code failed;
  const auto of = [&](pid_t pid) {
    return fs::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + space, failed).string();
  };
  const std::string wanted = of(init);
  if (wanted.empty()) return found;
  for (const auto& entry : fs::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    if (pid != init && of(pid) == wanted) found.push_back(pid);
  }
  return found;
}

void sweep_dead_labs() {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/tmp", failed)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("mtl-lab-")) continue;
    // The warden holds this lock as long as it lives; one without the file is only being made.
    const int lock = open((entry.path() / "warden.lock").c_str(), O_RDWR | O_CLOEXEC);
    if (lock < 0) continue;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
      Freezer::sweep(name);
      fs::remove_all(entry.path(), failed);
    }
    close(lock);
  }
}

namespace {

void ip_batch(const fs::path& file, const std::string& text, bool must_work = true) {
  std::ofstream(file) << text;
  const pid_t child = fork();
  if (child == 0) {
    execlp("ip", "ip", "-force", "-batch", file.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (must_work && status != 0) throw std::runtime_error("ip -batch failed: " + text);
}

class Warden {
 public:
  explicit Warden(const WardenJob& job)
      : job_(job),
        freezer_(job.dir.filename().string(), job.machines),
        machines_(static_cast<size_t>(job.machines) + 1) {}

  void up() {
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) throw std::runtime_error("cannot unshare");
    isolate_mounts();
    ip_batch(job_.dir / "hub.ip",
             "link add br0 type bridge\nlink set br0 up\n"
             "link add br1 type bridge\nlink set br1 up\n");
    std::vector<int> all;
    for (int i = 0; i <= job_.machines; ++i) all.push_back(i);
    boot(all);
  }

  std::string report() const {
    std::ostringstream text;
    text << "ok";
    for (const Machine& machine : machines_) text << ' ' << machine.pid;
    for (int i = 0; i <= job_.machines; ++i) {
      const std::string procs = freezer_.procs_file(i);
      text << ' ' << (procs.empty() ? "-" : procs);
    }
    return text.str();
  }

  std::string obey(const std::string& request) {
    std::istringstream words(request);
    std::string verb;
    int i = -1;
    words >> verb >> i;
    if (i < 0 || i > job_.machines) return "error no machine " + std::to_string(i);
    Machine& machine = machines_[static_cast<size_t>(i)];
    if (verb == "boot") {
      if (machine.pid > 0) return "error it runs";
      boot({i});
      return "ok " + std::to_string(machine.pid);
    }
    if (machine.pid <= 0) return "error it is off";
    if (verb == "cut" || verb == "heal") {
      int network = -1;
      words >> network;
      cable(i, network, verb == "heal");
    } else if (verb == "kill") {
      power_off(i);
    } else if (verb == "freeze") {
      hold(machine, i, true);
    } else if (verb == "thaw") {
      hold(machine, i, false);
    } else if (verb == "sshd") {
      std::string what;
      words >> what;
      tell(machine, what == "on" ? 'S' : 'K');
    } else if (verb == "shape") {
      int64_t delay_us = 0;
      int loss_ppm = 0;
      words >> delay_us >> loss_ppm;
      shape(i, delay_us, loss_ppm);
    } else {
      return "error no verb " + verb;
    }
    return "ok";
  }

  void down() {
    for (int i = 0; i <= job_.machines; ++i) {
      if (machines_[static_cast<size_t>(i)].pid <= 0) continue;
      if (i == 0) {
        const pid_t holder = machines_[0].pid;
        // The head has the host's pids, so its processes have to be found; they may fork meanwhile.
        for (auto rest = processes_beside(holder, "net"); !rest.empty();
             rest = processes_beside(holder, "net")) {
          for (const pid_t pid : rest) ::kill(pid, SIGKILL);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
      power_off(i);
    }
    for (const pid_t pid : gone_) {
      for (int attempt = 0; attempt < 1000 && waitpid(pid, nullptr, WNOHANG) == 0; ++attempt) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    freezer_.remove();
    std::error_code ignored;
    fs::remove_all(job_.dir, ignored);
  }

 private:
  struct Machine {
    pid_t pid = -1;
    int control = -1;  // to its first process
    std::unique_ptr<Shaper> shaper;
  };

  void boot(const std::vector<int>& which) {
    std::string links;
    for (const int i : which) {
      Machine& machine = machines_[static_cast<size_t>(i)];
      int control[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) {
        throw std::runtime_error("no socketpair");
      }
      unsigned long spaces = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWIPC;
      if (i > 0) spaces |= CLONE_NEWPID;
      const pid_t pid = static_cast<pid_t>(syscall(SYS_clone, spaces | SIGCHLD, 0, 0, 0, 0));
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_machine({job_.dir, i, job_.machines, freezer_.procs_file(i), control[1]});
      }
      close(control[1]);
      if (pid < 0) throw std::runtime_error("cannot clone: " + std::string(strerror(errno)));
      machine.pid = pid;
      machine.control = control[0];
      for (int network = 0; network < 2; ++network) {
        const std::string net = std::to_string(network);
        const std::string port = port_name(i, network);
        // Its own hardware address, the same after a boot: others remember it.
        char hardware[32];
        std::snprintf(hardware, sizeof hardware, "02:00:00:00:%02x:%02x",
                      static_cast<unsigned char>(network), static_cast<unsigned char>(i));
        links += "link add " + port + " type veth peer name eth" + net + " address " + hardware +
                 " netns " + std::to_string(pid) + "\nlink set " + port + " master br" + net +
                 " up\n";
      }
    }
    ip_batch(job_.dir / "links.ip", links);
    for (const int i : which) send(machines_[static_cast<size_t>(i)].control, "G", 1, MSG_NOSIGNAL);
    for (const int i : which) hear(machines_[static_cast<size_t>(i)], i);
  }

  // The first process answers every order with one packet: "ok", or what went wrong.
  void hear(const Machine& machine, int i) const {
    char answer[512];
    pollfd polled{machine.control, POLLIN, 0};
    ssize_t size = -1;
    if (poll(&polled, 1, 20'000) == 1) size = recv(machine.control, answer, sizeof answer, 0);
    const std::string text =
        size > 0 ? std::string(answer, static_cast<size_t>(size)) : "no answer";
    if (text != "ok") throw std::runtime_error("machine " + std::to_string(i) + ": " + text);
  }

  void tell(const Machine& machine, char order) const {
    send(machine.control, &order, 1, MSG_NOSIGNAL);
    hear(machine, static_cast<int>(&machine - machines_.data()));
  }

  static bool dead(pid_t init) {
    for (const pid_t pid : processes_beside(init, "pid")) {
      std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
      std::string text;
      std::getline(in, text);
      const size_t name_end = text.rfind(')');
      if (name_end != std::string::npos && text[name_end + 2] != 'Z') return false;
    }
    // Its namespaces are given up late in an exit.
    std::error_code failed;
    return fs::read_symlink("/proc/" + std::to_string(init) + "/ns/net", failed).empty();
  }

  static std::string port_name(int machine, int network) {
    std::string name("p");
    return name.append(std::to_string(network)).append("m").append(std::to_string(machine));
  }

  void cable(int i, int network, bool up, bool must_work = true) const {
    std::string text;
    for (int n = 0; n < 2; ++n) {
      if (network >= 0 && network != n) continue;
      text += "link set " + port_name(i, n) + (up ? " up\n" : " down\n");
    }
    ip_batch(job_.dir / "cable.ip", text, must_work);
  }

  void power_off(int i) {
    Machine& machine = machines_[static_cast<size_t>(i)];
    // First the cables: a dying kernel would still close its connections.
    cable(i, -1, false, false);
    ::kill(machine.pid, SIGKILL);
    if (i > 0 && freezer_.available()) freezer_.thaw(i);  // v1 lets nobody die in the ice
    // The first process of a pid namespace stays until the last one in it has been reaped, and
    // programs started by the test are the test's children. So this waits for deaths, not for that.
    while (i > 0 && !dead(machine.pid)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gone_.push_back(machine.pid);
    machine.shaper.reset();
    close(machine.control);
    machine.pid = -1;
    machine.control = -1;
    // The namespace goes when the kernel gets round to it, and its cables with it; a machine that
    // boots again needs their names.
    std::string text;
    for (int n = 0; n < 2; ++n) text += "link del " + port_name(i, n) + "\n";
    ip_batch(job_.dir / "cable.ip", text, false);
  }

  void hold(const Machine& machine, int i, bool freeze) const {
    if (freezer_.available()) {
      freeze ? freezer_.freeze(i) : freezer_.thaw(i);
      return;
    }
    const int signal = freeze ? SIGSTOP : SIGCONT;
    for (int round = 0; round < 3; ++round) {  // a process may have forked in between
      ::kill(machine.pid, signal);
      for (const pid_t pid : processes_beside(machine.pid, "pid")) ::kill(pid, signal);
    }
  }

  // Between the machine's port and the bridge: port - bridge - tap ~ shaper ~ tap - bridge.
  void shape(int i, int64_t delay_us, int loss_ppm) {
    Machine& machine = machines_[static_cast<size_t>(i)];
    const std::string n = std::to_string(i), side = "x" + n, near = "n" + n, far = "f" + n;
    const bool wanted = delay_us > 0 || loss_ppm > 0;
    if (wanted && !machine.shaper) {
      machine.shaper = std::make_unique<Shaper>(near, far);
      machine.shaper->set(delay_us, loss_ppm);
      ip_batch(job_.dir / "shape.ip", "link add " + side + " type bridge\nlink set " + side +
                                          " up\n" + "link set " + near + " master " + side +
                                          " up\nlink set " + far + " master br0 up\nlink set " +
                                          port_name(i, 0) + " master " + side + "\n");
    } else if (wanted) {
      machine.shaper->set(delay_us, loss_ppm);
    } else if (machine.shaper) {
      ip_batch(job_.dir / "shape.ip",
               "link set " + port_name(i, 0) + " master br0\nlink del " + side + "\n");
      machine.shaper.reset();
    }
  }

  WardenJob job_;
  Freezer freezer_;
  std::vector<Machine> machines_;
  std::vector<pid_t> gone_;  // first processes that were killed and not reaped yet
};

void answer(int socket, const std::string& text) {
  send(socket, text.data(), text.size(), MSG_NOSIGNAL);
}

}  // namespace

void run_warden(const WardenJob& job) {
  setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);
  // Whoever reads the test's output waits for its last writer; that must not be this process.
  const int log = open((job.dir / "warden.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(log, 1);
  dup2(log, 2);
  const int socket = 3;
  if (job.socket != socket) dup2(job.socket, socket);
  syscall(SYS_close_range, 4U, ~0U, 0U);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  const fs::path lock_file = job.dir / "warden.lock";
  const int lock = open((lock_file.string() + ".new").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX) != 0 ||
      rename((lock_file.string() + ".new").c_str(), lock_file.c_str()) != 0) {
    answer(socket, "error no lock file in " + job.dir.string());
    _exit(1);
  }
  Warden warden(job);
  bool is_up = false;
  try {
    warden.up();
    is_up = true;
    answer(socket, warden.report());
  } catch (const std::exception& error) {
    std::string log_text;
    std::ifstream in(job.dir / "warden.log");
    std::getline(in, log_text, '\0');
    answer(socket, "error " + std::string(error.what()) + "\n" + log_text);
  }
  char request[512];
  for (;;) {
    const ssize_t size = recv(socket, request, sizeof request, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    try {
      answer(socket, is_up ? warden.obey({request, static_cast<size_t>(size)}) : "error not up");
    } catch (const std::exception& error) {
      answer(socket, "error " + std::string(error.what()));
    }
  }
  try {
    warden.down();
  } catch (const std::exception&) {
    _exit(1);
  }
  _exit(0);
}

}  // namespace mtl::test
