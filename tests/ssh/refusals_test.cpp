// What happens when a host cannot be used: each way, told by its code and with what to do.
#include <csignal>
#include <fstream>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/ssh/agent_filter.h"
#include "ssh/loopback.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

FleetEvent only_event(const FleetOptions& options) {
  const auto fleet = start_fleet(options);
  return std::move(first_events(*fleet, 1)[0]);
}

std::string failure(const FleetOptions& options, std::string* code) {
  const FleetEvent event = only_event(options);
  *code = event.kind == FleetEvent::failed    ? event.error->code
          : event.kind == FleetEvent::started ? "started"
                                              : "ended";
  return event.error ? render(*event.error) : "";
}

// Of one host of the site, by the way of --ssh_command.
std::string failure(const Site& site, const std::string& way, std::string* code,
                    const std::string& host = "m") {
  FleetOptions options = site.options({host}, "");
  options.ssh_command = way;
  return failure(options, code);
}

// Of the site, with no keys at first.
struct SshAgent {
  explicit SshAgent(const Site& site)
      : socket((site / "agent.sock").string()),
        process({"/usr/bin/ssh-agent", "-D", "-a", socket}, site / "agent.log") {
    REQUIRE(wait_for([&] { return std::filesystem::exists(socket); }));
  }
  bool add(const std::string& key) const {
    return run_program({"/usr/bin/env", "SSH_AUTH_SOCK=" + socket, "/usr/bin/ssh-add", key}) == 0;
  }
  const std::string socket;
  const Process process;
};

// Takes connections and says nothing.
struct SilentServer {
  Fd socket_;
  int port = 0;
  explicit SilentServer(bool listening) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    if (listening) listen(socket_.get(), 16);
  }
};

// libssh, and OpenSSH as a program.
const char* const kWays[] = {"", "ssh"};

}  // namespace

TEST_CASE("a key that the server does not know") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd("m");
    new_key(site / "other");
    site.before("IdentitiesOnly yes\n");
    std::filesystem::rename(site / "other", site / "id");
    std::filesystem::rename(site / "other.pub", site / "id.pub");
    std::string code;
    const std::string text = failure(site, way, &code);
    INFO(text);
    CHECK(code == "ssh.auth");
    CHECK(has(text, "the server takes: publickey"));
  }
}

TEST_CASE("an unknown host key is refused with its fingerprint and how to add it") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const Sshd& sshd = site.sshd("m", "", false);
    std::string code, fingerprint;
    const std::string text = failure(site, way, &code);
    INFO(text);
    CHECK(code == "ssh.host_key_unknown");
    CHECK(content(site.known_hosts()).empty());
    if (*way != '\0') continue;
    run_program({"/usr/bin/ssh-keygen", "-l", "-f", sshd.host_key + ".pub"}, &fingerprint);
    fingerprint = fingerprint.substr(fingerprint.find("SHA256:"));
    CHECK(has(text, fingerprint.substr(0, fingerprint.find(' '))));
    const size_t help = text.find("ssh-keyscan");
    REQUIRE(help != std::string::npos);
    const std::string command = text.substr(help, text.find('\n', help) - help);
    // The advice is good: with it the host starts.
    CHECK(run_program({"/bin/sh", "-c", command}) == 0);
    failure(site, way, &code);
    CHECK(code == "started");
  }
}

