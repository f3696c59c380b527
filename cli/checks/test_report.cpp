#include "cli/checks/test_report.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "common/terminal.h"

namespace mtl {

namespace {

std::string counted(size_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string time_words(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

std::string rate_words(double bytes_per_s) {
  return bytes_per_s < 1e9 ? fmt::format("{:.3g} MB/s", bytes_per_s / 1e6)
                           : fmt::format("{:.3g} GB/s", bytes_per_s / 1e9);
}

const std::string& host_of(const std::vector<TestHost>& hosts, size_t rank) {
  for (size_t i = hosts.size(); i-- > 1;) {
    if (static_cast<int>(rank) >= hosts[i].first_rank) return hosts[i].name;
  }
  return hosts.front().name;
}

// "1 thread", or "1-4 threads" where ranks differ.
std::string range_words(const TestRecord& ranks, const char* key, const char* what) {
  int least = ranks.front()[key], most = least;
  for (const TestRecord& rank : ranks) {
    least = std::min(least, rank[key].get<int>());
    most = std::max(most, rank[key].get<int>());
  }
  if (least == most) return counted(static_cast<size_t>(most), what);
  return fmt::format("{}-{} {}s", least, most, what);
}

std::string spawn_words(const TestRecord& ranks, const std::vector<TestHost>& hosts) {
  return fmt::format("{}\neach on the CPU, {} of {}; mtl {}", ranks_words(hosts),
                     range_words(ranks, "omp_threads", "thread"),
                     range_words(ranks, "cores", "core"),
                     ranks.front()["version"].get<std::string>());
}

std::string rendezvous_words(const TestRecord& ranks, const std::vector<TestHost>& hosts) {
  if (ranks.size() == 1) return "one rank: nobody to meet";
  size_t slowest = 0;
  double barrier = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r]["join_s"] > ranks[slowest]["join_s"]) slowest = r;
    barrier = std::max(barrier, ranks[r]["barrier_s"].get<double>());
  }
  return fmt::format("slowest rank {} on {}: {}; barrier {}", slowest, host_of(hosts, slowest),
                     time_words(ranks[slowest]["join_s"]), time_words(barrier));
}

std::string speed_words(const TestRecord& speed) {
  return fmt::format("4 B {}, 8 MiB {}", time_words(speed["latency_s"]),
                     rate_words(speed["bytes_per_s"]));
}

void warn_slow(const char* what, const std::vector<size_t>& ranks, const std::vector<double>& times,
               const std::vector<TestHost>& hosts, std::vector<Diagnostic>& warnings) {
  if (times.empty()) return;
  std::vector<double> sorted = times;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(sorted.size() / 2),
                   sorted.end());
  const double median = sorted[sorted.size() / 2];
  for (const size_t i : slow_ones(times)) {
    warnings.push_back(
        {.code = "selftest.slow_host",
         .what = fmt::format("{} of {} is {:.2g} times slower than the median of the hosts", what,
                             host_of(hosts, ranks[i]), times[i] / median),
         .help = "every step waits for the slowest host: look at its link (ethtool), its load and "
                 "its cores, or leave it out",
         .severity = Diagnostic::Severity::warning});
  }
}

std::string network_words(const TestRecord& ranks, const std::vector<TestHost>& hosts,
                          std::vector<Diagnostic>& warnings) {
  if (ranks.size() == 1) return "one rank: nothing to send";
  // By the first rank of each host.
  std::vector<size_t> inside, leaders;
  std::vector<double> inside_s, link_s;
  const TestRecord *slowest = nullptr, *across = nullptr;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const TestRecord& found = ranks[r];
    if (found["place"] == r && found.contains("within")) {
      inside.push_back(r);
      inside_s.push_back(1 / found["within"]["bytes_per_s"].get<double>());
      if (slowest == nullptr || (*slowest)["bytes_per_s"] > found["within"]["bytes_per_s"]) {
        slowest = &found["within"];
      }
    }
    if (!found.contains("across")) continue;
    leaders.push_back(r);
    link_s.push_back(found["across"]["link_s"]);
    if (across == nullptr || (*across)["latency_s"] < found["across"]["latency_s"]) {
      across = &found["across"];
    }
  }
  // A slow host is slow on the way in and on the way out, its neighbours only on one of them.
  std::vector<double> host_s = link_s;
  for (size_t i = 0; i < link_s.size(); ++i) {
    host_s[i] = std::min(link_s[i], link_s[(i + 1) % link_s.size()]);
  }
  warn_slow("memory between the ranks", inside, inside_s, hosts, warnings);
  warn_slow("the network link", leaders, host_s, hosts, warnings);
  std::string text = "every operation gives the right elements in every type";
  if (slowest != nullptr) {
    text += fmt::format("\nwithin a host: all_reduce {}{}", speed_words(*slowest),
                        inside.size() > 1 ? " (the slowest)" : "");
  }
  if (across != nullptr) text += "\nbetween hosts: all_reduce " + speed_words(*across);
  return text;
}

