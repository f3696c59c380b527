#include "launcher/hosts.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "common/files.h"
#include "rendezvous/network.h"
#include "rendezvous/node_list.h"

namespace mtl {

namespace {

constexpr int kMaxSlots = 1 << 16;
constexpr const char* kHostsHelp =
    "write hosts as a,b:4 or node[01-16]:8, with a user as user@a, an address as [fd00::1]:4";
constexpr const char* kHostfileHelp =
    "a line is a host with its ranks: 'm1 slots=4' or 'm1:4'; without them 'm1'";

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::optional<int> number(std::string_view text, int least, int most) {
  if (text.empty() || text.size() > 9) return std::nullopt;
  int value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  if (value < least || value > most) return std::nullopt;
  return value;
}

// The characters of host names, aliases and addresses. A name goes to ssh, so that it must not be
// taken for an option either.
bool is_name(std::string_view text) {
  if (text.empty() || text.front() == '-') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' || c == '%';
  });
}

bool is_address(std::string_view text) {  // IPv6, with a zone perhaps
  return std::count(text.begin(), text.end(), ':') >= 2 &&
         std::all_of(text.begin(),
                     text.begin() + static_cast<long>(std::min(text.find('%'), text.size())),
                     [](char c) {
                       return isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.';
                     });
}

class Reader {
 public:
  // `origin`: of a text that has no place.
  Reader(std::string_view text, Place place, const char* help, Diagnostics& diagnostics,
         std::string origin = {})
      : text_(text),
        place_(std::move(place)),
        origin_(std::move(origin)),
        help_(help),
        diagnostics_(diagnostics) {}

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void skip_spaces() {
    while (!at_end() && is_space(text_[at_])) ++at_;
  }
  // Up to one of `ends` (not within brackets) or the end.
  std::string_view word(std::string_view ends) {
    const size_t start = at_;
    int depth = 0;
    for (; !at_end(); ++at_) {
      const char c = text_[at_];
      if (c == '[') ++depth;
      if (c == ']') --depth;
      if (depth <= 0 && ends.find(c) != std::string_view::npos) break;
    }
    return text_.substr(start, at_ - start);
  }
  size_t position() const { return at_; }
  Place place(size_t at) const {
    Place place = place_;
    if (place.line > 0) place.column = static_cast<int>(at) + 1;
    return place;
  }
  void fail(size_t at, std::string what, std::string help = {}) {
    std::vector<std::string> notes;
    if (place_.file.empty())
      notes.push_back(fmt::format("in {}, at character {}", origin_, at + 1));
    std::optional<Place> where;
    if (!place_.file.empty()) where = place(at);
    diagnostics_.add({.code = "hosts.syntax",
                      .what = std::move(what),
                      .place = where,
                      .notes = std::move(notes),
                      .help = help.empty() ? help_ : std::move(help)});
  }

 private:
  std::string_view text_;
  Place place_;
  std::string origin_;
  const char* help_;
  Diagnostics& diagnostics_;
  size_t at_ = 0;
};

// "node[01-03,7]-ib[0-1]" -> every name; "[fd00::1]" -> "fd00::1".
bool expand_name(std::string_view text, std::vector<std::string>& names, std::string& problem) {
  if (text.starts_with('[') && text.ends_with(']') && text.find(':') != std::string_view::npos) {
    const std::string_view address = text.substr(1, text.size() - 2);
    if (!is_address(address)) {
      problem = fmt::format("'{}' is no IPv6 address", address);
      return false;
    }
    names = {std::string(address)};
    return true;
  }
  if (!expand_brackets(text, names, problem)) return false;
  for (const std::string& name : names) {
    if (is_name(name) || is_address(name)) continue;
    problem =
        name.empty() ? "a host without a name" : fmt::format("'{}' is no name of a host", name);
    return false;
  }
  return true;
}

// "user@node[1-4]:2" up to one of `ends`. Slots 0 where none are given.
bool read_host(Reader& reader, std::string_view ends, std::vector<Host>& hosts) {
  const size_t start = reader.position();
  const std::string_view word = reader.word(ends);
  std::string_view rest = word;
  Host host;
  host.place = reader.place(start);
  if (const size_t at = rest.find('@'); at != std::string_view::npos) {
    host.user = rest.substr(0, at);
    rest.remove_prefix(at + 1);
    if (!is_name(host.user)) {
      reader.fail(start, fmt::format("'{}' is no name of a user", host.user));
      return false;
    }
  }
  // The last colon outside of brackets gives slots, unless several make it a bare IPv6 address.
  const size_t bracket = rest.rfind(']');
  const size_t from = bracket == std::string_view::npos ? 0 : bracket;
  const size_t colon = rest.find(':', from);
  if (colon != std::string_view::npos && rest.find(':', colon + 1) != std::string_view::npos) {
    reader.fail(start, fmt::format("'{}' has several colons", rest),
                is_address(rest) ? fmt::format("write an IPv6 address in brackets: [{}]", rest)
                                 : std::string());
    return false;
  }
  if (colon != std::string_view::npos) {
    const auto slots = number(rest.substr(colon + 1), 1, kMaxSlots);
    if (!slots) {
      reader.fail(start + static_cast<size_t>(rest.data() - word.data()) + colon + 1,
                  fmt::format("'{}' is no number of ranks", rest.substr(colon + 1)));
      return false;
    }
    host.slots = *slots;
    rest = rest.substr(0, colon);
  }
  std::vector<std::string> names;
  std::string problem;
  if (!expand_name(rest, names, problem)) {
    reader.fail(start, std::move(problem));
    return false;
  }
  for (std::string& name : names) {
    host.name = std::move(name);
    hosts.push_back(host);
  }
  return true;
}