TEST_CASE("accept-new adds an unknown key once and never takes a changed one") {
  Site site;
  const Sshd& sshd = site.sshd("m", "", false);
  for (const char* policy : {"accept-new", "no"}) {
    site.before(fmt::format("StrictHostKeyChecking {}\n", policy));
    std::filesystem::remove(site.known_hosts());
    std::string code;
    failure(site.options({"m"}, ""), &code);
    CHECK(code == "started");
    const std::string line = content(site.known_hosts());
    CHECK(line.starts_with(fmt::format("[127.0.0.1]:{} ssh-ed25519 ", sshd.port)));
    failure(site.options({"m"}, ""), &code);
    CHECK(code == "started");
    CHECK(content(site.known_hosts()) == line);
    site.before("HashKnownHosts yes\n");
    std::ofstream(site.known_hosts()) << "# a last line without its newline";
    failure(site.options({"m"}, ""), &code);
    CHECK(code == "started");
    CHECK(has(content(site.known_hosts()), "newline\n|1|"));
    CHECK(run_program({"/usr/bin/ssh-keygen", "-f", site.known_hosts(), "-F",
                       fmt::format("[127.0.0.1]:{}", sshd.port)}) == 0);
    site.before("HashKnownHosts no\n");
    new_key(site / fmt::format("wrong_{}", policy));
    std::string wrong = content(site / fmt::format("wrong_{}.pub", policy));
    std::ofstream(site.known_hosts()) << fmt::format("[127.0.0.1]:{} {}", sshd.port, wrong);
    failure(site.options({"m"}, ""), &code);
    CHECK(code == "ssh.host_key_changed");
  }
}

TEST_CASE("a changed host key is refused at its line") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const Sshd& sshd = site.sshd("m", "", false);
    new_key(site / "old");
    std::ofstream(site.known_hosts())
        << "# comment\n"
        << fmt::format("[127.0.0.1]:{} {}", sshd.port, content(site / "old.pub"));
    std::string code;
    const std::string text = failure(site, way, &code);
    INFO(text);
    CHECK(code == "ssh.host_key_changed");
    if (*way == '\0') CHECK(has(text, site.known_hosts() + ":2"));
  }
}

TEST_CASE("hashed known hosts; several key types; a key known for all ports") {
  Site site;
  const Sshd& sshd = site.sshd("m");
  CHECK(run_program({"/usr/bin/ssh-keygen", "-q", "-H", "-f", site.known_hosts()}) == 0);
  CHECK(content(site.known_hosts()).starts_with("|1|"));
  std::string code;
  failure(site.options({"m"}, ""), &code);
  CHECK(code == "started");
  // A server with an RSA key too: known is only that one, so that one is asked for.
  new_key(site / "rsa", "rsa");
  const Sshd& two = site.sshd("two", fmt::format("HostKey {}", (site / "rsa").string()), false);
  std::ofstream(site.known_hosts())
      << fmt::format("[127.0.0.1]:{} {}", two.port, content(site / "rsa.pub"));
  failure(site.options({"two"}, ""), &code);
  CHECK(code == "started");
  std::ofstream(site.known_hosts()) << "127.0.0.1 " << content(sshd.host_key + ".pub");
  failure(site.options({"m"}, ""), &code);
  CHECK(code == "started");
}

TEST_CASE("a revoked host key is refused even where it is known") {
  Site site;
  const Sshd& sshd = site.sshd("m");
  site.know(sshd, "@revoked ");
  std::string code;
  CHECK(has(failure(site.options({"m"}, ""), &code), "revoked"));
  CHECK(code == "ssh.host_key_changed");
}

TEST_CASE("a server that takes passwords only") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd("m", "PubkeyAuthentication no\nPasswordAuthentication yes");
    std::string code;
    const std::string text = failure(site, way, &code);
    INFO(text);
    CHECK(code == "ssh.auth");
    CHECK(has(text, "the server takes: password"));
    CHECK(has(text, "ssh-copy-id"));
  }
}

