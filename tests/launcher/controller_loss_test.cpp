// The controller of a job that loses nodes, or does not get them.
#include "launcher/told_job.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("a lost node ends a fixed job and names the node") {
  ToldJob job(2, 2, 3);
  job.join(0);
  job.join(1);
  job.controller->lost(1, LinkEvent::silent, "nothing heard for 5 s", job.now);
  CHECK(job.port.last(JobMessage::stop, 0) != nullptr);
  job.obey(0);
  CHECK(job.outcome().exit_code == 7);
  CHECK(job.outcome().report[0].code == "launch.node_lost");
  CHECK(job.outcome().report[0].what.find("m1") != std::string::npos);
}

TEST_CASE("a node that has not heard of the launcher in time accuses the launcher") {
  ToldJob job(2, 2);
  job.join(0);
  job.join(1);
  job.tell(1, JobMessage::unheard, "", 0);
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  job.obey(0);
  CHECK(job.outcome().exit_code == 7);
  CHECK(job.outcome().report[0].code == "launch.node_lost");
  CHECK(job.outcome().report[0].help.find("this launcher") != std::string::npos);
}

TEST_CASE("with min:max the job goes on without a lost node and that costs no restart") {
  ToldJob job(3, 4, 0, true);
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

TEST_CASE("a node that is lost after its part was done is no loss") {
  ToldJob job(2, 2);
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
  ToldJob job(2, 2, 0, true);
  for (int node = 0; node < 3; ++node) job.join(node);
  job.controller->lost(1, LinkEvent::closed, "it closed the connection", job.now);
  job.obey(0);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{4, 4});
}

TEST_CASE("a node that is lost between its ranks' end and a restart is spoken of") {
  ToldJob job(2, 2, 1, true);
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
  ToldJob job(2, 2, 1, true);
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
  ToldPort port;
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
  ToldPort port;
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
  tell(2, "b", JobMessage::problems, encode(ProblemsMessage{4, two}));
  tell(1, "a", JobMessage::problems, encode(ProblemsMessage{4, two}));
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

TEST_CASE(
    "hosts: a job fails with the exit code of what keeps its hosts out, if that is one thing") {
  ControllerOptions options;
  options.membership.min_nodes = options.membership.max_nodes = 2;
  options.membership.expected = {"a", "b"};
  options.version = "1";
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> { return {}; };
  const auto exit_code_of = [&](const std::vector<int>& codes) {
    ToldPort port;
    const auto now = std::chrono::steady_clock::now();
    Controller controller(options, port, now);
    for (size_t i = 0; i < codes.size(); ++i) {
      NodeJob job;
      job.position = static_cast<int>(i);
      const LinkId link = i + 1;
      controller.expect(link, options.membership.expected[i], job);
      const ProblemsMessage problems{codes[i],
                                     {{.code = "launch.x", .what = std::to_string(codes[i])}}};
      controller.received(link, {static_cast<uint16_t>(JobMessage::problems), 0, encode(problems)},
                          0ns, now);
    }
    if (codes.size() < 2) controller.host_failed(1, {.code = "ssh.connect", .what = "b"}, now);
    REQUIRE(controller.outcome());
    return controller.outcome()->exit_code;
  };
  CHECK(exit_code_of({127, 127}) == 127);
  CHECK(exit_code_of({127, 126}) == 4);
  CHECK(exit_code_of({127}) == 4);
}

TEST_CASE("survivors that fail because their peer's machine vanished do not hide the loss") {
  ToldJob job(2, 2);
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

TEST_CASE("a node that neither stops nor dies is given up") {
  ToldJob job(2, 2);
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
  ToldPort port;
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
  ToldPort port;
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
  ToldJob job(1, 1);
  job.pass(61s);
  CHECK(job.outcome().report.back().what == "the node that the job needs is not there after 60 s");
}

TEST_CASE("a request is the reason of the end also when a node is lost on the way") {
  ToldJob job(2, 2);
  job.join(0);
  job.join(1);
  job.controller->interrupt(SIGINT, job.now);
  job.controller->lost(1, LinkEvent::silent, "nothing heard for 5 s", job.now);
  job.obey(0);
  CHECK(job.outcome().exit_code == 130);
}
