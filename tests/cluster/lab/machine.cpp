#include "cluster/lab/machine.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "support/text.h"

namespace mtl::test {
namespace fs = std::filesystem;
namespace {

constexpr int kHeadNumber = 254;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + strerror(errno));
}

int spawn(const std::vector<std::string>& argv) {
  const pid_t child = fork();
  if (child != 0) return child;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

void run_to_end(const std::vector<std::string>& argv) {
  const pid_t child = spawn(argv);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) throw std::runtime_error(argv[0] + " " + argv.back() + " failed");
}

void mount_tmpfs(const char* where, const char* options) {
  if (mount("tmpfs", where, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0) fail(where);
}

void bind(const fs::path& from, const char* onto) {
  if (mount(from.c_str(), onto, nullptr, MS_BIND, nullptr) != 0) fail(onto);
}

void set_up_mounts(const MachineJob& job) {
  isolate_mounts();
  const fs::path own = job.dir / machine_name(job.machine);
  bind(own / "passwd", "/etc/passwd");
  bind(job.dir / "hosts", "/etc/hosts");
  mount_tmpfs("/dev/shm", "mode=1777");
  if (job.machine == 0) return;
  bind(own / "shadow", "/etc/shadow");
  mount_tmpfs("/run", "mode=755");
  mkdir("/run/sshd", 0755);
  mount_tmpfs("/mnt", "mode=755");
  mkdir("/mnt/local", 0755);
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) fail("/proc");
  // A fresh /sys shows this machine's network devices; the cgroups below the old one are kept.
  mkdir("/mnt/cgroup", 0755);
  if (mount("/sys/fs/cgroup", "/mnt/cgroup", nullptr, MS_BIND | MS_REC, nullptr) == 0) {
    if (mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0) {
      mount("/mnt/cgroup", "/sys/fs/cgroup", nullptr, MS_MOVE, nullptr);
    } else {
      umount2("/mnt/cgroup", MNT_DETACH);
    }
    rmdir("/mnt/cgroup");
  }
}

void set_up_network(const MachineJob& job) {
  std::string text = "link set lo up\n";
  for (int network = 0; network < 2; ++network) {
    const std::string device = "eth" + std::to_string(network);
    text += "addr add " + machine_address(job.machine, network, false) + "/24 dev " + device + "\n";
    // Without duplicate address detection, which would keep the address from use for a second.
    if (fs::exists("/proc/sys/net/ipv6")) {
      text += "addr add " + machine_address(job.machine, network, true) + "/64 dev " + device +
              " nodad\n";
    }
    text += "link set " + device + " up\n";
  }
  const fs::path file = job.dir / machine_name(job.machine) / "net.ip";
  std::ofstream(file) << text;
  run_to_end({"ip", "-batch", file.string()});
}

bool sshd_answers() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(22);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool answers = connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  close(fd);
  return answers;
}

class Init {
 public:
  explicit Init(const MachineJob& job) : job_(job) {
    if (!job.cgroup_procs.empty()) {
      std::ofstream procs(job.cgroup_procs);
      procs << "0" << std::flush;
      if (!procs) fail(job.cgroup_procs);
    }
    const std::string name = machine_name(job.machine);
    if (sethostname(name.data(), name.size()) != 0) fail("sethostname");
    set_up_mounts(job);
  }

  void obey(char order) {
    if (order == 'G') set_up_network(job_);
    if (job_.machine == 0) return;
    if (order != 'K') start_sshd();
    if (order == 'K') stop_sshd();
  }

  // Of whatever was orphaned on this machine, and sshd.
  void reap() {
    for (pid_t pid = 0; (pid = waitpid(-1, nullptr, WNOHANG)) > 0;) {
      if (pid == sshd_) sshd_ = -1;
    }
  }

