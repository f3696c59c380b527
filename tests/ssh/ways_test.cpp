// The ways to a host: jump hosts, proxy commands, OpenSSH as a program; and what ~/.ssh/config
// says.
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/ssh/config.h"
#include "ssh/loopback.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// One byte of each is enough to know that both directions lead to the right host.
void check_echo(const FleetEvent& event, const std::string& text) {
  INFO((event.error ? render(*event.error) : ""));
  REQUIRE(event.kind == FleetEvent::started);
  write_stream(event.stream, text);
  CHECK(read_stream(event.stream, text.size()) == text);
}

ssh::HostSettings asked(const TempDir& dir, const std::string& config, const std::string& name,
                        std::vector<Diagnostic>* warnings = nullptr) {
  ssh::Config read(dir.file("config", config));
  ssh::HostSettings settings = read.of({.name = name, .user = {}, .place = {}});
  if (warnings != nullptr) *warnings = read.warnings();
  return settings;
}

}  // namespace

TEST_CASE("hosts behind two jump hosts") {
  Site site;
  site.sshd("gate");
  site.sshd("inner");
  for (int i = 0; i < 3; ++i) site.sshd(fmt::format("m{}", i));
  site.before("Host m*\n  ProxyJump gate,inner\n");
  const auto fleet = start_fleet(site.options({"m0", "m1", "m2", "m0"}, "exec cat"));
  const std::vector<FleetEvent> started = first_events(*fleet, 4);
  for (size_t i = 0; i < 4; ++i) check_echo(started[i], fmt::format("host {}\n", i));
  // One connection to the first jump host, whatever is behind it.
  const std::string log = file_text(site / "sshd_gate.log");
  size_t logins = 0;
  for (size_t at = 0; (at = log.find("Accepted publickey", at)) != std::string::npos; ++at) {
    ++logins;
  }
  CHECK(logins == 1);
  const std::string bytes(4 << 20, 'j');
  std::thread writer([&] {
    write_stream(started[1].stream, bytes);
    shutdown(started[1].stream.get(), SHUT_WR);
  });
  CHECK((read_stream(started[1].stream) == bytes));
  writer.join();
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->host == 1);
  CHECK(ended->exit_code == 0);
}

TEST_CASE("a reader that stalls behind a jump host does not stall its neighbour") {
  Site site;
  site.sshd("gate");
  site.sshd("flood");
  site.sshd("calm");
  site.before("Host flood calm\n  ProxyJump gate\n");
  FleetOptions options = site.options({"flood", "calm"}, "");
  options.command = fmt::format("echo '{}'; [ $PPID != 0 ] && exec cat", kMagic);
  const auto fleet = start_fleet(options);
  const std::vector<FleetEvent> started = first_events(*fleet, 2);
  REQUIRE(started[0].kind == FleetEvent::started);
  std::thread writer([&] {  // 12 MiB come back that nobody reads for now
    write_stream(started[0].stream, std::string(12 << 20, 'f'));
    shutdown(started[0].stream.get(), SHUT_WR);
  });
  for (int i = 0; i < 20; ++i) check_echo(started[1], fmt::format("calm {}\n", i));
  CHECK(read_stream(started[0].stream).size() == (12U << 20));
  writer.join();
}

