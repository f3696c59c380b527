// The controller of a job: its start, failures, requests, layouts, and its end.
#include <nlohmann/json.hpp>

#include "launcher/told_job.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("a node that counts silence in another way is refused") {
  ToldJob job(2, 2);
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

TEST_CASE("a node that was told of another number of nodes or ranks is refused") {
  // Of a job of two nodes with two ranks each, whose command says how many there are in all or not.
  const auto refusal_of = [](bool total_said, int nodes, int ranks, int slots) {
    ToldJob job(2, 2, 0, false, false, false, total_said);
    job.join(0);
    NodeOffer offer;
    offer.host = "m1";
    offer.key = offer.host;
    offer.slots = slots;
    offer.rank = 1;
    HelloMessage hello{"1", offer.host, offer};
    hello.nodes = nodes;
    hello.ranks = ranks;
    job.tell(1, JobMessage::hello, encode(hello), 0);
    const ToldMessage* refused = job.port.last(JobMessage::refuse, 1);
    CHECK((job.port.count(JobMessage::assign) == 2) == (refused == nullptr));
    if (refused == nullptr) return std::string();
    CHECK(decode_diagnostics(refused->body)->front().code == "launch.join");
    return decode_diagnostics(refused->body)->front().what;
  };
  CHECK(refusal_of(true, 2, 4, 2) == "");
  CHECK(refusal_of(true, 3, 6, 2) == "m1 was started for 3 machines and this job for 2");
  CHECK(refusal_of(true, 2, 6, 3) == "m1 was started for 6 ranks in all and this job for 4");
  // One of the two says only what its own node has.
  CHECK(refusal_of(true, 2, 0, 2) == "");
  CHECK(refusal_of(true, 2, 0, 3) == "m1 was started for 6 ranks in all and this job for 4");
  CHECK(refusal_of(false, 2, 4, 2) == "");
  CHECK(refusal_of(false, 2, 6, 3) == "m1 was started for 6 ranks in all and this job for 4");
  // Both do.
  CHECK(refusal_of(false, 2, 0, 3) == "");
}

TEST_CASE("a job starts when all nodes are there and ends when all have done their part") {
  ToldJob job(2, 2);
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
  ToldJob job(2, 2);
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
  ToldJob job(2, 2, 1);
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
  ToldJob job(1, 1, 3, false, true);
  job.join(0);
  job.ended(0, 0, 3);
  job.ended(0, 1, 143, true);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 3);
}

