#include "launcher/ssh/config.h"

#include <algorithm>
#include <cstdlib>
#include <fnmatch.h>
#include <pwd.h>
#include <unistd.h>

#include <sys/socket.h>

#include <fmt/format.h>

#include "common/text.h"

namespace mtl::ssh {

namespace {

// What libssh and this fleet do not do, and what a person would miss. What only serves terminals,
// other channels or passwords is not here: it has no effect on a command started by a launcher.
const std::map<std::string, const char*>& unsupported() {
  static const std::map<std::string, const char*> list{
      {"pkcs11provider", "keys on smart cards are used only through an ssh agent"},
      {"revokedhostkeys", "the list of revoked host keys is not read"},
      {"knownhostscommand", "host keys are looked up in files only"},
      {"canonicalizehostname", "host names are used as they stand"},
      {"setenv", "variables are not passed by ssh"},
      {"remotecommand", "the launcher's own command is run"},
      {"forwardagent", "the agent is not forwarded"},
      {"proxyusefdpass", "descriptors are not passed by the proxy command"},
      {"hostbasedauthentication", "machines cannot vouch for their users"},
  };
  return list;
}

bool yes(const std::string& value) {
  const std::string text = lower(value);
  return text == "yes" || text == "true";
}

std::string hostname_of_machine() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// ${NAME} of the environment.
std::string expand_environment(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!text.substr(i).starts_with("${")) {
      result += text[i];
      continue;
    }
    const size_t end = std::min(text.find('}', i), text.size());
    const char* value = getenv(std::string(text.substr(i + 2, end - i - 2)).c_str());
    result += value != nullptr ? value : "";
    i = end;
  }
  return result;
}

// The %-tokens of ssh_config(5).
struct Tokens {
  std::string host_name, name, user, port, alias;
  std::string expand(std::string_view text) const {
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%' || i + 1 == text.size()) {
        result += text[i];
        continue;
      }
      const std::string machine = hostname_of_machine();
      switch (text[++i]) {
        case 'd':
          result += home_directory();
          break;
        case 'h':
          result += host_name;
          break;
        case 'i':
          result += std::to_string(getuid());
          break;
        case 'k':
          result += alias.empty() ? name : alias;
          break;
        case 'l':
          result += machine;
          break;
        case 'L':
          result += machine.substr(0, machine.find('.'));
          break;
        case 'n':
          result += name;
          break;
        case 'p':
          result += port;
          break;
        case 'r':
          result += user;
          break;
        case 'u':
          result += local_user();
          break;
        default:
          result += text[i];
      }
    }
    return result;
  }
  // A file's name.
  std::string path(std::string_view text) const {
    const bool home = text == "~" || text.starts_with("~/");
    return (home ? home_directory() : "") + expand(expand_environment(text.substr(home ? 1 : 0)));
  }
};

}  // namespace

std::string home_directory() {
  if (const char* home = getenv("HOME"); home != nullptr && *home != '\0') return home;
  const passwd* entry = getpwuid(getuid());
  return entry != nullptr ? entry->pw_dir : "/";
}

std::string local_user() {
  const passwd* entry = getpwuid(getuid());
  return entry != nullptr ? entry->pw_name : std::to_string(getuid());
}

bool matches_patterns(const std::vector<std::string>& patterns, std::string_view text) {
  bool matched = false;
  const std::string name(text);
  for (const std::string& list : patterns) {
    for (size_t at = 0; at <= list.size();) {
      const size_t end = std::min(list.find(',', at), list.size());
      std::string one = list.substr(at, end - at);
      at = end + 1;
      const bool negated = one.starts_with('!');
      if (negated) one.erase(0, 1);
      std::string plain;  // only * and ? are special; fnmatch knows more
      for (char c : one) {
        if (c == '[' || c == '\\') plain += '\\';
        plain += c;
      }
      if (one.empty() || fnmatch(plain.c_str(), name.c_str(), 0) != 0) continue;
      if (negated) return false;
      matched = true;
    }
  }
  return matched;
}

std::string HostSettings::label() const {
  std::string target = host_name;
  if (port != 22) {
    target = host_name.find(':') != std::string::npos ? fmt::format("[{}]:{}", host_name, port)
                                                      : fmt::format("{}:{}", host_name, port);
  }
  return target == name ? name : fmt::format("{} ({})", name, target);
}

std::string HostSettings::key() const {
  std::string text = fmt::format("{}@{}:{}", user, host_name, port);
  for (const std::string& jump : jumps) text += "," + jump;
  return text;
}

// The first value of a key counts, except where they add up.
struct Config::Asked {
  std::map<std::string, const Line*> first;
  std::vector<const Line*> identity_files, certificate_files;
  std::string host_name, user;