// "slots=4 max_slots=8" behind a host.
bool read_settings(Reader& reader, Host& host) {
  for (reader.skip_spaces(); !reader.at_end(); reader.skip_spaces()) {
    const size_t start = reader.position();
    const std::string_view word = reader.word(" \t\r");
    const size_t equals = word.find('=');
    const std::string key(word.substr(0, equals));
    static const std::vector<std::string> kKeys{"slots", "max_slots", "max-slots"};
    if (equals == std::string_view::npos ||
        std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      const auto meant = did_you_mean(key, kKeys);
      reader.fail(start, fmt::format("'{}' is not known in a hostfile", word),
                  meant ? fmt::format("did you mean {}=?", *meant) : std::string());
      return false;
    }
    const auto value = number(word.substr(equals + 1), 1, kMaxSlots);
    if (!value) {
      reader.fail(start + equals + 1,
                  fmt::format("'{}' is no number of ranks", word.substr(equals + 1)));
      return false;
    }
    // max_slots limits oversubscription, which does not happen here.
    if (key != "slots") continue;
    if (host.slots > 0 && host.slots != *value) {
      reader.fail(start, fmt::format("the host has {} ranks already", host.slots));
      return false;
    }
    host.slots = *value;
  }
  return true;
}

}  // namespace

std::vector<Host> parse_hosts(std::string_view text, Diagnostics& diagnostics,
                              const std::string& origin) {
  std::vector<Host> hosts;
  Reader reader(text, Place{}, kHostsHelp, diagnostics, origin);
  std::map<std::string, bool> seen;  // told once
  do {
    reader.skip_spaces();
    const size_t start = reader.position();
    if (reader.at_end() || reader.peek() == ',') {
      reader.fail(start, "a host without a name");
      continue;
    }
    const size_t before = hosts.size();
    read_host(reader, ", \t\r", hosts);
    reader.skip_spaces();
    if (!reader.at_end() && reader.peek() != ',') {
      reader.fail(reader.position(), "hosts are separated by commas");
      reader.word(",");
    }
    for (size_t i = before; i < hosts.size(); ++i) {
      const auto [entry, fresh] = seen.try_emplace(hosts[i].name, false);
      if (fresh || entry->second) continue;
      entry->second = true;
      diagnostics.add({.code = "hosts.duplicate",
                       .what = fmt::format("host '{}' is given twice", hosts[i].name),
                       .help = fmt::format("give it once, with all its ranks: {}:{}", hosts[i].name,
                                           std::max(2, 2 * hosts[i].slots))});
    }
  } while (reader.take(','));
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& path, Diagnostics& diagnostics,
                                const std::string& origin, const std::optional<Place>& named) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    diagnostics.add({.code = "hosts.file",
                     .what = fmt::format("the hostfile {} cannot be read", path),
                     .place = named.value_or(Place{path}),
                     .notes = {error.diagnostics().front().what},
                     .help = fmt::format("correct the path that {} gives", origin)});
    return {};
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // of some editors
  std::vector<Host> hosts;
  std::map<std::string, size_t> index;
  bool wrong = false;
  int number_of_line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number_of_line;
    line = line.substr(0, line.find('#'));
    Reader reader(line, {path, number_of_line}, kHostfileHelp, diagnostics);
    reader.skip_spaces();
    if (reader.at_end()) continue;
    std::vector<Host> some;
    Host settings;
    if (!read_host(reader, " \t\r", some)) {
      wrong = true;
      continue;
    }
    settings.slots = some.front().slots;
    if (!read_settings(reader, settings)) {
      wrong = true;
      continue;
    }
    for (Host& host : some) {
      host.slots = settings.slots;
      const auto [entry, fresh] = index.try_emplace(host.name, hosts.size());
      if (fresh) {
        hosts.push_back(std::move(host));
      } else {
        // A line without a number stands for one rank, as in mpirun.
        Host& known = hosts[entry->second];
        known.slots = std::max(1, known.slots) + std::max(1, host.slots);
      }
    }
  }
  if (hosts.empty() && !wrong) {
    diagnostics.add({.code = "hosts.empty",
                     .what = "the hostfile names no host",
                     .place = Place{path},
                     .help = kHostfileHelp});
  }
  return hosts;
}

bool is_this_host(const Host& host) {
  if (!host.user.empty() || host.port != 0) return false;
  return host.name == "localhost" || host.name == "127.0.0.1" || host.name == "::1" ||
         host.name == host_name();
}

}  // namespace mtl