TEST_CASE("behind a jump host the last bytes come wherever its reader has stalled") {
  Site site;
  site.sshd("gate");
  site.sshd("m");
  site.before("Host m\n  ProxyJump gate\n");
  FleetOptions options = site.options({"m"}, "");
  options.command = fmt::format("echo '{}'; [ $PPID != 0 ] && exec cat", kMagic);
  const auto fleet = start_fleet(options);
  const std::vector<FleetEvent> started = first_events(*fleet, 1);
  REQUIRE(started[0].kind == FleetEvent::started);
  // From less than the sockets on the way hold to more than the buffers between them hold as well:
  // the last bytes lie once in each of these, and nothing comes behind them to push them on.
  for (size_t size = 400'000; size < 800'000; size += 25'000) {
    CAPTURE(size);
    const std::string bytes(size, 'b');
    write_stream(started[0].stream, bytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // so that they come that far
    REQUIRE((read_stream(started[0].stream, size) == bytes));
  }
}

TEST_CASE("a jump host that fails is named with its reason") {
  Site site;
  site.sshd("m");
  site.sshd("gate", "", false);
  site.before("Host m\n  ProxyJump gate\n");
  auto fleet = start_fleet(site.options({"m", "m"}, "cat"));
  for (const FleetEvent& event : first_events(*fleet, 2)) {
    REQUIRE(event.kind == FleetEvent::failed);
    CHECK(event.error->code == "ssh.proxy");
    CHECK(event.error->what.find("gate") != std::string::npos);
    CHECK(event.error->notes.at(0).find("[ssh.host_key_unknown]") == 0);
  }
  Site other;
  other.sshd("gate");
  other.after("Host far\n  HostName 127.0.0.1\n  Port 1\n");
  other.before("Host far\n  ProxyJump gate\n");
  fleet = start_fleet(other.options({"far"}, "cat"));
  const FleetEvent event = std::move(first_events(*fleet, 1)[0]);
  REQUIRE(event.kind == FleetEvent::failed);
  CHECK(event.error->code == "ssh.proxy");
  CHECK(event.error->notes.at(0).find("refused") != std::string::npos);
}

TEST_CASE("a jump host whose name is made of the host's") {
  Site site;
  site.sshd("gate-m");
  site.sshd("m");
  site.before(fmt::format("Host m\n  ProxyJump %r@gate-%n:{}\n", site.server("gate-m").port));
  for (const char* way : {"", "ssh"}) {
    CAPTURE(std::string(way));
    FleetOptions options = site.options({"m"}, "exec cat");
    options.ssh_command = way;
    const auto fleet = start_fleet(options);
    check_echo(first_events(*fleet, 1)[0], "behind it\n");
  }
}

TEST_CASE("jump hosts that lie behind each other are an error") {
  Site site;
  site.sshd("a");
  site.before("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n");
  CHECK_THROWS_AS(start_fleet(site.options({"a"}, "cat")), Error);
}

TEST_CASE("a lost jump host ends what is behind it") {
  Site site;
  site.sshd("gate");
  site.sshd("m");
  site.before("Host m\n  ProxyJump gate\n");
  const std::string script = "echo $$ >" + (site / "pid").string() + "; cat >/dev/null";
  const auto fleet = start_fleet(site.options({"m"}, script));
  std::vector<FleetEvent> started = first_events(*fleet, 1);
  REQUIRE(started[0].kind == FleetEvent::started);
  const pid_t far = pid_in(site / "pid");
  // The session's sshd of the gate: as root one process, else one more for the user's rights.
  std::vector<pid_t> session{site.server("gate").process.pid()};
  for (size_t i = 0; i < session.size(); ++i) {
    std::ifstream in(fmt::format("/proc/{0}/task/{0}/children", session[i]));
    for (pid_t child = 0; in >> child;) session.push_back(child);
  }
  REQUIRE(session.size() > 1);
  for (size_t i = 1; i < session.size(); ++i) kill(session[i], SIGKILL);
  CHECK(read_stream(started[0].stream).empty());
  const auto ended = next_event(*fleet);
  REQUIRE(ended);
  CHECK(ended->kind == FleetEvent::ended);
  CHECK(!ended->exit_code);
  CHECK(ended->signal.empty());
  CHECK(wait_until([&] { return !alive(far); }));
}

TEST_CASE("a proxy command") {
  Site site;
  site.sshd("gate");
  site.sshd("m");
  site.before(fmt::format("Host m\n  ProxyCommand ssh -F {} -W %h:%p gate\n", site.config()));
  const auto fleet = start_fleet(site.options({"m"}, "exec cat"));
  check_echo(first_events(*fleet, 1)[0], "through a program\n");
}

TEST_CASE("a proxy command that fails is named with its last words") {
  Site site;
  site.sshd("m");
  site.before("Host m\n  ProxyCommand sh -c 'echo no way through >&2; exit 3'\n");
  const auto fleet = start_fleet(site.options({"m"}, "exec cat"));
  const auto event = std::move(first_events(*fleet, 1)[0]);
  REQUIRE(event.kind == FleetEvent::failed);
  CHECK(event.error->code == "ssh.proxy");
  CHECK(event.error->what.find("exit 3") != std::string::npos);
  REQUIRE(event.error->notes.size() >= 2);
  CHECK(event.error->notes[0] == "it ended with 3");
  CHECK(event.error->notes[1].find("no way through") != std::string::npos);
}

TEST_CASE("OpenSSH as a program: streams and ends and no process left") {
  Site site;
  site.sshd("m");
  FleetOptions options = site.options({"m", "m"}, "cat; echo err >&2; exit 6");
  options.ssh_command = "env ssh -o 'LogLevel ERROR'";
  {
    const auto fleet = start_fleet(options);
    const std::vector<FleetEvent> started = first_events(*fleet, 2);
    check_echo(started[0], "one\n");
    check_echo(started[1], "two\n");
    const std::string bytes(8 << 20, 'o');
    std::thread writer([&] {
      write_stream(started[0].stream, bytes);
      shutdown(started[0].stream.get(), SHUT_WR);
    });
    CHECK((read_stream(started[0].stream) == bytes));
    writer.join();
    const auto ended = next_event(*fleet);
    REQUIRE(ended);
    CHECK(ended->host == 0);
    CHECK(ended->exit_code == 6);
    CHECK(ended->stderr_tail == "err");
  }
  options = site.options({"m"}, "");
  options.ssh_command = "/nonexistent/ssh";
  const auto fleet = start_fleet(options);
  const FleetEvent event = std::move(first_events(*fleet, 1)[0]);
  REQUIRE(event.kind == FleetEvent::failed);
  CHECK(event.error->code == "ssh.config");
}

TEST_CASE("OpenSSH as a program: the end of the fleet and of its process ends the far command") {
  Site site;
  site.sshd("m");
  FleetOptions options = site.options({"m"}, "echo $$ >" + (site / "pid").string() +
                                                 "; cat >/dev/null; rm " + (site / "pid").string());
  options.ssh_command = "ssh";
  {
    const auto fleet = start_fleet(options);
    const std::vector<FleetEvent> started = first_events(*fleet, 1);
    REQUIRE(started[0].kind == FleetEvent::started);
    const pid_t far = pid_in(site / "pid");
    CHECK(alive(far));
  }
  CHECK(wait_until([&] { return !std::filesystem::exists(site / "pid"); }));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto fleet = start_fleet(options);
    for (;;) pause();
  }
  const pid_t far = pid_in(site / "pid");
  CHECK(alive(far));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(wait_until([&] { return !alive(far); }));
}

