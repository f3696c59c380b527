// The controller without links: told what happens, watched for what it says.
#include "launcher/controller.h"

#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace mtl;
using namespace std::chrono_literals;

namespace {

struct Said {
  LinkId link;
  JobMessage kind;
  int64_t generation;
  std::string body;
};

class Port final : public ControllerPort {
 public:
  void send(LinkId link, JobMessage kind, int64_t generation, std::string body) override {
    said.push_back({link, kind, generation, std::move(body)});
  }
  void close(LinkId link) override { closed.push_back(link); }
  void notice(const std::string& line) override { notices.push_back(line); }
  void output(const OutputMessage& message) override { outputs.push_back(message.text); }
  void line(const std::string&) override {}

  int count(JobMessage kind) const {
    int found = 0;
    for (const Said& one : said) found += one.kind == kind ? 1 : 0;
    return found;
  }
  const Said* last(JobMessage kind, LinkId link) const {
    const Said* found = nullptr;
    for (const Said& one : said) {
      if (one.kind == kind && one.link == link) found = &one;
    }
    return found;
  }
  std::vector<Said> said;
  std::vector<LinkId> closed;
  std::vector<std::string> notices, outputs;
};

// A job of `nodes` nodes with two ranks each, by machine_rank.
class Job {
 public:
  explicit Job(int min, int max, int max_restarts = 0, bool elastic = false, bool is_ours = false) {
    ControllerOptions options;
    options.membership.min_nodes = min;
    options.membership.max_nodes = max;
    options.membership.by_rank = !elastic;
    options.membership.last_call = 10s;
    options.version = "1";
    options.grows = elastic;
    options.is_ours = is_ours;
    options.own_position = 0;
    options.max_restarts = max_restarts;
    options.join_timeout = 60s;
    options.grace = 30s;
    options.prepare = [this](int world, int64_t) -> std::optional<JobProgram> {
      worlds.push_back(world);
      if (world > legal_world || world < least_world) {
        throw Error(Exit::config, Diagnostic{.code = "mesh.world", .what = "no such layout"});
      }
      return {};
    };
    elastic_ = elastic;
    controller.emplace(std::move(options), port, now);
  }

  void join(int node) { join(node, node); }
  void join(LinkId link, int node) {
    NodeOffer offer;
    offer.host = fmt::format("m{}", node);
    offer.key = offer.host;
    offer.slots = 2;
    offer.rank = elastic_ ? -1 : node;
    offer.position = node == 0 ? 0 : -1;
    offer.addresses = {fmt::format("10.0.0.{}", node)};
    offer.port = 1000;
    tell(link, JobMessage::hello, encode(HelloMessage{"1", offer.host, offer}), 0);
  }
  void tell(LinkId link, JobMessage kind, std::string body, int64_t generation) {
    controller->received(link, {static_cast<uint16_t>(kind), generation, std::move(body)}, 0ns,
                         now);
  }
  void ended(int node, int rank, int exit_code, bool stopped = false,
             std::chrono::milliseconds when = 0ms) {
    WorkerEnd end;
    end.rank = rank;
    end.local_rank = rank % 2;
    end.pid = 100 + rank;
    end.exit_code = exit_code;
    end.signal = exit_code > 128 ? exit_code - 128 : 0;
    end.stopped_by_us = stopped;
    end.when = std::chrono::system_clock::now() + when;
    tell(node, JobMessage::ended, encode(end), controller->generation());
  }
  void stopped(int node) {
    tell(node, JobMessage::stopped, encode(StoppedMessage{}), controller->generation());
  }
  // A signal arrived at the node.
  void signalled(int node, int signal) { signalled(node, signal, std::chrono::milliseconds(0)); }
  void signalled(int node, int signal, std::chrono::milliseconds when) {
    tell(node, JobMessage::interrupted,
         encode(InterruptedMessage{signal, std::chrono::system_clock::now() + when}),
         controller->generation());
  }
  std::optional<FinishMessage> finished(int node) const {
    const Said* last = port.last(JobMessage::finish, node);
    return last != nullptr ? decode_finish(last->body) : std::nullopt;
  }
  // All ranks of a node obey and end.
  void obey(int node) {
    ended(node, 2 * node, 143, true);
    ended(node, 2 * node + 1, 143, true);
    stopped(node);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    controller->tick(now);
  }
  const JobOutcome& outcome() {
    REQUIRE(controller->outcome());
    return *controller->outcome();
  }

  Port port;
  std::optional<Controller> controller;
  std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  std::vector<int> worlds;
  int legal_world = 1000, least_world = 0;

 private:
  bool elastic_ = false;
};

}  // namespace

