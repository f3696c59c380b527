// Several hosts (doctor.h): `mtl doctor --agent` on each over ssh. Questions and answers are JSON
// objects, one a line:
//   {"do": "examine", "run_dir", "port"}   -> {"facts": [[name, value]], "findings": [...]}
//   {"do": "time"}                         -> {"now": seconds}
//   {"do": "listen", "port"}               -> {"port", "addresses"} or {"error"}
//   {"do": "connect", "addresses", "port"} -> {"reached": address} or {"error"}
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/shell_word.h"
#include "launcher/doctor/doctor.h"
#include "launcher/ssh/child.h"
#include "launcher/ssh/fleet.h"
#include "launcher/system/reserved_port.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Level = Finding::Level;

constexpr std::chrono::seconds kAnswer{30};  // the disk's probe takes seconds
constexpr std::chrono::milliseconds kConnect{5'000};
constexpr int kClockRounds = 3;

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Lines of a descriptor that may block or not.
class LineStream {
 public:
  LineStream(int in, int out) : in_(in), out_(out) {}

  void say(const Json& message) {
    const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    for (size_t sent = 0; sent < line.size();) {
      // Where it is a socket whose other end has died, that is to be an error, not a signal.
      ssize_t written = send(out_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (written < 0 && errno == ENOTSOCK) {
        written = write(out_, line.data() + sent, line.size() - sent);
      }
      if (written > 0) {
        sent += static_cast<size_t>(written);
      } else if (errno == EAGAIN) {
        pollfd waiting{out_, POLLOUT, 0};
        if (poll(&waiting, 1, 10'000) <= 0) return;
      } else if (errno != EINTR) {
        return;  // the end shows when an answer is waited for
      }
    }
  }

  // Nothing: the end, too long a wait, or no JSON object.
  std::optional<Json> hear(std::chrono::milliseconds patience) {
    const std::optional<std::string> line = next_line(patience);
    if (!line) return std::nullopt;
    Json json = Json::parse(*line, nullptr, false);
    if (!json.is_object()) return std::nullopt;
    return json;
  }

  // Whether the next line is this one.
  bool skip_line(const std::string& expected, std::chrono::milliseconds patience) {
    return next_line(patience) == expected;
  }

 private:
  std::optional<std::string> next_line(std::chrono::milliseconds patience) {
    const auto deadline = Clock::now() + patience;
    for (;;) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd waiting{in_, POLLIN, 0};
      if (left <= 0 || poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) <= 0) {
        return std::nullopt;
      }
      char bytes[4096];
      const ssize_t got = read(in_, bytes, sizeof bytes);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return std::nullopt;
      buffer_.append(bytes, static_cast<size_t>(got));
      if (buffer_.size() > size_t{1} << 20) return std::nullopt;
    }
  }

  int in_, out_;
  std::string buffer_;
};

// --- the far side

// Connections are taken by the system while the socket listens; that is all that is to be seen.
Json listen_on(uint16_t port, Fd& listener) {
  listener = Fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  sockaddr_in6 six{};
  sockaddr_in four{};
  bool bound = false;
  if (listener) {
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    bound = bind(listener.get(), reinterpret_cast<sockaddr*>(&six), sizeof six) == 0;
  }
  if (!listener || (!bound && errno == EADDRNOTAVAIL)) {
    listener = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    bound = bind(listener.get(), reinterpret_cast<sockaddr*>(&four), sizeof four) == 0;
  }
  if (!bound || listen(listener.get(), 128) != 0) {
    const std::string owner = errno == EADDRINUSE ? port_owner(port) : "";
    return {{"error", fmt::format("cannot listen on port {}: {}{}", port, std::strerror(errno),
                                  owner.empty() ? "" : " by " + owner)}};
  }
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &length);
  const uint16_t got = own.ss_family == AF_INET6
                           ? ntohs(reinterpret_cast<sockaddr_in6*>(&own)->sin6_port)
                           : ntohs(reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  Json addresses = Json::array();
  for (const LocalAddress& address : local_addresses()) {
    if (!address.is_loopback) addresses.push_back(address.address);
  }
  return {{"port", got}, {"addresses", addresses}};
}

// "" = a connection came about.
std::string try_address(const std::string& address, uint16_t port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int failure = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failure != 0) return gai_strerror(failure);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::string why = "no address";
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const Fd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) {
      why = std::strerror(errno);
      continue;
    }
    pollfd waiting{fd.get(), POLLOUT, 0};
    if (poll(&waiting, 1, static_cast<int>(kConnect.count())) == 0) {
      why = fmt::format("no answer within {} s", kConnect.count() / 1000);
      continue;
    }
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return "";
    why = std::strerror(error);
  }
  return why;
}