  const Line* find(const std::string& key) const {
    const auto found = first.find(key);
    return found == first.end() ? nullptr : found->second;
  }
  std::string value(const std::string& key) const {
    const Line* const line = find(key);
    return line == nullptr ? std::string() : line->arguments.front();
  }
  int number(const char* key, int least, int most, int otherwise) const;
  // The files of a key; `otherwise` where it is not there.
  std::vector<std::string> files(const char* key, const Tokens& tokens,
                                 std::vector<std::string> otherwise) const;

  // Parts of what a host's settings are.
  void set_way(HostSettings& settings, const Tokens& tokens) const;
  void set_identities(HostSettings& settings, const Tokens& tokens) const;
  void set_host_keys(HostSettings& settings, const Tokens& tokens) const;
  void set_algorithms(HostSettings& settings) const;
};

int Config::Asked::number(const char* key, int least, int most, int otherwise) const {
  const Line* const line = find(key);
  if (line == nullptr || lower(line->arguments[0]) == "none") return otherwise;
  const std::string& text = line->arguments[0];
  char* end = nullptr;
  const long value = strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > most) {
    throw Error(Exit::config,
                {.code = "ssh.config",
                 .what = fmt::format("{} '{}' is no number from {} to {}", key, text, least, most),
                 .place = line->place});
  }
  return static_cast<int>(value);
}

std::vector<std::string> Config::Asked::files(const char* key, const Tokens& tokens,
                                              std::vector<std::string> otherwise) const {
  const Line* const line = find(key);
  if (line == nullptr) return otherwise;
  std::vector<std::string> list;
  for (const std::string& one : line->arguments) {
    if (lower(one) != "none") list.push_back(tokens.path(one));
  }
  return list;
}

void Config::Asked::set_way(HostSettings& settings, const Tokens& tokens) const {
  settings.connect_timeout_s = number("connecttimeout", 0, 1 << 20, 0);
  const std::string family = lower(value("addressfamily"));
  settings.address_family = family == "inet" ? AF_INET : family == "inet6" ? AF_INET6 : AF_UNSPEC;
  settings.bind_address = value("bindaddress");
  if (const std::string jump = value("proxyjump"); lower(jump) != "none") {
    for (size_t at = 0; at < jump.size();) {
      const size_t end = std::min(jump.find(',', at), jump.size());
      if (end > at) settings.jumps.push_back(tokens.expand(jump.substr(at, end - at)));
      at = end + 1;
    }
  }
  const Line* const command = find("proxycommand");
  if (command != nullptr && lower(command->raw) != "none") settings.proxy_command = command->raw;
  settings.compression = yes(value("compression"));
}

void Config::Asked::set_identities(HostSettings& settings, const Tokens& tokens) const {
  std::vector<std::string>& files = settings.identity_files;
  settings.identities_given = !identity_files.empty();
  for (const Line* line : identity_files) {
    if (lower(line->arguments[0]) == "none") continue;
    const std::string file = tokens.path(line->arguments[0]);
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  }
  if (!settings.identities_given) {
    for (const char* name : {"id_ed25519", "id_ecdsa", "id_rsa", "id_dsa"}) {
      files.push_back(home_directory() + "/.ssh/" + name);
    }
  }
  for (const Line* line : certificate_files) {
    if (lower(line->arguments[0]) == "none") continue;
    settings.certificate_files.push_back(tokens.path(line->arguments[0]));
  }
  settings.identities_only = yes(value("identitiesonly"));
  std::string agent = value("identityagent");
  if (agent.starts_with('$') && !agent.starts_with("${")) {
    const char* named = getenv(agent.c_str() + 1);
    agent = named != nullptr ? named : "none";
  }
  if (agent.empty() || agent == "SSH_AUTH_SOCK") {
    const char* usual = getenv("SSH_AUTH_SOCK");
    settings.agent = usual != nullptr ? usual : "";
  } else if (lower(agent) != "none") {
    settings.agent = tokens.path(agent);
  }
}