TEST_CASE("a node that counts silence in another way is refused") {
  Job job(2, 2);
  job.join(0);
  NodeOffer offer;
  offer.host = "m1";
  offer.key = offer.host;
  offer.slots = 2;
  offer.rank = 1;
  job.tell(1, JobMessage::hello, encode(HelloMessage{"1", offer.host, offer, 60s}), 0);
  CHECK(job.port.count(JobMessage::assign) == 0);
  REQUIRE(job.port.last(JobMessage::refuse, 1) != nullptr);
  const auto why = decode_diagnostics(job.port.last(JobMessage::refuse, 1)->body);
  REQUIRE(why);
  CHECK(why->front().code == "launch.join");
  CHECK(why->front().what == "m1 was started with --dead_after 60 and this job with 5");
  CHECK(job.port.closed == std::vector<LinkId>{1});
  job.join(1);  // the same machine, started as the others
  CHECK(job.port.count(JobMessage::assign) == 2);
}

TEST_CASE("a job starts when all nodes are there and ends when all have done their part") {
  Job job(2, 2);
  job.join(1);
  CHECK(job.port.count(JobMessage::assign) == 0);
  job.join(0);
  REQUIRE(job.port.count(JobMessage::assign) == 2);
  const auto assign = decode_assign(job.port.last(JobMessage::assign, 1)->body);
  REQUIRE(assign);
  CHECK(assign->node_rank == 1);
  CHECK(assign->roster.world == 4);
  CHECK(assign->roster.nodes[1].first_rank == 2);
  CHECK(assign->roster.nodes[0].address == "10.0.0.0");
  for (int node : {0, 1}) {
    job.ended(node, 2 * node, 0);
    job.ended(node, 2 * node + 1, 0);
    CHECK(!job.controller->outcome());
    job.stopped(node);
  }
  CHECK(job.outcome().exit_code == 0);
  CHECK(job.outcome().report.empty());
  CHECK(job.port.count(JobMessage::finish) == 2);
}

TEST_CASE("the first failure by time is the headline and its code is the job's") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  job.ended(1, 3, 1);  // told first
  CHECK(job.port.count(JobMessage::stop) == 2);
  job.ended(0, 0, 42, false, -50ms);  // but this one was earlier
  job.ended(0, 1, 143, true);
  job.stopped(0);
  CHECK(!job.controller->outcome());
  job.ended(1, 2, 143, true);
  job.stopped(1);
  CHECK(job.outcome().exit_code == 42);
  REQUIRE(job.outcome().report.size() == 1);
  CHECK(job.outcome().report[0].what.find("rank 0") != std::string::npos);
  CHECK(job.outcome().first_failure->host == "m0");
}

TEST_CASE("a failure starts everything again as often as was allowed") {
  Job job(2, 2, 1);
  job.join(0);
  job.join(1);
  for (int round = 0; round < 2; ++round) {
    CHECK(job.controller->generation() == round);
    job.ended(1, 2, 139);
    job.obey(0);
    job.ended(1, 3, 143, true);
    job.stopped(1);
  }
  CHECK(job.port.count(JobMessage::assign) == 4);
  CHECK(job.outcome().exit_code == 139);
}

TEST_CASE("of our own programs a wrong configuration is not tried again") {
  Job job(1, 1, 3, false, true);
  job.join(0);
  job.ended(0, 0, 3);
  job.ended(0, 1, 143, true);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 3);
}

TEST_CASE("messages of another generation are nobody's") {
  Job job(2, 2, 1);
  job.join(0);
  job.join(1);
  job.ended(1, 2, 1);
  job.obey(0);
  job.ended(1, 3, 143, true);
  job.stopped(1);
  REQUIRE(job.controller->generation() == 1);
  job.tell(0, JobMessage::stopped, encode(StoppedMessage{}), 0);
  WorkerEnd end;
  end.exit_code = 9;
  job.tell(0, JobMessage::ended, encode(end), 0);
  job.tell(0, JobMessage::output, encode(OutputMessage{0, false, "old\n"}), 0);
  CHECK(job.port.outputs.empty());
  job.tell(0, JobMessage::output, encode(OutputMessage{0, false, "new\n"}), 1);
  CHECK(job.port.outputs == std::vector<std::string>{"new\n"});
  CHECK(!job.controller->outcome());
}

TEST_CASE("a lost node ends a fixed job and names the node") {
  Job job(2, 2, 3);
  job.join(0);
  job.join(1);
  job.controller->lost(1, LinkEvent::silent, "nothing heard for 5 s", job.now);
  CHECK(job.port.last(JobMessage::stop, 0) != nullptr);
  job.obey(0);
  CHECK(job.outcome().exit_code == 7);
  CHECK(job.outcome().report[0].code == "launch.node_lost");
  CHECK(job.outcome().report[0].what.find("m1") != std::string::npos);
}

