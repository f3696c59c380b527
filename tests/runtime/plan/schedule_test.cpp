#include "runtime/plan/schedule.h"

#include <algorithm>

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("one stage: load, forward, backward per micro-batch, then reduce and step") {
  CHECK(one_forward_one_backward(1, 0, 2) == Program{{Op::load, 0},
                                                     {Op::forward, 0},
                                                     {Op::backward, 0},
                                                     {Op::load, 1},
                                                     {Op::forward, 1},
                                                     {Op::backward, 1},
                                                     {Op::reduce_grads},
                                                     {Op::step}});
}

TEST_CASE("1F1B is complete, free of deadlock, and has the known peak and bubble") {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; m += m < 8 ? 1 : 7) {
      std::vector<Program> programs;
      for (int s = 0; s < p; ++s) programs.push_back(one_forward_one_backward(p, s, m));
      std::string problem;
      const auto facts = simulate(programs, m, problem);
      CAPTURE(p);
      CAPTURE(m);
      REQUIRE_MESSAGE(facts, problem);
      for (int s = 0; s < p; ++s)
        CHECK(facts->peak_in_flight[static_cast<size_t>(s)] == std::min(p - s, m));
      // Bubble (p-1)/m of the ideal time: with forward 1 and backward 2 the makespan is 3(m + p -
      // 1).
      CHECK(facts->makespan == 3 * (m + p - 1));
    }
  }
}

TEST_CASE("the validator finds broken schedules") {
  std::string problem;
  auto two_stages = [] {
    return std::vector<Program>{one_forward_one_backward(2, 0, 2),
                                one_forward_one_backward(2, 1, 2)};
  };
  auto drop = [](Program& program, Op op) {
    program.erase(std::find_if(program.begin(), program.end(),
                               [&](const Instruction& in) { return in.op == op; }));
  };
  SUBCASE("a receive without its send never ends") {
    auto programs = two_stages();
    drop(programs[0], Op::send_act);
    CHECK_FALSE(simulate(programs, 2, problem));
  }
  SUBCASE("a send without its receive") {
    auto programs = two_stages();
    drop(programs[0], Op::recv_grad);
    CHECK_FALSE(simulate(programs, 2, problem));
  }
  SUBCASE("a backward before its forward") {
    CHECK_FALSE(simulate({Program{{Op::backward, 0}}}, 1, problem));
    CHECK(problem == "stage 0: backward of micro-batch 0: its forward has not run");
  }
  SUBCASE("a micro-batch left over") {
    CHECK_FALSE(simulate({one_forward_one_backward(1, 0, 1)}, 2, problem));
  }
  SUBCASE("each waits for the other") {
    CHECK_FALSE(simulate(
        {Program{{Op::forward, 0}, {Op::recv_grad, 0}, {Op::send_act, 0}},
         Program{{Op::recv_act, 0}, {Op::forward, 0}, {Op::backward, 0}, {Op::send_grad, 0}}},
        1, problem));
    CHECK(problem.find("deadlock") != std::string::npos);
  }
  SUBCASE("reduced before the last backward") {
    CHECK_FALSE(
        simulate({Program{{Op::forward, 0}, {Op::reduce_grads}, {Op::backward, 0}}}, 1, problem));
  }
}
