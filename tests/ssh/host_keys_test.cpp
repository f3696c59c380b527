// Which hosts are believed to be the ones that were asked for: known_hosts, and what its policies
// add.
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ssh/loopback.h"
#include "ssh/one_host.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("an unknown host key is refused with its fingerprint and how to add it") {
  for (const char* way : kWays) {
    CAPTURE(std::string(way));
    Site site;
    const Sshd& sshd = site.sshd("m", "", false);
    std::string code, fingerprint;
    const std::string text = failure(site, way, &code);
    INFO(text);
    CHECK(code == "ssh.host_key_unknown");
    CHECK(file_text(site.known_hosts()).empty());
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
    const std::string line = file_text(site.known_hosts());
    CHECK(line.starts_with(fmt::format("[127.0.0.1]:{} ssh-ed25519 ", sshd.port)));
    failure(site.options({"m"}, ""), &code);
    CHECK(code == "started");
    CHECK(file_text(site.known_hosts()) == line);
    site.before("HashKnownHosts yes\n");
    std::ofstream(site.known_hosts()) << "# a last line without its newline";
    failure(site.options({"m"}, ""), &code);
    CHECK(code == "started");
    CHECK(has(file_text(site.known_hosts()), "newline\n|1|"));
    CHECK(run_program({"/usr/bin/ssh-keygen", "-f", site.known_hosts(), "-F",
                       fmt::format("[127.0.0.1]:{}", sshd.port)}) == 0);
    site.before("HashKnownHosts no\n");
    new_key(site / fmt::format("wrong_{}", policy));
    std::string wrong = file_text(site / fmt::format("wrong_{}.pub", policy));
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
        << fmt::format("[127.0.0.1]:{} {}", sshd.port, file_text(site / "old.pub"));
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
  CHECK(file_text(site.known_hosts()).starts_with("|1|"));
  std::string code;
  failure(site.options({"m"}, ""), &code);
  CHECK(code == "started");
  // A server with an RSA key too: known is only that one, so that one is asked for.
  new_key(site / "rsa", "rsa");
  const Sshd& two = site.sshd("two", fmt::format("HostKey {}", (site / "rsa").string()), false);
  std::ofstream(site.known_hosts())
      << fmt::format("[127.0.0.1]:{} {}", two.port, file_text(site / "rsa.pub"));
  failure(site.options({"two"}, ""), &code);
  CHECK(code == "started");
  std::ofstream(site.known_hosts()) << "127.0.0.1 " << file_text(sshd.host_key + ".pub");
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