TEST_CASE("with min:max the job goes on without a lost node and that costs no restart") {
  Job job(3, 4, 0, true);
  for (int node = 0; node < 4; ++node) job.join(node);
  REQUIRE(job.controller->generation() == 0);
  job.controller->lost(2, LinkEvent::silent, "nothing heard for 5 s", job.now);
  for (int node : {0, 1, 3}) job.obey(node);
  REQUIRE(job.controller->generation() == 1);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{8, 6});
  const auto assign = decode_assign(job.port.last(JobMessage::assign, 3)->body);
  CHECK(assign->node_rank == 2);
  CHECK(assign->restart_count == 1);
}

TEST_CASE("ranks that end with an error when they make room for a node have not failed") {
  Job job(1, 2, 0, true);
  job.join(0);
  job.pass(11s);
  REQUIRE(job.controller->generation() == 0);
  job.join(1);
  job.ended(0, 0, 1, true);  // a Python program that says KeyboardInterrupt
  job.ended(0, 1, 143, true);
  job.stopped(0);
  CHECK(!job.controller->outcome());
  CHECK(job.controller->generation() == 1);
  CHECK(job.worlds == std::vector<int>{2, 4});
}

TEST_CASE("a node that is lost after its part was done is no loss") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  job.ended(1, 2, 0);
  job.ended(1, 3, 0);
  job.stopped(1);
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  job.ended(0, 0, 0);
  job.ended(0, 1, 0);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 0);
}

TEST_CASE("a spare takes a lost node's place though the size is fixed") {
  Job job(2, 2, 0, true);
  for (int node = 0; node < 3; ++node) job.join(node);
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  job.obey(0);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{4, 4});
}

TEST_CASE("a node that is lost between its ranks' end and a restart is spoken of") {
  Job job(2, 2, 1, true);
  job.join(0);
  job.join(1);
  job.ended(1, 2, 1);
  job.obey(0);
  job.controller->lost(0, LinkEvent::closed, "it closed the connection", job.now);
  CHECK(job.port.notices.back() == "m0 has left: it closed the connection");
  job.ended(1, 3, 143, true);
  job.stopped(1);
  job.pass(5s);
  CHECK(job.port.notices.back() == "waiting for 1 more node: 1 node of 2 here after 5 s");
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  CHECK(job.port.notices.back() == "m1 has left: it closed the connection");
  CHECK(!job.controller->outcome());
}

TEST_CASE("with restarts a fixed job waits for somebody in the place of a lost node") {
  Job job(2, 2, 1, true);
  job.join(0);
  job.join(1);
  job.controller->lost(1, LinkEvent::silent, "nothing heard for 5 s", job.now);
  job.obey(0);
  CHECK(!job.controller->outcome());
  CHECK(job.controller->generation() == 0);
  CHECK(job.port.notices.back() == "restart 1 of 1: m1 was lost; waiting for 1 more node");
  SUBCASE("it comes back and is lost once more") {
    job.join(1);
    REQUIRE(job.controller->generation() == 1);
    CHECK(decode_assign(job.port.last(JobMessage::assign, 1)->body)->node_rank == 1);
    job.controller->lost(1, LinkEvent::silent, "nothing heard for 5 s", job.now);
    job.obey(0);
    CHECK(job.outcome().exit_code == 7);
    CHECK(job.outcome().report[0].code == "launch.node_lost");
  }
  SUBCASE("another one comes") {
    job.pass(30s);
    job.join(2);
    REQUIRE(job.controller->generation() == 1);
    CHECK(decode_assign(job.port.last(JobMessage::assign, 2)->body)->node_rank == 1);
    for (const int node : {0, 1}) {
      const int link = node == 0 ? 0 : 2;
      job.ended(link, 2 * node, 0);
      job.ended(link, 2 * node + 1, 0);
      job.stopped(link);
    }
    CHECK(job.outcome().exit_code == 0);
  }
  SUBCASE("nobody comes") {
    job.pass(61s);
    CHECK(job.outcome().exit_code == 7);
    CHECK(job.outcome().report.back().what ==
          "1 of the 2 nodes that the job needs is there after 60 s");
  }
}

TEST_CASE("hosts: who is lost before the restart is named in the end") {
  ControllerOptions options;
  options.membership.min_nodes = options.membership.max_nodes = 2;
  options.membership.expected = {"a", "a"};
  options.version = "1";
  options.max_restarts = 1;
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> { return {}; };
  Port port;
  const auto now = std::chrono::steady_clock::now();
  Controller controller(options, port, now);
  const auto tell = [&](LinkId link, JobMessage kind, std::string body) {
    controller.received(link, {static_cast<uint16_t>(kind), 0, std::move(body)}, 0ns, now);
  };
  for (const LinkId link : {1, 2}) {
    NodeJob node;
    node.position = static_cast<int>(link) - 1;
    controller.expect(link, "a", node);
    NodeOffer offer;
    offer.host = "a";
    offer.key = "host " + std::to_string(node.position);
    offer.slots = 1;
    offer.position = node.position;
    tell(link, JobMessage::join, encode(offer));
  }
  REQUIRE(port.count(JobMessage::assign) == 2);
  tell(2, JobMessage::stopped, encode(StoppedMessage{}));
  controller.lost(2, LinkEvent::closed, "it closed the connection", now);
  WorkerEnd end;
  end.exit_code = 1;
  tell(1, JobMessage::ended, encode(end));
  tell(1, JobMessage::stopped, encode(StoppedMessage{}));
  REQUIRE(controller.outcome());
  CHECK(controller.outcome()->exit_code == 4);
  const auto& report = controller.outcome()->report;
  REQUIRE(report.size() == 2);
  CHECK(report[0].what ==
        "a was lost after its ranks had ended: its agent is gone (it closed the connection)");
  CHECK(report[1].what == "1 of the 2 nodes that the job needs is there");
}