void Config::Asked::set_host_keys(HostSettings& settings, const Tokens& tokens) const {
  settings.key_alias = tokens.alias;
  const std::string known = home_directory() + "/.ssh/known_hosts";
  settings.known_hosts = files("userknownhostsfile", tokens, {known, known + "2"});
  settings.global_known_hosts = files("globalknownhostsfile", tokens,
                                      {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"});
  const std::string policy = lower(value("stricthostkeychecking"));
  const bool accepts =
      policy == "accept-new" || policy == "no" || policy == "off" || policy == "false";
  settings.key_policy = accepts ? KeyPolicy::accept_new : KeyPolicy::strict;
  settings.hash_known_hosts = yes(value("hashknownhosts"));
}

void Config::Asked::set_algorithms(HostSettings& settings) const {
  settings.ciphers = value("ciphers");
  settings.macs = value("macs");
  settings.kex = value("kexalgorithms");
  settings.host_key_algorithms = value("hostkeyalgorithms");
  settings.pubkey_algorithms = value("pubkeyacceptedalgorithms");
  if (settings.pubkey_algorithms.empty()) {
    settings.pubkey_algorithms = value("pubkeyacceptedkeytypes");
  }
}

void Config::warn(const Line& line, const std::string& why) {
  if (!warned_.insert(line.key).second) return;
  warnings_.push_back({.code = "ssh.config",
                       .what = fmt::format("'{}' is not honoured: {}", line.key, why),
                       .place = line.place,
                       .help = "if it matters, use OpenSSH itself: --ssh_command ssh",
                       .severity = Diagnostic::Severity::warning});
}

bool Config::matches(const Block& block, const Host& host, const Asked& asked) {
  if (!block.match) return matches_patterns(block.arguments, host.name);
  const std::string host_name = asked.host_name.empty() ? host.name : asked.host_name;
  const std::string user = !host.user.empty()    ? host.user
                           : !asked.user.empty() ? asked.user
                                                 : local_user();
  for (size_t i = 0; i < block.arguments.size(); ++i) {
    std::string criterion = lower(block.arguments[i]);
    const bool negated = criterion.starts_with('!');
    if (negated) criterion.erase(0, 1);
    bool holds = false;
    if (criterion == "all") {
      holds = true;
    } else if (criterion == "final" || criterion == "canonical") {
      holds = criterion == "final";  // there is one pass only
    } else {
      if (i + 1 == block.arguments.size()) {
        throw Error(Exit::config, {.code = "ssh.config",
                                   .what = fmt::format("'Match {}' has no value", criterion),
                                   .place = block.place});
      }
      const std::string& argument = block.arguments[++i];
      if (criterion == "host") {
        holds = matches_patterns({argument}, host_name);
      } else if (criterion == "originalhost") {
        holds = matches_patterns({argument}, host.name);
      } else if (criterion == "user") {
        holds = matches_patterns({argument}, user);
      } else if (criterion == "localuser") {
        holds = matches_patterns({argument}, local_user());
      } else if (criterion == "exec") {
        const std::string command =
            Tokens{host_name, host.name, user, std::to_string(host.port > 0 ? host.port : 22), ""}
                .expand(argument);
        const auto [entry, fresh] = commands_.try_emplace(command, false);
        if (fresh) {
          entry->second = system(("( " + command + "\n) </dev/null >/dev/null 2>&1").c_str()) == 0;
        }
        holds = entry->second;
      } else {
        const Line line{"match " + criterion, {}, {}, block.place, -1};
        warn(line, "the block is left out");
        return false;
      }
    }
    if (holds == negated) return false;
  }
  return true;
}

bool Config::applies(int block, const Host& host, const Asked& asked, std::vector<int8_t>& known) {
  if (block < 0) return true;
  int8_t& answer = known[static_cast<size_t>(block)];
  if (answer < 0) {
    const Block& one = blocks_[static_cast<size_t>(block)];
    answer = applies(one.outer, host, asked, known) && matches(one, host, asked) ? 1 : 0;
  }
  return answer == 1;
}

void Config::take(const Line& line, Asked& asked) {
  if (line.key == "identityfile") {
    asked.identity_files.push_back(&line);
    return;
  }
  if (line.key == "certificatefile") {
    asked.certificate_files.push_back(&line);
    return;
  }
  // Whichever of the two comes first.
  if (line.key == "proxyjump" && asked.first.contains("proxycommand")) return;
  if (line.key == "proxycommand" && asked.first.contains("proxyjump")) return;
  asked.first.try_emplace(line.key, &line);
}

HostSettings Config::of(const Host& host) {
  Asked asked;
  std::vector<int8_t> known(blocks_.size(), -1);
  for (const Line& line : lines_) {
    if (!applies(line.block, host, asked, known)) continue;
    take(line, asked);
    if (line.key == "hostname" && asked.host_name.empty()) {
      asked.host_name = Tokens{host.name, host.name, "", "", ""}.expand(line.arguments[0]);
    }
    if (line.key == "user" && asked.user.empty()) asked.user = line.arguments[0];
  }
  for (const auto& [key, line] : asked.first) {
    const auto found = unsupported().find(key);
    if (found == unsupported().end()) continue;
    const std::string value = lower(line->arguments[0]);
    if (value != "no" && value != "none" && value != "false") warn(*line, found->second);
  }

  HostSettings settings;
  settings.name = host.name;
  settings.host_name = asked.host_name.empty() ? host.name : asked.host_name;
  settings.user = !host.user.empty() ? host.user : !asked.user.empty() ? asked.user : local_user();
  settings.port = host.port > 0 ? host.port : asked.number("port", 1, 65535, 22);
  const Tokens tokens{settings.host_name, host.name, settings.user, std::to_string(settings.port),
                      asked.value("hostkeyalias")};
  asked.set_way(settings, tokens);
  asked.set_identities(settings, tokens);
  asked.set_host_keys(settings, tokens);
  asked.set_algorithms(settings);
  return settings;
}

}  // namespace mtl::ssh