TEST_CASE("a key with a passphrase: named without an agent and used with one") {
  Site site;
  site.sshd("m");
  std::filesystem::remove(site / "id");
  std::filesystem::remove(site / "id.pub");
  new_key(site / "id", "ed25519", "secret words");
  std::filesystem::copy(site / "id.pub", site / "authorized_keys",
                        std::filesystem::copy_options::overwrite_existing);
  std::string code;
  std::string text = failure(site.options({"m"}, ""), &code);
  INFO(text);
  CHECK(code == "ssh.auth");
  CHECK(has(text, "want a passphrase: " + site.key()));
  CHECK(has(text, "ssh-add " + site.key()));

  const SshAgent agent(site);
  std::ofstream(site / "askpass") << "#!/bin/sh\necho secret words\n";
  std::filesystem::permissions(site / "askpass", std::filesystem::perms::owner_all);
  std::string output;
  REQUIRE(
      run_program({"/usr/bin/env", "SSH_AUTH_SOCK=" + agent.socket, "SSH_ASKPASS_REQUIRE=force",
                   "SSH_ASKPASS=" + (site / "askpass").string(), "/usr/bin/ssh-add", site.key()},
                  &output) == 0);
  setenv("SSH_AUTH_SOCK", agent.socket.c_str(), 1);
  text = failure(site.options({"m", "m", "m"}, ""), &code);
  CHECK(code == "started");
  unsetenv("SSH_AUTH_SOCK");
  site.before("IdentityAgent " + agent.socket);
  failure(site.options({"m"}, ""), &code);
  CHECK(code == "started");

  // An agent that never answers holds up its host only.
  const SilentServer silent(true);
  kill(agent.process.pid(), SIGSTOP);
  FleetOptions options = site.options({"m"}, "");
  with_fitting_limit(500ms, [&](auto limit) {
    options.connect_timeout = limit;
    text = failure(options, &code);
    return has(text, "the ssh agent");
  });
  INFO(text);
  CHECK(code == "ssh.timeout");
  CHECK(has(text, "the ssh agent at " + agent.socket));
}

TEST_CASE("a server that has heard enough keys ends the start at once and is quoted") {
  Site site;
  site.sshd("m", "MaxAuthTries 2");
  const SshAgent agent(site);
  std::string lines = "IdentityAgent none\n";
  for (int i = 0; i < 4; ++i) {
    const std::string other = (site / fmt::format("other{}", i)).string();
    new_key(other);
    lines += fmt::format("IdentityFile {}\n", other);
    REQUIRE(agent.add(other));
  }
  std::filesystem::remove(site.key());
  for (const std::string& keys :
       {lines, "IdentityAgent " + agent.socket + "\nIdentityFile none\n"}) {
    CAPTURE(keys);
    Site other;
    std::filesystem::copy(site.config(), other / "config",
                          std::filesystem::copy_options::overwrite_existing);
    other.before(keys);
    FleetOptions options = other.options({"m"}, "");
    options.connect_timeout = std::chrono::seconds(20);
    std::string code;
    const std::string text = failure(options, &code);
    INFO(text);
    CHECK(code == "ssh.auth");
    CHECK(has(text, "Too many authentication failures"));
    CHECK(has(text, "IdentitiesOnly yes"));
  }
}

TEST_CASE("of an agent's keys the configured ones are offered first") {
  const auto string = [](const std::string& text) {
    return std::string({0, 0, 0, static_cast<char>(text.size())}) + text;
  };
  const auto list = [&](const std::vector<std::string>& keys) {
    std::string message({12, 0, 0, 0, static_cast<char>(keys.size())});
    for (const std::string& key : keys) message += string(key) + string("of " + key);
    return message;
  };
  const std::string all = list({"a", "b", "c", "d"});
  const std::string a = "YQ==", c = "Yw==", d = "ZA==";
  CHECK(ssh::choose_keys(all, {}) == all);
  CHECK(ssh::choose_keys(all, {{d, "", c}, {a}, false}) == list({"d", "c", "b"}));
  CHECK(ssh::choose_keys(all, {{d, c}, {}, true}) == list({"d", "c"}));
  CHECK(ssh::choose_keys(all, {{}, {}, true}) == list({}));
  CHECK(ssh::choose_keys("\x0e" + all.substr(1), {{}, {}, true})[0] == 14);
  for (size_t size = 0; size < all.size(); ++size) {
    const std::string cut = all.substr(0, size);
    CHECK(ssh::choose_keys(cut, {{}, {}, true}) == cut);
  }
}

TEST_CASE("an agent with many keys: the configured one comes first") {
  Site site;
  site.sshd("m", "MaxAuthTries 3");
  const SshAgent agent(site);
  for (int i = 0; i < 6; ++i) {
    const std::string other = (site / fmt::format("other{}", i)).string();
    new_key(other);
    REQUIRE(agent.add(other));
  }
  REQUIRE(agent.add(site.key()));
  std::filesystem::remove(site.key());  // only its public half lies there, as with a smart card
  site.before("IdentityAgent " + agent.socket + "\n");
  for (const char* only : {"", "IdentitiesOnly yes\n"}) {
    for (const char* way : kWays) {
      CAPTURE(std::string(only));
      CAPTURE(std::string(way));
      site.before(only);
      std::string code;
      const std::string text = failure(site, way, &code);
      INFO(text);
      CHECK(code == "started");
    }
  }
}