TEST_CASE("hosts: of the same trouble on several one error, after all were heard") {
  ControllerOptions options;
  options.membership.min_nodes = options.membership.max_nodes = 3;
  options.membership.expected = {"a", "b", "c"};
  options.version = "1";
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> { return {}; };
  Port port;
  const auto now = std::chrono::steady_clock::now();
  Controller controller(options, port, now);
  const std::vector<Diagnostic> two = {{.code = "launch.remote_files", .what = "cannot read x"},
                                       {.code = "launch.interface", .what = "no eth7"}};
  const auto tell = [&](LinkId link, const std::string& host, JobMessage kind, std::string body) {
    NodeJob job;
    job.position = static_cast<int>(link) - 1;
    controller.expect(link, host, job);
    controller.received(link, {static_cast<uint16_t>(kind), 0, std::move(body)}, 0ns, now);
  };
  tell(2, "b", JobMessage::problems, encode(two));
  tell(1, "a", JobMessage::problems, encode(two));
  CHECK(!controller.outcome());  // four reasons, but of two hosts
  tell(3, "c", JobMessage::hello, encode(HelloMessage{"2", "c", {}}));
  controller.tick(now);
  REQUIRE(controller.outcome());
  const auto& report = controller.outcome()->report;
  REQUIRE(report.size() == 4);
  CHECK(report[0].what == "a, b: cannot read x");
  CHECK(report[1].what == "a, b: no eth7");
  CHECK(report[2].code == "launch.version");
  CHECK(report[2].what == "c has mtl 2, and this is mtl 1");
  CHECK(report[3].notes[0] == "missing: a, b, c");
}

TEST_CASE("survivors that fail because their peer's machine vanished do not hide the loss") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  job.ended(0, 0, 1);  // connection reset by peer
  job.ended(0, 1, 143, true);
  job.stopped(0);
  CHECK(!job.controller->outcome());
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  CHECK(job.outcome().report[0].code == "launch.node_lost");
  CHECK(job.outcome().exit_code == 1);
}

TEST_CASE("a layout that fewer nodes cannot take is tried with fewer still") {
  Job job(1, 4, 0, true);
  job.legal_world = 4;
  for (int node = 0; node < 4; ++node) job.join(node);
  CHECK(job.worlds == std::vector<int>{8, 6, 4});
  CHECK(job.port.count(JobMessage::assign) == 2);
}

TEST_CASE("an impossible layout is the job's end and its exit code that of the error") {
  Job job(2, 2);
  job.legal_world = 3;
  job.join(0);
  job.join(1);
  CHECK(job.outcome().exit_code == 3);
  CHECK(job.outcome().report[0].code == "mesh.world");
}

TEST_CASE("who is missing is said after five seconds and the wait has an end") {
  Job job(3, 3);
  job.join(1);
  job.pass(4900ms);
  CHECK(job.port.notices.empty());
  job.pass(200ms);
  REQUIRE(job.port.notices.size() == 1);
  CHECK(job.port.notices[0].find("machine_rank 0, 2") != std::string::npos);
  job.pass(56s);
  CHECK(job.outcome().exit_code == 7);
  CHECK(job.outcome().report.back().notes[0].find("machine_rank 0, 2") != std::string::npos);
}

TEST_CASE("two nodes with one machine_rank: the second is refused with a reason") {
  Job job(2, 2);
  job.join(0);
  NodeOffer offer;
  offer.host = "twin";
  offer.key = "twin";
  offer.slots = 2;
  offer.rank = 0;
  offer.addresses = {"10.0.0.9"};
  job.tell(7, JobMessage::hello, encode(HelloMessage{"1", "twin", offer}), 0);
  REQUIRE(job.port.last(JobMessage::refuse, 7) != nullptr);
  CHECK(job.port.closed == std::vector<LinkId>{7});
  job.join(1);
  CHECK(job.port.count(JobMessage::assign) == 2);
}

TEST_CASE("another version is refused") {
  Job job(1, 1);
  job.tell(5, JobMessage::hello, encode(HelloMessage{"2", "old", {}}), 0);
  const auto why = decode_diagnostics(job.port.last(JobMessage::refuse, 5)->body);
  REQUIRE(why);
  CHECK(why->front().code == "launch.version");
}