Json connect_to(const Json& question) {
  std::vector<std::string> failures;
  for (const Json& address : question.at("addresses")) {
    const std::string why = try_address(address, question.at("port"));
    if (why.empty()) return {{"reached", address}};
    failures.push_back(fmt::format("{}: {}", address.get<std::string>(), why));
  }
  return {{"error", failures.empty() ? "the other host has no address but loopback"
                                     : fmt::format("{}", fmt::join(failures, "; "))}};
}

// --- this side

class HostsExamination {
 public:
  explicit HostsExamination(const DoctorFleet& fleet) : fleet_(fleet) {
    for (const Host& host : fleet.hosts) {
      reports_.push_back({.host = host.name, .facts = {}, .findings = {}, .clock_ahead_s = {}});
    }
    streams_.resize(fleet.hosts.size());
    lines_.resize(fleet.hosts.size());
  }

  std::vector<HostReport> run() {
    start();
    examine();
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i]) ask_time(i);
    }
    check_ways();
    return std::move(reports_);
  }

 private:
  void add(size_t host, Finding finding) {
    finding.host = reports_[host].host;
    reports_[host].findings.push_back(std::move(finding));
  }
  void lost(size_t host) {
    lines_[host].reset();
    add(host, {"hosts.answer", Level::problem, "mtl doctor did not answer there",
               "start mtl doctor on it by hand"});
  }

  void start() {
    std::vector<size_t> index_of;  // the fleet's hosts in ours
    FleetOptions options;
    for (size_t i = 0; i < fleet_.hosts.size(); ++i) {
      if (is_this_host(fleet_.hosts[i])) {
        start_here(i);
      } else {
        options.hosts.push_back(fleet_.hosts[i]);
        index_of.push_back(i);
      }
    }
    if (options.hosts.empty()) return;
    options.command = "exec " + shell_word(fleet_.program) + " doctor --agent";
    options.magic = kDoctorMagic;
    options.config_file = fleet_.ssh_config;
    options.ssh_command = fleet_.ssh_command;
    ssh_ = start_fleet(options);
    std::vector<bool> known(options.hosts.size(), false);
    const auto deadline = Clock::now() + 2 * options.connect_timeout;
    while (std::count(known.begin(), known.end(), false) > 0 && Clock::now() < deadline) {
      pollfd waiting{ssh_->fd(), POLLIN, 0};
      poll(&waiting, 1, 200);
      while (std::optional<FleetEvent> event = ssh_->next()) {
        if (known[event->host]) continue;
        known[event->host] = true;
        const size_t host = index_of[event->host];
        if (event->kind == FleetEvent::started) {
          talk_to(host, std::move(event->stream));
          add(host, {"hosts.ssh", Level::ok, "reached by ssh, and mtl runs there"});
        } else if (event->error) {
          add(host,
              {"hosts.ssh", Level::problem,
               fmt::format("{} [{}]", event->error->what, event->error->code), event->error->help});
        }
      }
    }
    for (size_t i = 0; i < known.size(); ++i) {
      if (known[i]) continue;
      add(index_of[i], {"hosts.ssh", Level::problem, "no answer by ssh", "look at ssh -v to it"});
    }
  }

  // As mtl launch: a child, so that no sshd has to run here.
  void start_here(size_t host) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return lost(host);
    Fd ours(ends[0]);
    Fd theirs(ends[1]);
    children_.emplace_back(std::vector<std::string>{fleet_.program, "doctor", "--agent"},
                           theirs.get(), -1);
    theirs.reset();  // the child's alone, so that its end is heard at once
    talk_to(host, std::move(ours));
    // Its first line, which the fleet takes away for its hosts.
    if (!lines_[host]->skip_line(kDoctorMagic, kAnswer)) lost(host);
  }

  void talk_to(size_t host, Fd stream) {
    streams_[host] = std::move(stream);
    lines_[host].emplace(streams_[host].get(), streams_[host].get());
  }

  // All at once: each takes its time.
  void examine() {
    for (auto& line : lines_) {
      if (!line) continue;
      line->say({{"do", "examine"},
                 {"run_dir", fleet_.options.run_dir},
                 {"port", fleet_.options.port},
                 {"probe_bytes", fleet_.options.probe_bytes}});
    }
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (!lines_[i]) continue;
      const std::optional<Json> answer = lines_[i]->hear(kAnswer);
      if (!answer || !answer->contains("findings")) {
        lost(i);
        continue;
      }
      for (const Json& fact : answer->at("facts")) {
        reports_[i].facts.emplace_back(fact.at(0), fact.at(1));
      }
      for (const Json& finding : answer->at("findings")) add(i, finding_from_json(finding));
    }
  }

  void ask_time(size_t host) {
    double best = INFINITY;
    for (int round = 0; round < kClockRounds; ++round) {
      const double asked = wall_clock();
      lines_[host]->say({{"do", "time"}});
      const std::optional<Json> answer = lines_[host]->hear(kAnswer);
      const double heard = wall_clock();
      if (!answer || !answer->contains("now")) return lost(host);
      if (heard - asked >= best) continue;
      best = heard - asked;
      // Theirs was told halfway between.
      reports_[host].clock_ahead_s = answer->at("now").get<double>() - (asked + heard) / 2;
      reports_[host].clock_error_s = best / 2;
    }
  }

  // From every host to the first.
  void check_ways() {
    if (lines_.size() < 2 || !lines_[0]) return;
    lines_[0]->say({{"do", "listen"}, {"port", fleet_.options.port}});
    const std::optional<Json> listening = lines_[0]->hear(kAnswer);
    if (!listening) return lost(0);
    if (listening->contains("error")) {
      add(0, {"hosts.port", Level::problem, listening->at("error").get<std::string>(),
              "choose another --main_process_port"});
      return;
    }
    const int port = listening->at("port");
    for (size_t i = 1; i < lines_.size(); ++i) {
      if (!lines_[i]) continue;
      lines_[i]->say(
          {{"do", "connect"}, {"addresses", listening->at("addresses")}, {"port", port}});
      const std::optional<Json> answer = lines_[i]->hear(kAnswer);
      if (!answer) {
        lost(i);
      } else if (answer->contains("reached")) {
        add(i, {"hosts.way", Level::ok,
                fmt::format("reaches {} at {} port {}", reports_[0].host,
                            answer->at("reached").get<std::string>(), port)});
      } else {
        add(i, {"hosts.way", Level::problem,
                fmt::format("does not reach {} on port {}: {}", reports_[0].host, port,
                            answer->at("error").get<std::string>()),
                fmt::format("open it on {}: a firewall stands between them, or --main_process_ip "
                            "and --interface name another network",
                            reports_[0].host)});
      }
    }
  }

  const DoctorFleet& fleet_;
  std::unique_ptr<SshFleet> ssh_;
  std::vector<ssh::Child> children_;
  std::vector<HostReport> reports_;
  std::vector<Fd> streams_;
  std::vector<std::optional<LineStream>> lines_;
};

}  // namespace