TEST_CASE("the configuration: first value wins and patterns and includes and tokens") {
  const TempDir dir;
  dir.file("more", "Host inc*\n  User included\n");
  const std::string config =
      "Include " + (dir / "more").string() +
      "\n"
      "Host !bad* ba* \"quoted\"\n  HostName=%h.example.org\n  Port 2200\n"
      "Host *\n  Port 99\n  User general # comment\n  IdentityFile ~/a\n  IdentityFile /b/%r@%h\n"
      "Match host *.example.org user general\n  HostKeyAlias alias\n"
      "Match originalhost bar exec \"test %h = bar.example.org\"\n  ConnectTimeout 7\n";
  setenv("HOME", "/home/me", 1);
  ssh::HostSettings settings = asked(dir, config, "bar");
  CHECK(settings.host_name == "bar.example.org");
  CHECK(settings.port == 2200);
  CHECK(settings.user == "general");
  CHECK(settings.identity_files ==
        std::vector<std::string>{"/home/me/a", "/b/general@bar.example.org"});
  CHECK(settings.key_alias == "alias");
  CHECK(settings.connect_timeout_s == 7);
  settings = asked(dir, config, "badger");
  CHECK(settings.host_name == "badger");
  CHECK(settings.port == 99);
  CHECK(asked(dir, config, "quoted").port == 2200);
  CHECK(asked(dir, config, "incoming").user == "included");
  ssh::Config read(dir.file("config", config));
  settings = read.of({.name = "bar", .user = "given", .port = 5, .place = {}});
  CHECK(settings.user == "given");
  CHECK(settings.port == 5);
  CHECK(settings.key_alias.empty());
}

TEST_CASE("the configuration: proxies and agents and known hosts") {
  const TempDir dir;
  setenv("HOME", "/home/me", 1);
  setenv("SSH_AUTH_SOCK", "/run/agent", 1);
  ssh::HostSettings settings =
      asked(dir,
            "ProxyJump me@a:22, b\nProxyCommand nc %h\nStrictHostKeyChecking accept-new\n"
            "UserKnownHostsFile ~/one /two\n",
            "m");
  CHECK(settings.jumps.size() == 1);
  CHECK(settings.jumps[0] == "me@a:22");
  CHECK(settings.proxy_command.empty());
  CHECK(settings.agent == "/run/agent");
  CHECK((settings.key_policy == ssh::KeyPolicy::accept_new));
  CHECK(settings.known_hosts == std::vector<std::string>{"/home/me/one", "/two"});
  settings = asked(dir, "ProxyCommand nc %h \"%p\" | x\nProxyJump a\nIdentityAgent none\n", "m");
  CHECK(settings.jumps.empty());
  CHECK(settings.proxy_command == "nc %h \"%p\" | x");
  CHECK(settings.agent.empty());
  CHECK((settings.key_policy == ssh::KeyPolicy::strict));
  CHECK(settings.identity_files.front() == "/home/me/.ssh/id_ed25519");
  CHECK(asked(dir, "IdentityAgent ~/sock", "m").agent == "/home/me/sock");
  unsetenv("SSH_AUTH_SOCK");
}

TEST_CASE("the configuration: what is not honoured is told once with its place") {
  const TempDir dir;
  std::vector<Diagnostic> warnings;
  asked(dir,
        "Host other\n  SetEnv A=b\nHost m\n  PKCS11Provider /lib/card.so\n  ForwardAgent no\n"
        "  ServerAliveInterval 5\n",
        "m", &warnings);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].code == "ssh.config");
  CHECK(warnings[0].severity == Diagnostic::Severity::warning);
  CHECK(warnings[0].place->line == 4);
}

TEST_CASE("the configuration: mistakes") {
  const TempDir dir;
  for (const std::string& text :
       {std::string("Port many\n"), std::string("User\n"), std::string("User \"open\n"),
        "Include " + (dir / "config").string(), std::string("Port 70000")}) {
    CAPTURE(text);
    CHECK_THROWS_AS(asked(dir, text, "m"), Error);
  }
  CHECK_THROWS_AS(ssh::Config("/nonexistent/config"), Error);
  // A folder among the files of a pattern is no mistake, as in OpenSSH.
  std::filesystem::create_directories(dir / "some" / "kept");
  dir.file("some/one", "Port 7\n");
  CHECK(asked(dir, "Include " + (dir / "some").string() + "/*\n", "m").port == 7);
  CHECK_NOTHROW(ssh::Config("none"));
}
