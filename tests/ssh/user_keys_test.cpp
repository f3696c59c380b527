// How a user is let in: keys of files and of an agent, certificates; and what is said where none
// will do.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/ssh/agent_filter.h"
#include "ssh/loopback.h"
#include "ssh/one_host.h"
#include "support/fitting_limit.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

// Of the site, with no keys at first.
struct SshAgent {
  explicit SshAgent(const Site& site)
      : socket((site / "agent.sock").string()),
        process({"/usr/bin/ssh-agent", "-D", "-a", socket}, site / "agent.log") {
    // It gives 1 where there is no key. The socket is a file before anybody listens at it.
    REQUIRE(wait_until([&] { return ssh_add("-l") == 1; }));
  }
  bool add(const std::string& key) const { return ssh_add(key) == 0; }
  const std::string socket;
  const Process process;

 private:
  int ssh_add(const std::string& argument) const {
    return run_program({"/usr/bin/env", "SSH_AUTH_SOCK=" + socket, "/usr/bin/ssh-add", argument});
  }
};

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
