// The controller of a job that nodes leave and join while it runs.
#include "launcher/told_job.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

TEST_CASE("ranks that end with an error when they make room for a node have not failed") {
  ToldJob job(1, 2, 0, true);
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

TEST_CASE("who was asked to stop for a newcomer has not failed however it ends") {
  ToldJob job(1, 2, 0, true);
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
  ToldJob job(1, 2, 0, true);
  job.join(0);
  job.pass(11s);
  job.join(1);
  job.ended(0, 0, 0);
  job.ended(0, 1, 0);
  job.stopped(0);
  CHECK(job.outcome().exit_code == 0);
}

TEST_CASE("a node that is signalled leaves and the others go on") {
  ToldJob job(2, 3, 0, true);
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
  ToldJob job(1, 3, 0, true, true);
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
    ToldJob job(1, 2, 0, true);
    for (const int node : {0, 1}) job.join(node);
    job.signalled(0, SIGTERM);
    for (const int node : {0, 1}) job.obey(node);
    CHECK(job.outcome().exit_code == 143);
  }
  SUBCASE("at a job of fixed size") {
    ToldJob job(2, 2, 3, true);
    for (const int node : {0, 1}) job.join(node);
    job.signalled(1, SIGTERM);
    CHECK(job.port.notices.back() == "m1: SIGTERM arrived there, so the job is stopped");
    for (const int node : {0, 1}) job.obey(node);
    CHECK(job.outcome().exit_code == 143);
  }
  SUBCASE("at a second node when one has just left") {
    ToldJob job(2, 3, 0, true);
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
  ToldJob job(2, 2);
  for (const int node : {0, 1}) job.join(node);
  for (const int node : {0, 1}) job.signalled(node, SIGTERM);
  CHECK(!decode_stop(job.port.last(JobMessage::stop, 0)->body)->kill);
  job.signalled(1, SIGTERM);
  CHECK(decode_stop(job.port.last(JobMessage::stop, 0)->body)->kill);
}

TEST_CASE("two nodes may leave at once and somebody else come meanwhile") {
  ToldJob job(1, 4, 0, true);
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
    ToldJob job(2, 2, 0, true);
    for (const int node : {0, 1, 2}) job.join(node);
    job.signalled(2, SIGTERM);
    CHECK(job.port.notices.back() == "m2: SIGTERM arrived there: it leaves");
    CHECK(job.finished(2)->exit_code == 143);
    CHECK(job.port.count(JobMessage::stop) == 0);
  }
  SUBCASE("before the start") {
    ToldJob job(2, 4, 0, true);
    for (const int node : {0, 1, 2}) job.join(node);
    job.signalled(1, SIGINT);
    CHECK(job.finished(1)->exit_code == 130);
    job.pass(11s);
    CHECK(job.worlds == std::vector<int>{4});
  }
  SUBCASE("its ranks are done") {
    ToldJob job(1, 2, 0, true);
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
  ToldJob job(1, 3, 0, true);
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
  ToldJob job(1, 3, 0, true);
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
  ToldJob job(1, 2, 0, true, true);
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
  ToldJob job(2, 3, 0, true);
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
  ToldJob job(1, 2, 0, true);
  for (const int node : {0, 1}) job.join(node);
  job.ended(0, 0, 1, false, -400ms);
  job.signalled(1, SIGTERM, -1000ms);
  for (const int node : {0, 1}) job.obey(node);
  job.pass(11s);
  CHECK(!job.controller->outcome());
  CHECK(job.worlds == std::vector<int>{4, 2});
}

TEST_CASE("a failure long before a node leaves counts as one") {
  ToldJob job(1, 2, 0, true);
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
  ToldJob job(1, 2, 0, true);
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
  ToldJob job(1, 3, 0, true);
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
