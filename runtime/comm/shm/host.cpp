// Facts about this process and its host, from /proc.
#include "runtime/comm/shm/host.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace mtl::shm {

namespace {

std::string first_word(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word.empty() ? "unknown" : word;
}

std::string link_target(const char* path) {
  std::array<char, 256> target;
  const ssize_t length = ::readlink(path, target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : "unknown";
}

struct Stat {
  char state = '?';
  uint64_t start_time = 0;
};

// /proc/<pid>/stat as text: empty if there is no such process, nothing if we cannot tell (for
// example out of descriptors).
std::optional<std::string> stat_text(int32_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? std::optional<std::string>("") : std::nullopt;
  std::array<char, 1024> text;
  const ssize_t length = ::read(fd, text.data(), text.size());
  const bool gone = length < 0 && errno == ESRCH;
  ::close(fd);
  if (length < 0) return gone ? std::optional<std::string>("") : std::nullopt;
  return std::string(text.data(), static_cast<size_t>(length));
}

// The second field is the program's name and may hold anything, so that the fields are counted from
// its closing parenthesis.
std::optional<Stat> parse_stat(const std::string& text) {
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time;
  return fields ? std::optional(stat) : std::nullopt;
}

std::vector<uint64_t> words_of(const std::string& cpus) {
  std::vector<uint64_t> words;
  for (size_t first = 0; first + 16 <= cpus.size(); first += 16) {
    words.push_back(std::strtoull(cpus.substr(first, 16).c_str(), nullptr, 16));
  }
  return words;
}

std::string text_of(const std::vector<uint64_t>& words) {
  std::string text;
  for (const uint64_t word : words) text += fmt::format("{:016x}", word);
  return text;
}

std::string own_cpus() {
  // Machines with more than 1024 CPUs need a larger set than cpu_set_t.
  constexpr size_t kCpus = 8192;
  const size_t bytes = CPU_ALLOC_SIZE(kCpus);
  std::vector<cpu_set_t> storage(bytes / sizeof(cpu_set_t));
  cpu_set_t* set = storage.data();
  std::vector<uint64_t> words;
  if (::sched_getaffinity(0, bytes, set) == 0) {
    for (size_t cpu = 0; cpu < kCpus; ++cpu) {
      if (!CPU_ISSET_S(cpu, bytes, set)) continue;
      words.resize(std::max(words.size(), cpu / 64 + 1));
      words[cpu / 64] |= uint64_t{1} << (cpu % 64);
    }
  }
  return text_of(words);
}

}  // namespace

Identity Identity::own() {
  Identity identity;
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  identity.host = host[0] != '\0' ? host.data() : "unknown";
  identity.boot = first_word("/proc/sys/kernel/random/boot_id");
  identity.pid_namespace = link_target("/proc/self/ns/pid");
  identity.pid = ::getpid();
  identity.start_time =
      parse_stat(stat_text(identity.pid).value_or("")).value_or(Stat()).start_time;
  identity.cpus = own_cpus();
  return identity;
}

std::string Identity::encode() const {
  return fmt::format("{} {} {} {} {} {}", host, boot, pid_namespace, pid, start_time, cpus);
}

std::optional<Identity> Identity::decode(const std::string& text) {
  std::istringstream in(text);
  Identity identity;
  in >> identity.host >> identity.boot >> identity.pid_namespace >> identity.pid >>
      identity.start_time;
  if (!in) return std::nullopt;
  in >> identity.cpus;
  return identity;
}

bool is_running(int32_t pid, uint64_t start_time) {
  const auto text = stat_text(pid);
  if (!text) return true;
  const auto stat = parse_stat(*text);
  return stat && stat->start_time == start_time && stat->state != 'Z' && stat->state != 'X';
}

int count_cpus(const std::string& cpus) {
  int count = 0;
  for (const uint64_t word : words_of(cpus)) count += std::popcount(word);
  return count;
}

std::string unite_cpus(const std::string& a, const std::string& b) {
  std::vector<uint64_t> all = words_of(a);
  const std::vector<uint64_t> more = words_of(b);
  all.resize(std::max(all.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) all[i] |= more[i];
  return text_of(all);
}

}  // namespace mtl::shm