 private:
  void start_sshd() {
    if (sshd_ > 0) stop_sshd();
    const fs::path own = job_.dir / machine_name(job_.machine);
    const fs::path log = own / "sshd.log";
    // sshd wants to be called by its absolute path: it runs itself again for each connection.
    sshd_ = spawn({"/usr/sbin/sshd", "-D", "-f", own / "sshd_config", "-E", log});
    while (!sshd_answers()) {
      if (waitpid(sshd_, nullptr, WNOHANG) == sshd_) {
        sshd_ = -1;
        throw std::runtime_error("sshd ended: " + file_text(log));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void stop_sshd() {
    if (sshd_ <= 0) return;
    kill(sshd_, SIGTERM);
    // It has been seen not to end by that (one time in ten, right after its start).
    for (int waited_ms = 0; waitpid(sshd_, nullptr, WNOHANG) == 0; ++waited_ms) {
      if (waited_ms == 2000) kill(sshd_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    sshd_ = -1;
    // What it forked for a connection has its port until it runs sshd anew: the next one could not
    // have it, and the old one would be taken for it.
    for (int waited_ms = 0; waited_ms < 2000 && sshd_answers(); ++waited_ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  MachineJob job_;
  pid_t sshd_ = -1;
};

}  // namespace

std::string machine_name(int machine) {
  return machine == 0 ? "head" : std::string("m").append(std::to_string(machine));
}

std::string machine_address(int machine, int network, bool ipv6) {
  const int number = machine == 0 ? kHeadNumber : machine;
  const std::string net = std::to_string(77 + network);
  if (!ipv6) return "10." + net + ".0." + std::to_string(number);
  std::ostringstream text;
  text << "fd" << net << "::" << std::hex << number;
  return text.str();
}

void isolate_mounts() {
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("private mounts");
}

void run_machine(const MachineJob& job) {
  sigset_t chld;
  sigemptyset(&chld);
  sigaddset(&chld, SIGCHLD);
  sigprocmask(SIG_BLOCK, &chld, nullptr);
  const int signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
  const auto answer = [&](const std::string& text) {
    send(job.control, text.data(), std::min(text.size(), size_t{500}), MSG_NOSIGNAL);
  };
  try {
    Init init(job);
    for (;;) {
      pollfd polled[2] = {{job.control, POLLIN, 0}, {signals, POLLIN, 0}};
      poll(polled, 2, -1);
      if (polled[1].revents != 0) {
        signalfd_siginfo ignored;
        while (read(signals, &ignored, sizeof ignored) > 0) continue;
        init.reap();
      }
      if (polled[0].revents == 0) continue;
      char order = 0;
      if (recv(job.control, &order, 1, 0) <= 0) _exit(0);
      init.obey(order);
      answer("ok");
    }
  } catch (const std::exception& error) {
    answer(error.what());
    // Gone before it is read, the answer would be lost with the machine; the warden ends it.
    char wait = 0;
    while (recv(job.control, &wait, 1, 0) > 0) continue;
  }
  _exit(1);
}

void write_lab_files(const fs::path& dir, int machines) {
  const auto write = [](const fs::path& path, const std::string& text, fs::perms mode) {
    std::ofstream(path) << text;
    fs::permissions(path, mode);
  };
  const auto key = [](const fs::path& path, const std::string& comment) {
    run_to_end({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path});
    std::ifstream in(path.string() + ".pub");
    std::string type, text;
    in >> type >> text;
    return type + " " + text;
  };
  const auto readable = fs::perms(0644), secret = fs::perms(0600);
  std::ifstream host_passwd("/etc/passwd");
  std::string line, users;
  while (std::getline(host_passwd, line)) {
    if (!line.starts_with("root:")) users += line + "\n";
  }
  std::string hosts = "127.0.0.1 localhost\n::1 localhost\n" + machine_address(0, 0, false) +
                      " head\n" + machine_address(0, 0, true) + " head-6\n";
  std::string known_hosts;
  const std::string user_key = key(dir / "user_key", "lab");
  write(dir / "authorized_keys", user_key + "\n", readable);
  std::string names;
  for (int i = 0; i <= machines; ++i) {
    const std::string name = machine_name(i);
    const fs::path own = dir / name;
    fs::create_directories(own / "home" / ".ssh");
    fs::permissions(own / "home" / ".ssh", fs::perms(0700));
    write(own / "passwd", "root:x:0:0:root:" + (own / "home").string() + ":/bin/bash\n" + users,
          readable);
    if (i == 0) continue;
    write(own / "shadow", "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n", secret);
    names = name;
    for (int network = 0; network < 2; ++network) {
      for (const bool ipv6 : {false, true}) {
        names.append(",").append(machine_address(i, network, ipv6));
      }
    }
    names += "," + name + "-6," + name + "-eth1";
    known_hosts += names + " " + key(own / "host_key", name) + "\n";
    hosts += machine_address(i, 0, false) + " " + name + "\n" + machine_address(i, 0, true) + " " +
             name + "-6\n" + machine_address(i, 1, false) + " " + name + "-eth1\n";
    write(own / "sshd_config",
          "Port 22\nHostKey " + (own / "host_key").string() + "\nAuthorizedKeysFile " +
              (dir / "authorized_keys").string() +
              "\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
              "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n"
              "MaxStartups 256:30:512\nMaxSessions 64\nPrintMotd no\nPrintLastLog no\n"
              "LogLevel VERBOSE\n",
          readable);
  }
  write(dir / "hosts", hosts, readable);
  for (int i = 0; i <= machines; ++i) {
    const fs::path ssh = dir / machine_name(i) / "home" / ".ssh";
    fs::copy_file(dir / "user_key", ssh / "id_ed25519");
    fs::permissions(ssh / "id_ed25519", secret);
    write(ssh / "known_hosts", known_hosts, readable);
    write(ssh / "config",
          "Host m* 10.7* fd7*\n  User root\n  IdentityFile " + (ssh / "id_ed25519").string() +
              "\n  UserKnownHostsFile " + (ssh / "known_hosts").string() +
              "\n  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 5\n",
          secret);
  }
}

}  // namespace mtl::test