TEST_CASE("a request stops with grace, the second one kills") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  job.controller->interrupt(SIGINT, job.now);
  const auto first = decode_stop(job.port.last(JobMessage::stop, 1)->body);
  CHECK(!first->kill);
  CHECK(first->grace == 30s);
  job.controller->interrupt(SIGINT, job.now);
  CHECK(decode_stop(job.port.last(JobMessage::stop, 1)->body)->kill);
  job.obey(0);
  job.obey(1);
  CHECK(job.outcome().exit_code == 130);
  CHECK(job.outcome().interrupted);
}

TEST_CASE("a warning of the scheduler is one request however often it comes") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  const auto arrived = [&](LinkId link, int signal) {
    job.tell(link, JobMessage::interrupted,
             encode(InterruptedMessage{signal, std::chrono::system_clock::now()}), 0);
  };
  arrived(0, SIGUSR2);
  CHECK(!decode_stop(job.port.last(JobMessage::stop, 1)->body)->kill);
  arrived(0, SIGUSR2);
  arrived(1, SIGUSR2);
  job.controller->interrupt(SIGUSR2, job.now);
  job.controller->interrupt(SIGUSR2, job.now);
  // The end of the time, to everybody: no second wish of anybody.
  arrived(0, SIGTERM);
  arrived(1, SIGTERM);
  job.controller->interrupt(SIGTERM, job.now);
  CHECK(!decode_stop(job.port.last(JobMessage::stop, 1)->body)->kill);
  job.controller->interrupt(SIGTERM, job.now);
  CHECK(decode_stop(job.port.last(JobMessage::stop, 1)->body)->kill);
  job.obey(0);
  job.obey(1);
  CHECK(job.outcome().signal == SIGTERM);
}

TEST_CASE("a warning before the start is no failure") {
  Job job(2, 2);
  job.join(0);
  job.controller->interrupt(SIGUSR2, job.now);
  CHECK(job.outcome().exit_code == 75);
  CHECK(job.outcome().signal == SIGUSR2);
}

TEST_CASE("ranks that stop on request with a checkpoint make the job's code 75") {
  Job job(1, 1, 3, false, true);
  job.join(0);
  job.controller->interrupt(SIGTERM, job.now);
  job.ended(0, 0, 75, true);
  job.ended(0, 1, 75, true);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 75);
}

TEST_CASE("a node that neither stops nor dies is given up") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  job.ended(0, 0, 1, false, -60s);
  job.ended(0, 1, 143, true);
  job.stopped(0);
  job.pass(38s);
  CHECK(decode_stop(job.port.last(JobMessage::stop, 1)->body)->kill);
  CHECK(!job.controller->outcome());
  job.pass(8s);
  CHECK(job.outcome().exit_code == 1);
}

TEST_CASE("hosts: those known bad are not waited for") {
  const auto now = std::chrono::steady_clock::now();
  ControllerOptions options;
  options.membership.min_nodes = 2;
  options.membership.max_nodes = 3;
  options.membership.expected = {"a", "b", "c"};
  options.version = "1";
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> { return {}; };
  Port port;
  Controller controller(options, port, now);
  NodeJob node;
  node.program.argv = {"true"};
  const auto tell = [&](LinkId link, JobMessage kind, const std::string& body) {
    controller.received(link, {static_cast<uint16_t>(kind), 0, body}, 0ns, now);
  };
  for (const auto& [link, host] : {std::pair<LinkId, std::string>(1, "a"), {2, "b"}}) {
    node.position = static_cast<int>(link) - 1;
    controller.expect(link, host, node);
    tell(link, JobMessage::hello, encode(HelloMessage{"1", host, {}}));
    CHECK(port.last(JobMessage::prepare, link) != nullptr);
    NodeOffer offer;
    offer.host = host;
    offer.key = host;
    offer.slots = 1;
    offer.position = node.position;
    offer.addresses = {"10.0.0.1"};
    tell(link, JobMessage::join, encode(offer));
  }
  CHECK(port.count(JobMessage::assign) == 0);
  controller.host_failed(2, {.code = "ssh.connect", .what = "c refused"}, now);
  CHECK(port.count(JobMessage::assign) == 2);
  REQUIRE(port.notices.size() == 1);
  CHECK(port.notices[0].find("c refused") != std::string::npos);
}

TEST_CASE("hosts: when too few can come all reasons are told at once") {
  ControllerOptions options;
  options.membership.min_nodes = 2;
  options.membership.max_nodes = 2;
  options.membership.expected = {"a", "b"};
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> { return {}; };
  Port port;
  const auto now = std::chrono::steady_clock::now();
  Controller controller(options, port, now);
  controller.host_failed(0, {.code = "ssh.connect", .what = "a refused"}, now);
  controller.host_failed(1, {.code = "ssh.auth", .what = "b wants a password"}, now);
  REQUIRE(controller.outcome());
  CHECK(controller.outcome()->exit_code == 4);
  REQUIRE(controller.outcome()->report.size() >= 1);
  CHECK(controller.outcome()->report.back().code == "launch.nodes");
  CHECK(controller.outcome()->report.back().what ==
        "none of the 2 nodes that the job needs is there");
}

