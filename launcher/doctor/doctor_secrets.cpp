// What a block for a bug report is not to tell (doctor.h).
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <pwd.h>
#include <unistd.h>

#include <arpa/inet.h>

#include <fmt/format.h>

#include "launcher/doctor/doctor.h"
#include "launcher/settings/secret.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

// Every place where `what` stands as a word of its own; part of a path counts.
void replace_words(std::string& text, const std::string& what, const std::string& with) {
  if (what.empty()) return;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos;) {
    const bool begins = at == 0 || !is_word(text[at - 1]);
    const size_t end = at + what.size();
    const bool ends = end == text.size() || !is_word(text[end]);
    if (begins && ends) {
      text.replace(at, what.size(), with);
      at += with.size();
    } else {
      at = end;
    }
  }
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  if (what.empty()) return;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
}

// Numeric addresses: a run of the characters that one consists of, if the system takes it for one.
// Versions have three numbers, or are behind "driver" and the like, and stay.
void replace_addresses(std::string& text) {
  const auto part = [](char c) {
    return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':';
  };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (!part(text[at]) || (at > 0 && is_word(text[at - 1]))) {
      result += text[at++];
      continue;
    }
    size_t end = at;
    while (end < text.size() && part(text[end])) ++end;
    std::string word = text.substr(at, end - at);
    const std::string whole = word;
    while (!word.empty() && (word.back() == ':' || word.back() == '.')) word.pop_back();
    unsigned char ignored[16];
    // Behind an IPv4 address may stand a port.
    const size_t colon = word.find(':');
    if (word.find('.') != std::string::npos && colon != std::string::npos) word.resize(colon);
    const bool four = inet_pton(AF_INET, word.c_str(), ignored) == 1;
    const bool six = inet_pton(AF_INET6, word.c_str(), ignored) == 1;
    result += four || six ? "ADDRESS" + whole.substr(word.size()) : whole;
    at = end;
  }
  text = result;
}

}  // namespace

Secrets read_secrets(const std::vector<std::string>& hosts) {
  Secrets secrets;
  if (const passwd* entry = getpwuid(geteuid())) {
    secrets.user = entry->pw_name;
    secrets.home = entry->pw_dir;
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') secrets.home = home;
  if (const char* user = std::getenv("USER"); user != nullptr && *user) secrets.user = user;
  secrets.hosts = hosts;
  secrets.hosts.push_back(host_name());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos || text.size() - equals < 8) continue;
    if (is_secret(text.substr(0, equals))) secrets.values.push_back(text.substr(equals + 1));
  }
  return secrets;
}

std::string without_secrets(std::string text, const Secrets& secrets) {
  for (const std::string& value : secrets.values) replace_all(text, value, "SECRET");
  if (secrets.home.size() > 1) replace_words(text, secrets.home, "~");
  // Longer names first: "node1.lab" before "node1".
  std::vector<std::string> hosts;
  for (const std::string& host : secrets.hosts) {
    if (host.empty() || host == "localhost") continue;
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  std::vector<size_t> order(hosts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return hosts[a].size() > hosts[b].size(); });
  for (const size_t i : order) replace_words(text, hosts[i], fmt::format("HOST{}", i));
  // A name that everybody has tells nothing.
  if (secrets.user != "root") {
    replace_all(text, "/home/" + secrets.user, "~");
    replace_words(text, secrets.user, "USER");
  }
  replace_addresses(text);
  return text;
}

}  // namespace mtl