TEST_CASE("a certificate that an agent has is offered where only named keys are") {
  for (const bool beside : {true, false}) {
    CAPTURE(beside);
    Site site;
    const std::string key = (site / "user").string(), ca = (site / "ca").string();
    new_key(key);
    new_key(ca);
    REQUIRE(run_program(
                {"/bin/sh", "-c",
                 "ssh-keygen -q -s '" + ca + "' -I me -n \"$(id -un)\" '" + key + ".pub'"}) == 0);
    site.sshd("m", "AuthorizedKeysFile none\nTrustedUserCAKeys " + ca + ".pub");
    const SshAgent agent(site);
    REQUIRE(agent.add(key));
    std::filesystem::remove(key);  // the agent has it, and the certificate
    site.before("IdentitiesOnly yes\nIdentityAgent " + agent.socket + "\n");
    site.before("IdentityFile " + key + "\n");
    if (!beside) {
      std::filesystem::rename(key + "-cert.pub", site / "certificate");
      site.before("CertificateFile " + (site / "certificate").string() + "\n");
    }
    for (const char* way : kWays) {
      CAPTURE(std::string(way));
      std::string code;
      const std::string text = failure(site, way, &code);
      INFO(text);
      CHECK(code == "started");
    }
  }
}

TEST_CASE("a certificate of a key in a file is offered, beside it or named") {
  for (const char* type : {"ed25519", "rsa"}) {
    CAPTURE(std::string(type));
    Site site;
    const std::string key = (site / "user").string(), ca = (site / "ca").string();
    REQUIRE(run_program({"/usr/bin/ssh-keygen", "-q", "-t", type, "-N", "", "-f", key}) == 0);
    new_key(ca);
    REQUIRE(run_program(
                {"/bin/sh", "-c",
                 "ssh-keygen -q -s '" + ca + "' -I me -n \"$(id -un)\" '" + key + ".pub'"}) == 0);
    site.sshd("m", "AuthorizedKeysFile none\nTrustedUserCAKeys " + ca + ".pub");
    const auto code_of = [&](const char* way) {
      std::string code;
      const std::string text = failure(site, way, &code);
      INFO(text);
      return code;
    };
    // Beside a key that is not its own it is none.
    new_key((site / "other").string());
    std::filesystem::copy_file(key + "-cert.pub", site / "other-cert.pub");
    site.before("IdentityFile " + (site / "other").string() + "\n");
    CHECK(code_of("") == "ssh.auth");
    site.before("IdentityFile " + key + "\n");
    for (const char* way : kWays) CHECK(code_of(way) == "started");
    std::filesystem::rename(key + "-cert.pub", site / "certificate");
    site.before("CertificateFile " + (site / "certificate").string() + "\n");
    for (const char* way : kWays) CHECK(code_of(way) == "started");
  }
}

TEST_CASE("start-up files that print do not disturb") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd(
        "m",
        "ForceCommand echo Welcome; echo; printf 'no newline'; eval \"$SSH_ORIGINAL_COMMAND\"");
    FleetOptions options = site.options({"m"}, "exec cat");
    options.ssh_command = way;
    const auto fleet = start_fleet(options);
    std::vector<FleetEvent> started = first_events(*fleet, 1);
    REQUIRE(started[0].kind == FleetEvent::started);
    write_stream(started[0].stream, "clean");
    CHECK(read_stream(started[0].stream, 5) == "clean");
  }
}

