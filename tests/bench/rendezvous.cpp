// How long it takes until every agent of a job knows every other one: connect, prove the token,
// offer the node; the controller assigns the ranks; each agent has received and decoded the full
// table (host name, address, port, slots and first rank of every node).
//
//   build/bench/rendezvous [alone] [repetitions=3] [agents...=256 1024 2048 4096]
//
// Controller and agents are hubs of this process on the loopback (one for the controller, the
// agents spread over as many as there are cores), so they share its cores; a job has a machine for
// each agent. Best of the repetitions.
//
// The peer, in the same run: torch's TCPStore, if a python3 here has torch. Its server runs as it
// is (in Python's process, which only waits); its clients are raw sockets of this program that
// speak its protocol, one outstanding request each, which is kinder to it than Python. Every client
// sets its own row, then gets those of all: that is agents^2 gets, of which a part is measured and
// the rest extrapolated at the same rate. `alone`: without the peer (under a profiler).
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "rendezvous/link.h"
#include "rendezvous/membership.h"
#include "rendezvous/store.h"

namespace {

using namespace mtl;
using Clock = std::chrono::steady_clock;

enum : uint16_t { kJoin = 1, kTable = 2 };

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

NodeOffer offer_of(int i) {
  NodeOffer offer;
  offer.host = fmt::format("node{:04}", i);
  offer.key = fmt::format("{:016x}-{}", 0x9e3779b97f4a7c15u * static_cast<uint64_t>(i + 1), i);
  offer.slots = 8;
  offer.position = i;
  offer.addresses = {fmt::format("10.{}.{}.{}", 20 + i / 65536, i / 256 % 256, i % 256)};
  offer.port = static_cast<uint16_t>(30'000 + i * 7919 % 20'000);  // as free ports fall: any
  return offer;
}

// An offer as the launcher's message would carry it.
std::string pack(const NodeOffer& offer) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", offer.host, offer.key, offer.slots, offer.position,
                     offer.port, offer.addresses.front());
}

