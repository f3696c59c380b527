#include "launcher/ssh/known_hosts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <unordered_map>

#include <sys/stat.h>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "common/files.h"
#include "common/text.h"

namespace mtl::ssh {

namespace {

constexpr size_t kSha1 = 20;
using Digest = std::array<unsigned char, kSha1>;

std::string_view word(std::string_view& line) {
  const size_t start = std::min(line.find_first_not_of(" \t\r"), line.size());
  line.remove_prefix(start);
  const size_t end = std::min(line.find_first_of(" \t\r"), line.size());
  const std::string_view result = line.substr(0, end);
  line.remove_prefix(end);
  return result;
}

bool decode(std::string_view base64, Digest& digest) {
  unsigned char bytes[32];
  if (base64.size() != 28) return false;
  if (EVP_DecodeBlock(bytes, reinterpret_cast<const unsigned char*>(base64.data()), 28) != 21) {
    return false;
  }
  std::copy_n(bytes, kSha1, digest.begin());
  return true;
}

std::string encode(const Digest& digest) {
  unsigned char text[32];
  EVP_EncodeBlock(text, digest.data(), kSha1);
  return reinterpret_cast<const char*>(text);
}

Digest hmac(const Digest& salt, std::string_view name) {
  Digest digest{};
  unsigned int size = kSha1;
  HMAC(EVP_sha1(), salt.data(), kSha1, reinterpret_cast<const unsigned char*>(name.data()),
       name.size(), digest.data(), &size);
  return digest;
}

std::string plain_name(const HostSettings& host) {
  return lower(host.key_alias.empty() ? host.host_name : host.key_alias);
}

}  // namespace

struct KnownHosts::Entry {
  enum Marker { none, revoked, authority };
  Marker marker = none;
  std::string type, base64;
  int line = 0;
  std::vector<std::string> patterns;  // of names with wildcards or negations
  Digest salt{}, hash{};              // of hashed names
};

struct KnownHosts::File {
  std::string path;
  std::vector<Entry> entries;
  std::unordered_map<std::string, std::vector<size_t>> named;
  std::vector<size_t> patterned, hashed;

  void add(std::string_view line, int number) {
    Entry entry;
    entry.line = number;
    std::string_view names = word(line);
    if (names.empty() || names.starts_with('#')) return;
    if (names.starts_with('@')) {
      if (names == "@revoked") {
        entry.marker = Entry::revoked;
      } else if (names == "@cert-authority") {
        entry.marker = Entry::authority;
      } else {
        return;
      }
      names = word(line);
    }
    entry.type = word(line);
    entry.base64 = word(line);
    if (entry.base64.empty()) return;
    const size_t index = entries.size();
    if (names.starts_with("|1|")) {
      const size_t middle = names.find('|', 3);
      if (middle == std::string_view::npos || !decode(names.substr(3, middle - 3), entry.salt) ||
          !decode(names.substr(middle + 1), entry.hash)) {
        return;
      }
      hashed.push_back(index);
    } else if (names.find_first_of("*?!") != std::string_view::npos) {
      entry.patterns = {lower(names)};
      patterned.push_back(index);
    } else {
      for (size_t at = 0; at <= names.size();) {
        const size_t end = std::min(names.find(',', at), names.size());
        if (end > at) named[lower(names.substr(at, end - at))].push_back(index);
        at = end + 1;
      }
    }
    entries.push_back(std::move(entry));
  }
};

KnownHosts::KnownHosts() = default;
KnownHosts::~KnownHosts() = default;

std::string known_name(const HostSettings& host) {
  // An alias stands alone: it is made so that ports and addresses do not matter.
  if (!host.key_alias.empty() || host.port == 22) return plain_name(host);
  return fmt::format("[{}]:{}", plain_name(host), host.port);
}

KnownHosts::File& KnownHosts::file(const std::string& path) {
  std::unique_ptr<File>& entry = files_[path];
  if (entry) return *entry;
  entry = std::make_unique<File>();
  entry->path = path;
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error&) {
    return *entry;  // as OpenSSH: a file that is not there knows nobody
  }
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    entry->add(std::string_view(text).substr(at, end - at), ++number);
    at = end + 1;
  }
  return *entry;
}

