#include "ssh/loopback.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "support/text.h"

namespace mtl::test {

namespace {

constexpr int kPatienceMs = static_cast<int>(kPatience.count()) * 1000;

pid_t spawn(const std::vector<std::string>& argv, int output) {
  std::vector<char*> arguments;
  for (const std::string& text : argv) arguments.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(output, 1);
    dup2(output, 2);
    for (int fd = 3; fd < 256; ++fd) close(fd);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  return pid;
}

bool accepts(int port) {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

int run_program(const std::vector<std::string>& argv, std::string* output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const Fd out(ends[0]);
  const pid_t pid = spawn(argv, ends[1]);
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(out.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  if (output != nullptr) *output = text;
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Process::Process(const std::vector<std::string>& argv, const std::filesystem::path& log) {
  const Fd out(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  pid_ = spawn(argv, out.get());
}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

void Process::stop() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int free_port() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no free port");
  }
  return ntohs(address.sin_port);
}

std::string new_key(const std::filesystem::path& path, const std::string& type,
                    const std::string& passphrase) {
  std::string output;
  if (run_program({"/usr/bin/ssh-keygen", "-q", "-t", type, "-N", passphrase, "-f", path.string()},
                  &output) != 0) {
    throw std::runtime_error("ssh-keygen: " + output);
  }
  return path.string();
}

Site::Site() {
  if (!std::filesystem::exists("/usr/sbin/sshd")) {
    throw std::runtime_error("no /usr/sbin/sshd: install openssh-server (scripts/install-deps)");
  }
  // sshd of root wants it; a booted machine has it.
  if (getuid() == 0) mkdir("/run/sshd", 0755);
  setenv("HOME", dir_.path().c_str(), 1);
  unsetenv("SSH_AUTH_SOCK");
  new_key(dir_ / "id");
  std::filesystem::copy(dir_ / "id.pub", dir_ / "authorized_keys");
  dir_.file("known_hosts", "");
  dir_.file("config", "");
}

Site::~Site() = default;

Sshd& Site::sshd(const std::string& name, const std::string& settings, bool known) {
  auto server = std::make_unique<Sshd>();
  server->name = name;
  server->host_key = (dir_ / ("host_key_" + name)).string();
  new_key(server->host_key);
  const std::string common =
      "AuthorizedKeysFile " + (dir_ / "authorized_keys").string() +
      "\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
      // A bash that takes itself for an inner one leaves the user's start-up files alone.
      "KbdInteractiveAuthentication no\nUseDNS no\nMaxStartups 256\nPermitRootLogin yes\n"
      "SetEnv SHLVL=5\n";
  const std::filesystem::path log = dir_ / ("sshd_" + name + ".log");
  for (int attempt = 0; attempt < 5 && server->port == 0; ++attempt) {
    const int port = free_port();  // another process may take it before sshd does
    const std::string file = dir_.file(
        "sshd_config_" + name, settings + "\nListenAddress 127.0.0.1:" + std::to_string(port) +
                                   "\nHostKey " + server->host_key + "\n" + common);
    server->process = Process({"/usr/sbin/sshd", "-D", "-e", "-f", file}, log);
    if (wait_until([&] { return accepts(port) || !alive(server->process.pid()); }) &&
        alive(server->process.pid())) {
      server->port = port;
    }
  }
  if (server->port == 0) throw std::runtime_error("sshd does not start: " + file_text(log));
  after("Host " + name + "\n  HostName 127.0.0.1\n  Port " + std::to_string(server->port) + "\n" +
        "  IdentityFile " + key() + "\n  UserKnownHostsFile " + known_hosts() +
        "\n  GlobalKnownHostsFile none\n");
  if (known) know(*server);
  servers_.push_back(std::move(server));
  return *servers_.back();
}

const Sshd& Site::server(const std::string& name) const {
  for (const auto& server : servers_) {
    if (server->name == name) return *server;
  }
  throw std::runtime_error("no sshd " + name);
}

void Site::before(const std::string& lines) {
  dir_.file("config", lines + "\n" + file_text(config()));
}

void Site::after(const std::string& lines) {
  dir_.file("config", file_text(config()) + lines + "\n");
}

void Site::know(const Sshd& sshd, const std::string& marker) {
  std::string key = file_text(sshd.host_key + ".pub");
  dir_.file("known_hosts", file_text(known_hosts()) + marker +
                               "[127.0.0.1]:" + std::to_string(sshd.port) + " " + key);
}

FleetOptions Site::options(const std::vector<std::string>& hosts, const std::string& script) const {
  FleetOptions options;
  for (const std::string& name : hosts)
    options.hosts.push_back({.name = name, .user = {}, .place = {}});
  const std::string file = dir_.file("script_" + std::to_string(std::hash<std::string>{}(script)),
                                     "echo '" + std::string(kMagic) + "'\n" + script + "\n");
  options.command = "exec /bin/sh " + file;
  options.magic = kMagic;
  options.config_file = config();
  options.connect_timeout = kPatience;
  return options;
}

std::optional<FleetEvent> next_event(SshFleet& fleet) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    if (auto event = fleet.next()) return event;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd polled{fleet.fd(), POLLIN, 0};
    poll(&polled, 1, static_cast<int>(left.count()));
  }
}

std::vector<FleetEvent> first_events(SshFleet& fleet, size_t hosts) {
  std::vector<FleetEvent> events;
  while (events.size() < hosts) {
    auto event = next_event(fleet);
    if (!event) throw std::runtime_error("no event");
    events.push_back(std::move(*event));
  }
  std::sort(events.begin(), events.end(),
            [](const FleetEvent& a, const FleetEvent& b) { return a.host < b.host; });
  return events;
}

std::string read_stream(const Fd& stream, size_t bytes) {
  std::string text;
  std::vector<char> buffer(64 * 1024);
  while (text.size() < bytes) {
    pollfd polled{stream.get(), POLLIN, 0};
    if (poll(&polled, 1, kPatienceMs) <= 0) throw std::runtime_error("no data");
    const ssize_t got =
        read(stream.get(), buffer.data(), std::min(buffer.size(), bytes - text.size()));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return text;
}

void write_stream(const Fd& stream, std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd polled{stream.get(), POLLOUT, 0};
    if (poll(&polled, 1, kPatienceMs) <= 0) throw std::runtime_error("no room");
    const ssize_t wrote = send(stream.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (wrote < 0) throw std::runtime_error("the stream is closed");
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace mtl::test
