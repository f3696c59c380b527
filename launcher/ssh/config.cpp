#include "launcher/ssh/config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fnmatch.h>
#include <glob.h>
#include <pwd.h>
#include <unistd.h>

#include <sys/socket.h>

#include <fmt/format.h>

#include "common/files.h"

namespace mtl::ssh {

namespace {

constexpr int kIncludeDepth = 16;  // as OpenSSH

// What libssh and this fleet do not do, and what a person would miss. What only serves terminals,
// other channels or passwords is not here: it has no effect on a command started by a launcher.
const std::map<std::string, const char*>& unsupported() {
  static const std::map<std::string, const char*> list{
      {"certificatefile", "certificates are not offered to the server"},
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

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(tolower(static_cast<unsigned char>(c)));
  return result;
}

// keyword and arguments, with "quotes", `=` after the keyword, and # comments at a word's start.
struct Words {
  std::string key, raw;
  std::vector<std::string> arguments;
  bool open_quote = false;
};

Words split(std::string_view line) {
  Words words;
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f'; };
  size_t at = 0;
  const auto skip = [&] {
    while (at < line.size() && space(line[at])) ++at;
  };
  skip();
  if (at == line.size() || line[at] == '#') return words;
  const size_t start = at;
  while (at < line.size() && !space(line[at]) && line[at] != '=') ++at;
  words.key = lower(line.substr(start, at - start));
  skip();
  if (at < line.size() && line[at] == '=') ++at;
  skip();
  words.raw = line.substr(at);
  while (!words.raw.empty() && space(words.raw.back())) words.raw.pop_back();
  while (at < line.size() && line[at] != '#') {
    std::string word;
    char quote = 0;
    for (; at < line.size() && (quote != 0 || !space(line[at])); ++at) {
      const char c = line[at];
      if (quote == 0 && (c == '"' || c == '\'')) {
        quote = c;
      } else if (quote != 0 && c == quote) {
        quote = 0;
      } else if (c == '\\' && at + 1 < line.size() &&
                 (line[at + 1] == '"' || line[at + 1] == '\'' || line[at + 1] == '\\')) {
        word += line[++at];
      } else {
        word += c;
      }
    }
    words.open_quote = words.open_quote || quote != 0;
    words.arguments.push_back(std::move(word));
    skip();
  }
  return words;
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

Config::Config(const std::string& file) {
  if (file == "none") return;
  user_config_ = true;
  if (!file.empty()) {
    read(file, true, -1, 0);
    return;
  }
  read(home_directory() + "/.ssh/config", false, -1, 0);
  user_config_ = false;
  read("/etc/ssh/ssh_config", false, -1, 0);
}

void Config::read(const std::string& path, bool required, int block, int depth) {
  std::error_code ignored;
  if (!required && !std::filesystem::exists(path, ignored)) return;
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw Error(Exit::environment, {.code = "ssh.config",
                                    .what = "the ssh configuration cannot be read",
                                    .place = Place{path},
                                    .notes = {error.diagnostics().front().what}});
  }
  const int outer = block;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    Words words = split(std::string_view(text).substr(at, end - at));
    at = end + 1;
    ++number;
    if (words.key.empty()) continue;
    const Place place{path, number};
    if (words.open_quote || words.arguments.empty()) {
      throw Error(Exit::config,
                  {.code = "ssh.config",
                   .what = words.open_quote ? "a quote is not closed"
                                            : fmt::format("'{}' has no value", words.key),
                   .place = place});
    }
    if (words.key == "host" || words.key == "match") {
      blocks_.push_back({words.key == "match", std::move(words.arguments), place, outer});
      block = static_cast<int>(blocks_.size()) - 1;
    } else if (words.key == "include") {
      if (depth == kIncludeDepth) {
        throw Error(Exit::config, {.code = "ssh.config",
                                   .what = "files include each other without end",
                                   .place = place});
      }
      for (std::string name : words.arguments) {
        if (name.starts_with("~/")) name = home_directory() + name.substr(1);
        if (!name.starts_with('/')) {
          name = (user_config_ ? home_directory() + "/.ssh/" : "/etc/ssh/") + name;
        }
        glob_t found{};
        if (glob(name.c_str(), 0, nullptr, &found) == 0) {
          for (size_t i = 0; i < found.gl_pathc; ++i) {
            read(found.gl_pathv[i], false, block, depth + 1);
          }
        }
        globfree(&found);
      }
    } else {
      lines_.push_back({std::move(words.key), std::move(words.arguments), std::move(words.raw),
                        place, block});
    }
  }
}

// The first value of a key counts, except where they add up.
struct Config::Asked {
  std::map<std::string, const Line*> first;
  std::vector<const Line*> identity_files;
  std::string host_name, user;
  std::string value(const std::string& key) const {
    const auto found = first.find(key);
    return found == first.end() ? std::string() : found->second->arguments.front();
  }
};

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
        throw Error(Exit::config,
                    {.code = "ssh.config",
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
        std::string command;
        for (size_t c = 0; c < argument.size(); ++c) {
          if (argument[c] != '%' || c + 1 == argument.size()) {
            command += argument[c];
            continue;
          }
          switch (argument[++c]) {
            case 'h': command += host_name; break;
            case 'n': command += host.name; break;
            case 'r': command += user; break;
            case 'u': command += local_user(); break;
            case 'p': command += std::to_string(host.port > 0 ? host.port : 22); break;
            case 'd': command += home_directory(); break;
            case 'l': command += hostname_of_machine(); break;
            case 'L': command += hostname_of_machine().substr(0, hostname_of_machine().find('.')); break;
            default: command += argument[c];
          }
        }
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
      for (size_t i = 0; i < line.arguments[0].size(); ++i) {
        const char c = line.arguments[0][i];
        if (c != '%') {
          asked.host_name += c;
        } else if (++i < line.arguments[0].size()) {
          asked.host_name += line.arguments[0][i] == 'h' ? host.name : "%";
        }
      }
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
  const auto number = [&](const char* key, int least, int most, int otherwise) {
    const auto found = asked.first.find(key);
    if (found == asked.first.end() || lower(found->second->arguments[0]) == "none") return otherwise;
    const std::string& text = found->second->arguments[0];
    char* end = nullptr;
    const long value = strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < least || value > most) {
      throw Error(Exit::config, {.code = "ssh.config",
                                 .what = fmt::format("{} '{}' is no number from {} to {}", key,
                                                     text, least, most),
                                 .place = found->second->place});
    }
    return static_cast<int>(value);
  };
  settings.port = host.port > 0 ? host.port : number("port", 1, 65535, 22);
  settings.connect_timeout_s = number("connecttimeout", 0, 1 << 20, 0);
  const std::string family = lower(asked.value("addressfamily"));
  settings.address_family = family == "inet" ? AF_INET : family == "inet6" ? AF_INET6 : AF_UNSPEC;
  settings.bind_address = asked.value("bindaddress");

  const auto path = [&](const std::string& text) {
    std::string result = text;
    if (result == "~" || result.starts_with("~/")) result = home_directory() + result.substr(1);
    std::string expanded;
    for (size_t i = 0; i < result.size(); ++i) {
      if (result[i] == '$' && i + 1 < result.size() && result[i + 1] == '{') {
        const size_t end = std::min(result.find('}', i), result.size());
        const char* value = getenv(result.substr(i + 2, end - i - 2).c_str());
        expanded += value != nullptr ? value : "";
        i = end;
        continue;
      }
      if (result[i] != '%' || i + 1 == result.size()) {
        expanded += result[i];
        continue;
      }
      switch (result[++i]) {
        case 'd': expanded += home_directory(); break;
        case 'h': expanded += settings.host_name; break;
        case 'n': expanded += host.name; break;
        case 'p': expanded += std::to_string(settings.port); break;
        case 'r': expanded += settings.user; break;
        case 'u': expanded += local_user(); break;
        case 'i': expanded += std::to_string(getuid()); break;
        case 'k': expanded += asked.first.contains("hostkeyalias") ? asked.value("hostkeyalias")
                                                                   : host.name; break;
        case 'l': expanded += hostname_of_machine(); break;
        case 'L': expanded += hostname_of_machine().substr(0, hostname_of_machine().find('.')); break;
        default: expanded += result[i];
      }
    }
    return expanded;
  };

  if (const std::string jump = asked.value("proxyjump"); lower(jump) != "none") {
    for (size_t at = 0; at < jump.size();) {
      const size_t end = std::min(jump.find(',', at), jump.size());
      if (end > at) settings.jumps.push_back(jump.substr(at, end - at));
      at = end + 1;
    }
  }
  if (const auto found = asked.first.find("proxycommand");
      found != asked.first.end() && lower(found->second->raw) != "none") {
    settings.proxy_command = found->second->raw;
  }

  for (const Line* line : asked.identity_files) {
    settings.identities_given = true;
    if (lower(line->arguments[0]) == "none") continue;
    const std::string file = path(line->arguments[0]);
    if (std::find(settings.identity_files.begin(), settings.identity_files.end(), file) ==
        settings.identity_files.end()) {
      settings.identity_files.push_back(file);
    }
  }
  if (!settings.identities_given) {
    for (const char* name : {"id_ed25519", "id_ecdsa", "id_rsa", "id_dsa"}) {
      settings.identity_files.push_back(home_directory() + "/.ssh/" + name);
    }
  }
  settings.identities_only = yes(asked.value("identitiesonly"));
  std::string agent = asked.value("identityagent");
  if (agent.starts_with('$') && !agent.starts_with("${")) {
    const char* value = getenv(agent.c_str() + 1);
    agent = value != nullptr ? value : "none";
  }
  if (agent.empty() || agent == "SSH_AUTH_SOCK") {
    const char* value = getenv("SSH_AUTH_SOCK");
    settings.agent = value != nullptr ? value : "";
  } else if (lower(agent) != "none") {
    settings.agent = path(agent);
  }

  settings.key_alias = asked.value("hostkeyalias");
  const auto files = [&](const char* key, std::vector<std::string> otherwise) {
    const auto found = asked.first.find(key);
    if (found == asked.first.end()) return otherwise;
    std::vector<std::string> list;
    for (const std::string& one : found->second->arguments) {
      if (lower(one) != "none") list.push_back(path(one));
    }
    return list;
  };
  settings.known_hosts = files("userknownhostsfile", {home_directory() + "/.ssh/known_hosts",
                                                      home_directory() + "/.ssh/known_hosts2"});
  settings.global_known_hosts = files("globalknownhostsfile", {"/etc/ssh/ssh_known_hosts",
                                                               "/etc/ssh/ssh_known_hosts2"});
  const std::string policy = lower(asked.value("stricthostkeychecking"));
  settings.key_policy = policy == "accept-new" || policy == "no" || policy == "off" ||
                                policy == "false"
                            ? KeyPolicy::accept_new
                            : KeyPolicy::strict;
  settings.hash_known_hosts = yes(asked.value("hashknownhosts"));

  settings.ciphers = asked.value("ciphers");
  settings.macs = asked.value("macs");
  settings.kex = asked.value("kexalgorithms");
  settings.host_key_algorithms = asked.value("hostkeyalgorithms");
  settings.pubkey_algorithms = asked.value("pubkeyacceptedalgorithms");
  if (settings.pubkey_algorithms.empty()) {
    settings.pubkey_algorithms = asked.value("pubkeyacceptedkeytypes");
  }
  settings.compression = yes(asked.value("compression"));
  return settings;
}

}  // namespace mtl::ssh