TEST_CASE("messages of another generation are nobody's") {
  ToldJob job(2, 2, 1);
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

TEST_CASE("a layout that fewer nodes cannot take is tried with fewer still") {
  ToldJob job(1, 4, 0, true);
  job.legal_world = 4;
  for (int node = 0; node < 4; ++node) job.join(node);
  CHECK(job.worlds == std::vector<int>{8, 6, 4});
  CHECK(job.port.count(JobMessage::assign) == 2);
}

TEST_CASE("an impossible layout is the job's end and its exit code that of the error") {
  ToldJob job(2, 2);
  job.legal_world = 3;
  job.join(0);
  job.join(1);
  CHECK(job.outcome().exit_code == 3);
  CHECK(job.outcome().report[0].code == "mesh.world");
}

TEST_CASE("who is missing is said after five seconds and the wait has an end") {
  ToldJob job(3, 3);
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

TEST_CASE("of hosts that are given up with another it is said that they had not answered") {
  ToldJob job(3, 3, 0, false, false, true);
  job.join_listed(0, "a", false);
  job.controller->host_failed(1, {.code = "ssh.connect", .what = "m1: no connection"}, job.now);
  job.pass(10s);
  const std::vector<Diagnostic>& report = job.outcome().report;
  REQUIRE(report.size() == 2);
  CHECK(report[0].code == "ssh.connect");
  CHECK(report[1].code == "launch.nodes");
  CHECK(report[1].notes == std::vector<std::string>{"missing: m1", "no answer yet: m2"});
}

TEST_CASE("two nodes with one machine_rank: the second is refused with a reason") {
  ToldJob job(2, 2);
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

TEST_CASE("an offer of an mtl that knew fewer fields is refused for its version, not passed over") {
  ToldJob job(2, 2);
  job.join(0);
  NodeOffer offer;
  offer.host = offer.key = "old";
  offer.slots = 2;
  offer.rank = 1;
  offer.addresses = {"10.0.0.9"};
  auto hello = nlohmann::json::parse(encode(HelloMessage{"0", "old", offer}));
  hello.erase("dead_after_ms");
  for (const char* field : {"machine", "on_gpus"}) REQUIRE(hello.at("offer").erase(field) == 1);
  job.tell(7, JobMessage::hello, hello.dump(), 0);
  const auto* refused = job.port.last(JobMessage::refuse, 7);
  REQUIRE(refused != nullptr);
  CHECK(refused->body.find("launch.version") != std::string::npos);
}

TEST_CASE("two names of one machine are an error where it has GPUs, and else a warning") {
  ToldJob job(3, 3, 0, false, false, true);
  SUBCASE("GPUs") {
    job.join_listed(0, "one", true);
    job.join_listed(1, "two", true);
    job.join_listed(2, "one", true);
    REQUIRE(job.outcome().report.size() == 1);
    CHECK(job.outcome().exit_code == 3);
    const Diagnostic& why = job.outcome().report[0];
    CHECK(why.code == "hosts.duplicate");
    CHECK(why.what.starts_with("m0 (line 1), m2 (line 4) are one machine"));
    REQUIRE(why.place);
    CHECK(why.place->line == 4);
    CHECK(job.port.count(JobMessage::assign) == 0);
  }
  SUBCASE("none") {
    for (int i = 0; i < 3; ++i) job.join_listed(i, "one", false);
    CHECK(job.port.count(JobMessage::assign) == 3);
    REQUIRE(job.port.notices.size() == 1);
    CHECK(job.port.notices[0].starts_with("warning: m0 (line 1), m1 (line 2), m2 (line 4) are"));
  }
  SUBCASE("not known") {
    for (int i = 0; i < 3; ++i) job.join_listed(i, "", true);
    CHECK(job.port.count(JobMessage::assign) == 3);
    CHECK(job.port.notices.empty());
  }
}

TEST_CASE("a job that cannot be for a version of mtl waits until the others can be told") {
  ToldJob job(4, 4);
  job.join(0);
  job.tell(5, JobMessage::hello, encode(HelloMessage{"2", "old", {}}), 0);
  CHECK(!job.controller->outcome());
  job.join(2);
  job.pass(10s);
  CHECK(!job.controller->outcome());
  SUBCASE("they come") {
    job.join(3);
  }
  SUBCASE("they do not") {
    job.pass(6s);
    CHECK_FALSE(job.finished(3));
  }
  REQUIRE(job.controller->outcome());
  REQUIRE(job.finished(2));
  CHECK(job.finished(2)->report.front().code == "launch.version");
}

TEST_CASE("another version is refused") {
  ToldJob job(1, 1);
  job.tell(5, JobMessage::hello, encode(HelloMessage{"2", "old", {}}), 0);
  const auto why = decode_diagnostics(job.port.last(JobMessage::refuse, 5)->body);
  REQUIRE(why);
  CHECK(why->front().code == "launch.version");
}

TEST_CASE("another version in a job of fixed machines ends it, once machine 0 is in it") {
  ToldJob job(2, 2);
  SUBCASE("the other one comes first") {
    job.tell(5, JobMessage::hello, encode(HelloMessage{"2", "old", {}}), 0);
    CHECK(!job.controller->outcome());
    job.join(0);
  }
  SUBCASE("machine 0 comes first") {
    job.join(0);
    job.tell(5, JobMessage::hello, encode(HelloMessage{"2", "old", {}}), 0);
  }
  CHECK(job.outcome().exit_code == 4);
  CHECK(job.outcome().report[0].what == "old has mtl 2, and this is mtl 1");
  CHECK(job.port.last(JobMessage::finish, 0) != nullptr);
  CHECK(job.port.last(JobMessage::refuse, 5) != nullptr);
}

TEST_CASE("a request stops with grace, the second one kills") {
  ToldJob job(2, 2);
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
  ToldJob job(2, 2);
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
  ToldJob job(2, 2);
  job.join(0);
  job.controller->interrupt(SIGUSR2, job.now);
  CHECK(job.outcome().exit_code == 75);
  CHECK(job.outcome().signal == SIGUSR2);
}

TEST_CASE("ranks that stop on request with a checkpoint make the job's code 75") {
  ToldJob job(1, 1, 3, false, true);
  job.join(0);
  job.controller->interrupt(SIGTERM, job.now);
  job.ended(0, 0, 75, true);
  job.ended(0, 1, 75, true);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 75);
}

TEST_CASE("what goes wrong in preparing is an error and not the end of the process") {
  ControllerOptions options;
  options.version = "1";
  options.prepare = [](int, int64_t) -> std::optional<JobProgram> {
    throw std::runtime_error("out of luck");
  };
  ToldPort port;
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

TEST_CASE("a command that is typed twice does not cost the first one its place") {
  ToldJob job(2, 2, 1);
  for (const int node : {0, 1}) job.join(node);
  job.join(7, 1);
  CHECK(job.port.count(JobMessage::refuse) == 1);
  job.ended(0, 0, 3);
  for (const int node : {0, 1}) job.obey(node);
  CHECK(job.worlds == std::vector<int>{4, 4});
}

TEST_CASE("the last node's program is missing: everybody is told once") {
  ToldJob job(1, 1);
  job.join(0);
  StoppedMessage stopped;
  stopped.errors = {{.code = "launch.program_missing", .what = "no such program"}};
  stopped.exit_code = 127;
  job.tell(0, JobMessage::stopped, encode(stopped), 0);
  CHECK(job.outcome().exit_code == 127);
  CHECK(job.port.count(JobMessage::finish) == 1);
}