std::vector<HostReport> examine_hosts(const DoctorFleet& fleet) {
  return HostsExamination(fleet).run();
}

void run_doctor_agent(int in, int out, const HostFacts& facts, const Examination& examine) {
  LineStream stream(in, out);
  Fd listener;
  const std::string magic = std::string(kDoctorMagic) + '\n';
  if (write(out, magic.data(), magic.size()) != static_cast<ssize_t>(magic.size())) return;
  while (std::optional<Json> question = stream.hear(std::chrono::minutes(5))) {
    const std::string what = question->value("do", "");
    if (what == "examine") {
      DoctorOptions options;
      options.run_dir = question->value("run_dir", options.run_dir);
      options.port = question->value("port", options.port);
      options.probe_bytes = question->value("probe_bytes", options.probe_bytes);
      options.several_hosts = true;
      Json answer = {{"facts", Json::array()}, {"findings", Json::array()}};
      for (const auto& [name, value] : facts) answer["facts"].push_back({name, value});
      for (const Finding& finding : examine(options))
        answer["findings"].push_back(to_json(finding));
      stream.say(answer);
    } else if (what == "time") {
      stream.say({{"now", wall_clock()}});
    } else if (what == "listen") {
      stream.say(listen_on(question->value("port", uint16_t{0}), listener));
    } else if (what == "connect") {
      stream.say(connect_to(*question));
    } else {
      return;
    }
  }
}

}  // namespace mtl