std::vector<KnownHosts::Found> KnownHosts::entries(const HostSettings& host,
                                                   const std::string& name) {
  std::vector<Found> found;
  for (const std::vector<std::string>* list : {&host.known_hosts, &host.global_known_hosts}) {
    for (const std::string& path : *list) {
      const File& one = file(path);
      if (const auto named = one.named.find(name); named != one.named.end()) {
        for (size_t index : named->second) found.push_back({&one, &one.entries[index]});
      }
      for (size_t index : one.patterned) {
        const Entry& entry = one.entries[index];
        if (matches_patterns(entry.patterns, name)) found.push_back({&one, &entry});
      }
      for (size_t index : one.hashed) {
        const Entry& entry = one.entries[index];
        if (hmac(entry.salt, name) == entry.hash) found.push_back({&one, &entry});
      }
    }
  }
  return found;
}

KeyCheck KnownHosts::check(const HostSettings& host, const HostKey& key) {
  KeyCheck check;
  const std::string name = known_name(host);
  const std::string plain = plain_name(host);
  std::vector<Found> all = entries(host, name);
  const size_t exact = all.size();
  // A key known for the machine is good on its other ports too, but does not speak against them.
  if (plain != name) {
    for (const Found& found : entries(host, plain)) all.push_back(found);
  }
  bool good = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [file, entry] = all[i];
    const bool same = entry->base64 == key.base64;
    if (entry->marker == Entry::revoked) {
      if (same) return {KeyCheck::revoked, {file->path, entry->line}, entry->type, false};
    } else if (entry->marker == Entry::authority) {
      check.authority = true;
    } else if (same) {
      good = true;
    } else if (i < exact && (check.result == KeyCheck::unknown ||
                             (check.known_type != key.type && entry->type == key.type))) {
      check.result = KeyCheck::changed;
      check.place = {file->path, entry->line};
      check.known_type = entry->type;
    }
  }
  if (good) check.result = KeyCheck::ok;
  return check;
}

std::vector<std::string> KnownHosts::types(const HostSettings& host) {
  std::vector<std::string> types;
  std::vector<Found> all = entries(host, known_name(host));
  if (all.empty() && plain_name(host) != known_name(host)) all = entries(host, plain_name(host));
  for (const auto& [file, entry] : all) {
    if (entry->marker != Entry::none) continue;
    if (std::find(types.begin(), types.end(), entry->type) == types.end()) {
      types.push_back(entry->type);
    }
  }
  return types;
}

std::string KnownHosts::add(const HostSettings& host, const HostKey& key) {
  if (host.known_hosts.empty()) return "the configuration names no file";
  const std::string& path = host.known_hosts.front();
  std::string name = known_name(host);
  if (host.hash_known_hosts) {
    Digest salt{};
    if (RAND_bytes(salt.data(), kSha1) != 1) return "no random numbers";
    name = fmt::format("|1|{}|{}", encode(salt), encode(hmac(salt, name)));
  }
  std::string line = fmt::format("{} {} {}", name, key.type, key.base64);
  try {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::exists(folder, ignored)) {
      make_directories(folder);
      chmod(folder.c_str(), 0700);
    }
    // A file that somebody edited may lack its last newline.
    const std::string old = std::filesystem::exists(path, ignored) ? read_file(path) : "";
    append_line(path, old.empty() || old.ends_with('\n') ? line : "\n" + line);
  } catch (const Error& error) {
    return error.diagnostics().front().what;
  }
  file(path).add(line, 0);
  return {};
}

}  // namespace mtl::ssh