std::string train_words(const TestRecord& ranks) {
  const TestRecord& first = ranks.front();
  double difference = 0;
  for (const TestRecord& rank : ranks) {
    difference = std::max(difference, rank["difference"].get<double>());
  }
  const size_t world = ranks.size();
  std::string text =
      fmt::format("{} steps, loss {:.3f} to {:.3f}{}", first["steps"].get<int>(),
                  first["first_loss"].get<double>(), first["last_loss"].get<double>(),
                  world > 1 ? " on each rank alone" : "");
  if (world == 1) return text;
  text += fmt::format("\nthe same with dp={}", world);
  if (world % 2 == 0) {
    text += fmt::format(" and with tp=2{}", world > 2 ? fmt::format(" dp={}", world / 2) : "");
  }
  return text +
         (difference == 0 ? ", to the last bit" : fmt::format(", within {:.0e}", difference));
}

std::string clocks_words(const TestRecord& ranks, const std::vector<TestHost>& hosts,
                         std::vector<Diagnostic>& warnings) {
  if (!ranks.front().contains("of_rank")) return "one host: one clock";
  double least = 0, most = 0;
  for (const auto& [rank, ahead] : ranks.front()["of_rank"].items()) {
    const double seconds = ahead;
    least = std::min(least, seconds);
    most = std::max(most, seconds);
    if (std::abs(seconds) <= 1) continue;
    warnings.push_back(
        {.code = "selftest.clock",
         .what = fmt::format("the clock of {} is {:.3g} s {} that of {}",
                             host_of(hosts, std::stoul(rank)), std::abs(seconds),
                             seconds > 0 ? "ahead of" : "behind", hosts.front().name),
         .help = "set it by NTP (timedatectl set-ntp true): logs, and what a shared "
                 "file system says, are in another order otherwise",
         .severity = Diagnostic::Severity::warning});
  }
  return fmt::format("at most {} apart", time_words(most - least));
}

}  // namespace

std::vector<TestHost> hosts_of(const TestRecord& spawn) {
  std::vector<TestHost> hosts;
  int rank = 0;
  for (const TestRecord& found : spawn["ranks"]) {
    const std::string name = found["host"];
    if (hosts.empty() || hosts.back().name != name) {
      hosts.push_back({.name = name, .first_rank = rank, .ranks = 0});
    }
    ++hosts.back().ranks;
    ++rank;
  }
  return hosts;
}

std::string ranks_words(const std::vector<TestHost>& hosts) {
  size_t ranks = 0;
  std::string list;
  for (const TestHost& host : hosts) {
    ranks += static_cast<size_t>(host.ranks);
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", host.name, host.ranks);
  }
  if (hosts.size() > 8) {
    list = fmt::format("{} {} to {} {}", hosts.front().name, hosts.front().ranks, hosts.back().name,
                       hosts.back().ranks);
  }
  return fmt::format("{} on {} ({})", counted(ranks, "rank"), counted(hosts.size(), "host"), list);
}

std::string stage_words(const TestRecord& record, const std::vector<TestHost>& hosts,
                        std::vector<Diagnostic>& warnings) {
  const std::string stage = record["stage"];
  const TestRecord& ranks = record["ranks"];
  if (stage == "spawn") return spawn_words(ranks, hosts);
  if (stage == "rendezvous") return rendezvous_words(ranks, hosts);
  if (stage == "network") return network_words(ranks, hosts, warnings);
  if (stage == "train") return train_words(ranks);
  return clocks_words(ranks, hosts, warnings);
}

std::vector<size_t> slow_ones(std::span<const double> times) {
  std::vector<size_t> slow;
  if (times.size() < 3) return slow;
  std::vector<double> sorted(times.begin(), times.end());
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i] > 2 * median) slow.push_back(i);
  }
  return slow;
}

std::string stage_row(const std::string& mark, const std::string& name, const std::string& text,
                      double seconds, int columns) {
  constexpr int kText = 17;
  const int width = std::clamp(columns, 60, 100);
  std::string row = fmt::format("{}{:<13}", mark, name);
  bool first = true;
  std::istringstream paragraphs(text);
  for (std::string paragraph; std::getline(paragraphs, paragraph);) {
    // The time stands behind the very first line.
    std::istringstream lines(wrap_text(paragraph, first ? width - 9 : width, kText, kText));
    for (std::string line; std::getline(lines, line);) {
      const int used = display_width(line) + (line.starts_with(' ') ? 0 : kText);
      if (first) {
        row += line + std::string(static_cast<size_t>(std::max(0, width - 9 - used)), ' ') +
               fmt::format("{:>7.2f} s\n", seconds);
      } else {
        row += (line.starts_with(' ') ? "" : std::string(kText, ' ')) + line + '\n';
      }
      first = false;
    }
  }
  return row;
}

}  // namespace mtl