NodeOffer unpack(std::string_view text) {
  const auto field = [&text] {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string part(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return part;
  };
  NodeOffer offer;
  offer.host = field();
  offer.key = field();
  offer.slots = std::stoi(field());
  offer.position = std::stoi(field());
  offer.port = static_cast<uint16_t>(std::stoi(field()));
  offer.addresses = {field()};
  return offer;
}

std::optional<LinkEvent> wait_next(LinkHub& hub) {
  for (;;) {
    if (auto event = hub.next()) return event;
    pollfd waiting = {hub.fd(), POLLIN, 0};
    if (::poll(&waiting, 1, 60'000) <= 0) return std::nullopt;
  }
}

// Takes the joins, answers with the table.
void control(LinkHub& hub, int agents) {
  MembershipOptions options;
  options.min_nodes = options.max_nodes = agents;
  Membership members(options);
  std::vector<LinkId> links;
  while (const auto event = wait_next(hub)) {
    if (event->kind == LinkEvent::lost) return;
    if (event->kind != LinkEvent::arrived) continue;
    const Clock::time_point now = Clock::now();
    if (members.join(event->link, unpack(event->message.body), now)) return;
    links.push_back(event->link);
    if (!members.ready(now)) continue;
    LinkMessage table;
    table.kind = kTable;
    table.body = encode_roster(members.assign());
    for (const LinkId link : links) hub.send(link, table);
    return;
  }
}

struct Times {
  double opened = 0, all = 0;  // since the start
  size_t table_bytes = 0;
  double cpu = 0;
};

double cpu_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Some of the agents. Each decodes its table and looks whether it is right.
struct Agents {
  std::unique_ptr<LinkHub> hub;
  int first = 0, count = 0;
  double opened = 0;  // since the start, the last of them
  size_t table_bytes = 0;
  bool good = true;
};

void join_all(Agents& agents, uint16_t port, const std::vector<std::string>& joins,
              Clock::time_point start) {
  LinkHub& hub = *agents.hub;
  std::unordered_map<LinkId, size_t> agent_of;
  for (int i = agents.first; i < agents.first + agents.count; ++i) {
    agent_of[hub.connect("127.0.0.1", port, std::chrono::seconds(60))] = static_cast<size_t>(i);
  }
  int opened = 0, done = 0;
  while (agents.good && done < agents.count) {
    const auto event = wait_next(hub);
    if (!event || event->kind == LinkEvent::lost) {
      fmt::print(stderr, "an agent was lost: {}\n", event ? event->reason : "no answer");
      agents.good = false;
      return;
    }
    const size_t mine = agent_of.at(event->link);
    if (event->kind == LinkEvent::opened) {
      LinkMessage join;
      join.kind = kJoin;
      join.body = joins[mine];
      hub.send(event->link, std::move(join));
      if (++opened == agents.count) agents.opened = seconds_since(start);
      continue;
    }
    const auto roster = decode_roster(event->message.body);
    agents.good = roster && roster->nodes.size() == joins.size() &&
                  roster->world == 8 * static_cast<int>(joins.size()) &&
                  roster->nodes[mine].host == offer_of(static_cast<int>(mine)).host &&
                  roster->nodes[mine].first_rank == 8 * static_cast<int>(mine);
    agents.table_bytes = event->message.body.size();
    ++done;
  }
}

std::optional<Times> rendezvous(int agents) {
  LinkHubOptions options;
  options.token = make_token();
  const auto server = make_link_hub(options);
  const uint16_t port = server->listen("127.0.0.1", 0);
  std::vector<std::string> joins;
  for (int i = 0; i < agents; ++i) joins.push_back(pack(offer_of(i)));
  const int parts = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<Agents> groups(static_cast<size_t>(parts));
  for (int i = 0; i < parts; ++i) {
    Agents& group = groups[static_cast<size_t>(i)];
    group.hub = make_link_hub(options);
    group.first = agents * i / parts;
    group.count = agents * (i + 1) / parts - group.first;
  }
  std::thread controller([&] { control(*server, agents); });
  const double cpu = cpu_seconds();
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (Agents& group : groups) {
    threads.emplace_back([&group, &joins, port, start] { join_all(group, port, joins, start); });
  }
  for (auto& thread : threads) thread.join();
  Times times;
  times.all = seconds_since(start);
  times.cpu = cpu_seconds() - cpu;
  bool good = true;
  for (Agents& group : groups) {
    times.opened = std::max(times.opened, group.opened);
    times.table_bytes = group.table_bytes;
    good = good && group.good;
    if (!good) group.hub.reset();  // the controller sees the end and does not wait for more
  }
  controller.join();
  return good ? std::optional(times) : std::nullopt;
}

int tcp_socket(uint16_t port, bool listener = false) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const bool good = listener ? ::bind(fd, generic, sizeof(address)) == 0 && ::listen(fd, 16) == 0
                             : ::connect(fd, generic, sizeof(address)) == 0;
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (good) return fd;
  ::close(fd);
  return -1;
}

// What this machine gives at this moment: a round trip of one byte, a connect and close, a copy.
void calibrate() {
  const int listener = tcp_socket(0, true);
  sockaddr_in address = {};
  socklen_t length = sizeof(address);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const uint16_t port = ntohs(address.sin_port);
  std::thread echo([listener] {
    const int fd = ::accept(listener, nullptr, nullptr);
    char byte;
    while (::recv(fd, &byte, 1, 0) == 1) (void)!::send(fd, &byte, 1, MSG_NOSIGNAL);
    ::close(fd);
  });
  const int fd = tcp_socket(port);
  char byte = 1;
  constexpr int kTrips = 5'000;
  Clock::time_point start = Clock::now();
  for (int i = 0; i < kTrips; ++i) {
    (void)!::send(fd, &byte, 1, MSG_NOSIGNAL);
    (void)!::recv(fd, &byte, 1, 0);
  }
  const double trip = seconds_since(start) / kTrips;
  ::close(fd);
  echo.join();
  start = Clock::now();
  constexpr int kConnects = 1'000;
  for (int i = 0; i < kConnects; ++i) {
    ::close(tcp_socket(port));
    ::close(::accept(listener, nullptr, nullptr));
  }
  const double connect = seconds_since(start) / kConnects;
  ::close(listener);
  std::vector<char> from(64 << 20, 1), to(64 << 20, 2);
  double copy = 1e9;
  for (int i = 0; i < 4; ++i) {
    start = Clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    copy = std::min(copy, seconds_since(start));
  }
  fmt::print(
      "calibration: round trip {:.1f} us, connect + accept + close {:.1f} us, copy {:.1f} "
      "GB/s, {} cores\n",
      1e6 * trip, 1e6 * connect, 1e-9 * static_cast<double>(from.size()) / copy,
      std::thread::hardware_concurrency());
}

// torch's server in a child; ends when its stdin does.
class TorchServer {
 public:
  TorchServer() {
    for (const char* python : {"python3", "/usr/bin/python3"}) {
      if (start(python)) return;
    }
  }
  ~TorchServer() { stop(); }
  bool up() const { return port_ != 0; }
  uint16_t port() const { return port_; }
  const std::string& version() const { return version_; }

 private:
  bool start(const char* python) {
    const char* script =
        "import sys, torch, torch.distributed as d\n"
        "s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)\n"
        "print(s.port, torch.__version__, flush=True)\n"
        "sys.stdin.read()\n";
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return false;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, 2);
      ::execlp(python, python, "-c", script, nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = in[1];
    std::string text;
    char bytes[256];
    for (ssize_t got = 0; text.find('\n') == text.npos; text.append(bytes, size_t(got))) {
      got = ::read(out[0], bytes, sizeof(bytes));
      if (got <= 0) break;
    }
    ::close(out[0]);
    const size_t space = text.find(' ');
    if (text.empty() || space == text.npos) {
      stop();
      return false;
    }
    port_ = static_cast<uint16_t>(std::stoi(text));
    version_ = text.substr(space + 1, text.find('\n') - space - 1);
    return true;
  }
  void stop() {
    if (stdin_ >= 0) ::close(stdin_);
    stdin_ = -1;
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid_ = -1;
  int stdin_ = -1;
  uint16_t port_ = 0;
  std::string version_;
};

struct PeerTimes {
  double set = 0, all = 0;  // connect and set; with all gets
  double measured = 0;      // the part of the gets that was measured
};

// TCPStore's protocol: one byte of operation (0 set, 2 get), strings with 64-bit lengths.
std::optional<PeerTimes> tcp_store(uint16_t port, int agents, int round) {
  const auto put = [](std::string& out, const std::string& text) {
    const uint64_t size = text.size();
    out.append(reinterpret_cast<const char*>(&size), sizeof(size));
    out += text;
  };
  const auto key = [round](int i) { return fmt::format("{}/{}", round, i); };
  const auto get = [&](int i) {
    std::string out(1, '\2');
    put(out, key(i));
    return out;
  };
  struct Client {
    int fd = -1, next = 0, left = 0;
    size_t expected = 0, got = 0;
  };
  std::vector<Client> clients(static_cast<size_t>(agents));
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const Clock::time_point start = Clock::now();
  bool good = true;
  const std::string row(64, 'x');
  for (int i = 0; i < agents && good; ++i) {
    Client& client = clients[static_cast<size_t>(i)];
    client.fd = tcp_socket(port);
    good = client.fd >= 0;
    std::string set(1, '\0');
    put(set, key(i));
    put(set, row);
    (void)!::send(client.fd, set.data(), set.size(), MSG_NOSIGNAL);
    epoll_event event = {.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, client.fd, &event);
  }
  // Runs `each` gets on every client.
  const auto run = [&](int each, int first) {
    int running = 0;
    const auto ask = [&](Client& client) {
      const std::string text = get(client.next++ % agents);
      client.got = 0;
      client.expected = 8 + row.size();
      (void)!::send(client.fd, text.data(), text.size(), MSG_NOSIGNAL);
    };
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i].next = first + static_cast<int>(i);
      clients[i].left = each;
      ask(clients[i]);
      ++running;
    }
    std::array<epoll_event, 256> events;
    while (running > 0 && good) {
      const int ready = ::epoll_wait(epoll, events.data(), int(events.size()), 30'000);
      if (ready <= 0) good = false;
      for (int e = 0; e < ready; ++e) {
        Client& client = clients[events[static_cast<size_t>(e)].data.u32];
        char bytes[512];
        const ssize_t got = ::recv(client.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (got <= 0) {
          good = false;
          break;
        }
        client.got += static_cast<size_t>(got);
        if (client.got < client.expected) continue;
        if (--client.left > 0) {
          ask(client);
        } else {
          --running;
        }
      }
    }
  };
  PeerTimes times;
  run(1, 0);  // its own row: it is set, and so are all
  times.set = seconds_since(start);
  const int each = std::clamp(60'000 / agents, 4, agents);
  const Clock::time_point begin = Clock::now();
  run(each, 1);
  times.measured = static_cast<double>(each) / agents;
  times.all = times.set + seconds_since(begin) / times.measured;
  for (const Client& client : clients) {
    if (client.fd >= 0) ::close(client.fd);
  }
  ::close(epoll);
  return good ? std::optional(times) : std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const bool alone = argc > 1 && std::strcmp(argv[1], "alone") == 0;
  if (alone) {
    --argc;
    ++argv;
  }
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  std::vector<int> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::max(1, std::atoi(argv[i])));
  if (sizes.empty()) sizes = {256, 1024, 2048, 4096};
  calibrate();
  fmt::print("{:>7} | {:>9} {:>9} {:>8} {:>9} | {:>12} {:>12} {:>11} | {:>7}\n", "agents",
             "opened s", "table s", "CPU s", "table B", "store set s", "store all s", "measured",
             "ratio");
  for (size_t row = 0; row < sizes.size(); ++row) {
    const int agents = sizes[row];
    std::optional<Times> best;
    std::optional<PeerTimes> peer;
    for (int i = 0; i < repetitions; ++i) {
      const auto times = rendezvous(agents);
      if (!times) return 1;
      if (!best || times->all < best->all) best = times;
      if (alone) continue;
      // A fresh server each time, so that neither side profits from the round before.
      const TorchServer torch;
      const auto theirs = torch.up() ? tcp_store(torch.port(), agents, i) : std::nullopt;
      if (theirs && (!peer || theirs->all < peer->all)) peer = theirs;
      if (row == 0 && i == 0) {
        fmt::print("{:>7} | mtl: links, membership, roster | {}\n", "",
                   torch.up() ? "torch " + torch.version() + " TCPStore, raw clients"
                              : "no python3 with torch here");
      }
    }
    fmt::print("{:>7} | {:>9.3f} {:>9.3f} {:>8.3f} {:>9} | ", agents, best->opened, best->all,
               best->cpu, best->table_bytes);
    if (peer) {
      fmt::print("{:>12.3f} {:>12.2f} {:>9.1f} % | {:>6.0f}x\n", peer->set, peer->all,
                 100 * peer->measured, peer->all / best->all);
    } else {
      fmt::print("{:>12} {:>12} {:>11} | {:>7}\n", "-", "-", "-", "-");
    }
  }
  return 0;
}