TEST_CASE("when nobody comes at all the words are those for one node") {
  Job job(1, 1);
  job.pass(61s);
  CHECK(job.outcome().report.back().what == "the node that the job needs is not there after 60 s");
}

TEST_CASE("who was asked to stop for a newcomer has not failed however it ends") {
  Job job(1, 2, 0, true);
  job.join(0);
  job.pass(11s);
  REQUIRE(job.controller->generation() == 0);
  job.join(1);
  job.ended(0, 0, 1, true);  // a handler of TERM that says 1
  job.ended(0, 1, 139, true);
  job.stopped(0);
  CHECK(job.controller->generation() == 1);
  CHECK(!job.controller->outcome());
}

TEST_CASE("a job that was done before the newcomer's stop arrived is done") {
  Job job(1, 2, 0, true);
  job.join(0);
  job.pass(11s);
  job.join(1);
  job.ended(0, 0, 0);
  job.ended(0, 1, 0);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 0);
}

TEST_CASE("a request is the reason of the end also when a node is lost on the way") {
  Job job(2, 2);
  job.join(0);
  job.join(1);
  job.controller->interrupt(SIGINT, job.now);
  job.controller->lost(1, LinkEvent::silent, "nothing heard for 5 s", job.now);
  job.obey(0);
  CHECK(job.outcome().exit_code == 130);
}

TEST_CASE("what goes wrong in preparing is an error and not the end of the process") {
  ControllerOptions options;
  options.version = "1";
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> {
    throw std::runtime_error("out of luck");
  };
  Port port;
  const auto now = std::chrono::steady_clock::now();
  Controller controller(options, port, now);
  NodeOffer offer;
  offer.host = offer.key = "a";
  offer.slots = 1;
  offer.addresses = {"10.0.0.1"};
  controller.received(
      1, {static_cast<uint16_t>(JobMessage::hello), 0, encode(HelloMessage{"1", "a", offer})}, 0ns,
      now);
  REQUIRE(controller.outcome());
  CHECK(controller.outcome()->exit_code == 1);
  CHECK(controller.outcome()->report[0].what.find("out of luck") != std::string::npos);
}

TEST_CASE("a node that is signalled leaves and the others go on") {
  Job job(2, 3, 0, true);
  for (int node = 0; node < 3; ++node) job.join(node);
  job.signalled(1, SIGTERM);
  CHECK(job.port.notices.back() ==
        "m1: SIGTERM arrived there: it leaves, and the job goes on with 2 nodes");
  for (int node = 0; node < 3; ++node) {
    REQUIRE(job.port.last(JobMessage::stop, node) != nullptr);
    const auto stop = decode_stop(job.port.last(JobMessage::stop, node)->body);
    CHECK(stop->grace == 30s);  // as for growth: they may save
    CHECK(!stop->kill);
  }
  job.obey(1);
  // It need not wait for the others.
  REQUIRE(job.finished(1));
  CHECK(job.finished(1)->exit_code == 143);
  CHECK(job.finished(1)->report[0].code == "run.stopped");
  CHECK(job.port.closed == std::vector<LinkId>{1});
  job.ended(0, 0, 1, true);  // a handler of TERM that says 1
  job.ended(0, 1, 143, true);
  job.stopped(0);
  job.ended(2, 4, 1);  // lost its peer before its own TERM
  job.ended(2, 5, 143, true);
  job.stopped(2);
  REQUIRE(!job.controller->outcome());
  CHECK(job.controller->generation() == 1);
  CHECK(job.worlds == std::vector<int>{6, 4});
  CHECK(job.port.last(JobMessage::assign, 1)->generation == 0);
  // The end of its link is no event, and its last words are nobody's.
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  job.signalled(1, SIGTERM);
  for (const int node : {0, 2}) {
    const int rank = node == 0 ? 0 : 2;
    job.ended(node, rank, 0);
    job.ended(node, rank + 1, 0);
    job.stopped(node);
  }
  CHECK(job.outcome().exit_code == 0);
  CHECK(job.port.count(JobMessage::finish) == 3);
}