TEST_CASE("a missing program is told with its exit code and the shell's words") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd("m", "ForceCommand echo Welcome home; eval \"$SSH_ORIGINAL_COMMAND\"");
    FleetOptions options = site.options({"m"}, "");
    options.ssh_command = way;
    options.command = "exec /opt/none/mtl agent";
    std::string code;
    std::string text = failure(options, &code);
    INFO(text);
    CHECK(code == "ssh.command");
    CHECK(has(text, "the program is not there"));
    CHECK(has(text, "/opt/none/mtl: "));
    CHECK(has(text, "Welcome home"));
    // csh has no exit codes for these.
    options.command = "echo '/opt/none/mtl: Command not found.' >&2; exit 1";
    text = failure(options, &code);
    CHECK(code == "ssh.command");
    CHECK(has(text, "the program is not there"));
    CHECK(has(text, "install it there"));
    options.command = "echo '/opt/none/mtl: Permission denied.' >&2; exit 1";
    CHECK(has(failure(options, &code), "the program cannot be executed there"));
    options.command = "echo other; exit 9";
    text = failure(options, &code);
    CHECK(code == "ssh.command");
    CHECK(has(text, "ended with 9"));
    CHECK(has(text, "other"));
  }
}

TEST_CASE("no such host and nobody listening") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const SilentServer closed(false);
    site.after(fmt::format("Host closed\n  HostName 127.0.0.1\n  Port {}\n", closed.port));
    std::string code;
    std::string text = failure(site, way, &code, "closed");
    CHECK(code == "ssh.connect");
    CHECK(has(text, "Connection refused"));
    text = failure(site, way, &code, "no-such-host.invalid");
    CHECK(code == "ssh.unknown_host");
    CHECK(has(text, "no-such-host.invalid"));
  }
}

TEST_CASE("a port that takes connections and says nothing runs into the time limit") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const SilentServer silent(true);
    site.after(fmt::format("Host silent\n  HostName 127.0.0.1\n  Port {}\n", silent.port));
    FleetOptions options = site.options({"silent"}, "");
    options.ssh_command = way;
    std::string code, text;
    with_fitting_limit(300ms, [&](auto limit) {
      options.connect_timeout = limit;
      text = failure(options, &code);
      CHECK(has(text, fmt::format("{} s", static_cast<double>(limit.count()) / 1000)));
      return *way != '\0' || has(text, "says nothing");
    });
    INFO(text);
    CHECK(code == "ssh.timeout");
    if (*way == '\0') {  // the configuration's own limit counts where it is shorter
      site.before("ConnectTimeout 1\n");
      options.connect_timeout = std::chrono::seconds(kPatienceSeconds);
      CHECK(has(failure(options, &code), "no answer within 1 s"));
    }
    if (*way == '\0') CHECK(has(text, "says nothing"));
  }
}

TEST_CASE("a command that never says its magic line runs into the time limit") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    site.sshd("m");
    FleetOptions options = site.options({"m"}, "");
    options.ssh_command = way;
    options.command = "echo no magic; cat >/dev/null";
    std::string code, text;
    with_fitting_limit(1500ms, [&](auto limit) {
      options.connect_timeout = limit;
      text = failure(options, &code);
      return has(text, "no magic");
    });
    INFO(text);
    CHECK(code == "ssh.timeout");
    CHECK(has(text, "no magic"));
  }
}

TEST_CASE("a server that drops logins beyond its limit is asked again") {
  Site site;
  site.sshd("m", "MaxStartups 1:100:1");
  const std::vector<std::string> hosts(8, "m");
  const auto fleet = start_fleet(site.options(hosts, "cat >/dev/null"));
  for (const FleetEvent& event : first_events(*fleet, hosts.size())) {
    INFO((event.error ? render(*event.error) : ""));
    CHECK(event.kind == FleetEvent::started);
  }
}

TEST_CASE("a host that fails does not disturb the others") {
  Site site;
  site.sshd("good");
  const SilentServer closed(false);
  site.after(fmt::format("Host closed\n  HostName 127.0.0.1\n  Port {}\n", closed.port));
  FleetOptions options = site.options({"closed", "good", "none.invalid", "good"}, "cat");
  options.handshakes = 1;
  const auto fleet = start_fleet(options);
  const std::vector<FleetEvent> events = first_events(*fleet, 4);
  CHECK(events[0].kind == FleetEvent::failed);
  CHECK(events[1].kind == FleetEvent::started);
  CHECK(events[2].kind == FleetEvent::failed);
  CHECK(events[3].kind == FleetEvent::started);
}