TEST_CASE("a node that leaves ends as its own ranks did") {
  Job job(1, 3, 0, true, true);
  for (int node = 0; node < 3; ++node) job.join(node);
  job.signalled(2, SIGINT);
  SUBCASE("with a checkpoint") {
    job.ended(2, 4, 75, true);
    job.ended(2, 5, 75, true);
    job.stopped(2);
    CHECK(job.finished(2)->exit_code == 75);
    CHECK(job.finished(2)->report.empty());
  }
  SUBCASE("with a failure of its own, before it was asked") {
    job.ended(2, 4, 42, false);
    job.ended(2, 5, 143, true);
    job.stopped(2);
    CHECK(job.finished(2)->exit_code == 42);
  }
  SUBCASE("killed by the second signal, of which it knows the meaning itself") {
    job.signalled(2, SIGINT);
    CHECK(!decode_stop(job.port.last(JobMessage::stop, 0)->body)->kill);
    job.ended(2, 4, 137, true);
    job.ended(2, 5, 137, true);
    job.stopped(2);
    CHECK(job.finished(2)->exit_code == 130);
  }
  SUBCASE("with a program that it could not run") {
    StoppedMessage stopped;
    stopped.errors = {{.code = "launch.program_missing", .what = "no such program"}};
    stopped.exit_code = 127;
    job.tell(2, JobMessage::stopped, encode(stopped), 0);
    CHECK(job.finished(2)->exit_code == 127);
    CHECK(job.finished(2)->report[0].what == "m2: no such program");
  }
  for (const int node : {0, 1}) job.obey(node);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{6, 4});
}

TEST_CASE("a signal ends the whole job where nobody can be missed") {
  SUBCASE("at the controller's own node") {
    Job job(1, 2, 0, true);
    for (const int node : {0, 1}) job.join(node);
    job.signalled(0, SIGTERM);
    for (const int node : {0, 1}) job.obey(node);
    CHECK(job.outcome().exit_code == 143);
  }
  SUBCASE("at a job of fixed size") {
    Job job(2, 2, 3, true);
    for (const int node : {0, 1}) job.join(node);
    job.signalled(1, SIGTERM);
    CHECK(job.port.notices.back() == "m1: SIGTERM arrived there, so the job is stopped");
    for (const int node : {0, 1}) job.obey(node);
    CHECK(job.outcome().exit_code == 143);
  }
  SUBCASE("at a second node when one has just left") {
    Job job(2, 3, 0, true);
    for (const int node : {0, 1, 2}) job.join(node);
    job.signalled(1, SIGTERM);
    job.signalled(2, SIGTERM);
    CHECK(job.port.notices.back() == "m2: SIGTERM arrived there, so the job is stopped");
    for (const int node : {1, 2, 0}) job.obey(node);
    CHECK(job.outcome().exit_code == 143);
    CHECK(job.outcome().interrupted);
  }
}

TEST_CASE("a scheduler that signals every node asks once") {
  Job job(2, 2);
  for (const int node : {0, 1}) job.join(node);
  for (const int node : {0, 1}) job.signalled(node, SIGTERM);
  CHECK(!decode_stop(job.port.last(JobMessage::stop, 0)->body)->kill);
  job.signalled(1, SIGTERM);
  CHECK(decode_stop(job.port.last(JobMessage::stop, 0)->body)->kill);
}

TEST_CASE("two nodes may leave at once and somebody else come meanwhile") {
  Job job(1, 4, 0, true);
  for (int node = 0; node < 4; ++node) job.join(node);
  job.signalled(1, SIGTERM);
  job.signalled(3, SIGHUP);
  CHECK(job.port.notices.back() ==
        "m3: SIGHUP arrived there: it leaves, and the job goes on with 2 nodes");
  CHECK(job.port.count(JobMessage::stop) == 4);  // once each
  for (const int node : {3, 0, 1}) job.obey(node);
  job.join(4);
  job.obey(2);
  job.pass(10s);  // the last call
  CHECK(job.finished(1)->exit_code == 143);
  CHECK(job.finished(3)->exit_code == 129);
  CHECK(job.controller->generation() == 1);
  CHECK(job.worlds == std::vector<int>{8, 6});
}

TEST_CASE("who leaves without a part is let go at once") {
  SUBCASE("a spare") {
    Job job(2, 2, 0, true);
    for (const int node : {0, 1, 2}) job.join(node);
    job.signalled(2, SIGTERM);
    CHECK(job.port.notices.back() == "m2: SIGTERM arrived there: it leaves");
    CHECK(job.finished(2)->exit_code == 143);
    CHECK(job.port.count(JobMessage::stop) == 0);
  }
  SUBCASE("before the start") {
    Job job(2, 4, 0, true);
    for (const int node : {0, 1, 2}) job.join(node);
    job.signalled(1, SIGINT);
    CHECK(job.finished(1)->exit_code == 130);
    job.pass(11s);
    CHECK(job.worlds == std::vector<int>{4});
  }
  SUBCASE("its ranks are done") {
    Job job(1, 2, 0, true);
    for (const int node : {0, 1}) job.join(node);
    job.ended(1, 2, 0);
    job.ended(1, 3, 0);
    job.stopped(1);
    job.signalled(1, SIGTERM);
    CHECK(job.finished(1)->exit_code == 0);
    CHECK(job.port.count(JobMessage::stop) == 0);
  }
}

TEST_CASE("what ranks do when others stopped for a newcomer is no failure") {
  Job job(1, 3, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.pass(11s);
  job.join(2);
  job.obey(0);
  // Its peers were gone before it was asked itself.
  job.ended(1, 2, 1, false);
  job.ended(1, 3, 1, false);
  job.stopped(1);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{4, 6});
}

TEST_CASE("a newcomer that cannot run its part is let go and the others go on") {
  Job job(1, 3, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.pass(11s);
  job.join(2);
  for (const int node : {0, 1}) job.obey(node);
  StoppedMessage stopped;
  stopped.errors = {{.code = "launch.remote_files", .what = "cannot read /runs/a"}};
  stopped.exit_code = 4;
  job.tell(2, JobMessage::stopped, encode(stopped), 1);
  REQUIRE(job.finished(2));
  CHECK(job.finished(2)->exit_code == 4);
  CHECK(job.port.notices.back() ==
        "m2: cannot read /runs/a [launch.remote_files]: the job goes on with 2 nodes");
  for (const int node : {0, 1}) job.obey(node);
  job.pass(11s);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{4, 6, 4});
}

TEST_CASE("a layout that fits no fewer nodes ends the job as the signal did") {
  Job job(1, 2, 0, true, true);
  job.least_world = 4;
  for (const int node : {0, 1}) job.join(node);
  job.signalled(1, SIGTERM);
  for (const int rank : {2, 3}) job.ended(1, rank, 75, true);
  job.stopped(1);
  for (const int rank : {0, 1}) job.ended(0, rank, 75, true);
  job.stopped(0);
  job.pass(11s);
  CHECK(job.outcome().exit_code == 75);
  REQUIRE(job.outcome().warnings.size() == 1);
  CHECK(job.outcome().warnings[0] == "it cannot go on with fewer nodes: no such layout");
}

TEST_CASE("a newcomer that is about to be let in is counted") {
  Job job(2, 3, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.pass(11s);
  job.join(2);
  job.signalled(1, SIGTERM);
  job.signalled(2, SIGTERM);
  CHECK(job.port.notices.back() == "m2: SIGTERM arrived there, so the job is stopped");
  for (const int node : {0, 1}) job.obey(node);
  CHECK(job.outcome().exit_code == 143);
}

TEST_CASE("a word of leaving that was long under way still explains what peers did") {
  Job job(1, 2, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.ended(0, 0, 1, false, -400ms);
  job.signalled(1, SIGTERM, -1000ms);
  for (const int node : {0, 1}) job.obey(node);
  job.pass(11s);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{4, 2});
}

TEST_CASE("a command that is typed twice does not cost the first one its place") {
  Job job(2, 2, 1);
  for (const int node : {0, 1}) job.join(node);
  job.join(7, 1);
  CHECK(job.port.count(JobMessage::refuse) == 1);
  job.ended(0, 0, 3);
  for (const int node : {0, 1}) job.obey(node);
  CHECK(job.worlds == std::vector<int>{4, 4});
}

TEST_CASE("a failure long before a node leaves counts as one") {
  Job job(1, 2, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.ended(0, 0, 3, false, -60s);
  job.signalled(1, SIGTERM);
  CHECK(job.port.notices.back() == "m1: SIGTERM arrived there: it leaves");
  job.ended(0, 1, 143, true);
  job.stopped(0);
  job.obey(1);
  CHECK(job.outcome().exit_code == 3);
}

TEST_CASE("a failure in the moment that a node leaves is because of that") {
  Job job(1, 2, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.ended(0, 0, 1);  // its peer is gone
  job.signalled(1, SIGTERM);
  job.ended(0, 1, 143, true);
  job.stopped(0);
  job.obey(1);
  CHECK(!job.controller->outcome());
  CHECK(job.port.notices.back() == "going on with 1 node");
  CHECK(job.worlds == std::vector<int>{4, 2});
}

TEST_CASE("a node that leaves and is lost on the way is a lost one") {
  Job job(1, 3, 0, true);
  for (int node = 0; node < 3; ++node) job.join(node);
  job.signalled(2, SIGTERM);
  for (const int node : {0, 1}) {
    job.ended(node, 2 * node, 0);
    job.ended(node, 2 * node + 1, 0);
    job.stopped(node);
  }
  job.controller->lost(2, LinkEvent::closed, "it closed the connection", job.now);
  CHECK(!job.controller->outcome());  // what its ranks had done is not known
  CHECK(job.worlds == std::vector<int>{6, 4});
}

TEST_CASE("the last node's program is missing: everybody is told once") {
  Job job(1, 1);
  job.join(0);
  StoppedMessage stopped;
  stopped.errors = {{.code = "launch.program_missing", .what = "no such program"}};
  stopped.exit_code = 127;
  job.tell(0, JobMessage::stopped, encode(stopped), 0);
  CHECK(job.outcome().exit_code == 127);
  CHECK(job.port.count(JobMessage::finish) == 1);
}
