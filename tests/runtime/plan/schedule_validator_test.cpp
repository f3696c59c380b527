// The validator of schedules against programs with one thing wrong.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/schedule/schedule.h"

using namespace mtl;

namespace {

struct Found {
  std::string problem;
  bool valid;
};
Found validate(const std::vector<Program>& programs, const ScheduleShape& shape) {
  std::string problem;
  const bool valid = simulate(programs, shape, problem).has_value();
  return {problem, valid};
}

Program::iterator find(Program& program, Op op, int micro_batch = -1, int chunk = -1) {
  const auto at = std::find_if(program.begin(), program.end(), [&](const Instruction& in) {
    return in.op == op && (micro_batch < 0 || in.micro_batch == micro_batch) &&
           (chunk < 0 || in.chunk == chunk);
  });
  REQUIRE(at != program.end());
  return at;
}

}  // namespace

TEST_CASE("the validator finds what is missing") {
  const ScheduleShape shape = {.stages = 2, .micro_batches = 2};
  auto programs = make_schedule(shape);
  SUBCASE("a send of activations") {
    programs[0].erase(find(programs[0], Op::send_act, 1));
    CHECK(validate(programs, shape).problem ==
          "stage 0: recv_grad of micro-batch 1: waits forever (deadlock)");
  }
  SUBCASE("a send of gradients") {
    programs[1].erase(find(programs[1], Op::send_grad, 1));
    CHECK(validate(programs, shape).problem ==
          "stage 0: recv_grad of micro-batch 1: waits forever (deadlock)");
  }
  SUBCASE("a receive of activations") {
    programs[1].erase(find(programs[1], Op::recv_act, 0));
    CHECK(validate(programs, shape).problem ==
          "stage 1: forward of micro-batch 0: its recv_act has not run");
  }
  SUBCASE("a receive of gradients") {
    programs[0].erase(find(programs[0], Op::recv_grad, 0));
    CHECK(validate(programs, shape).problem ==
          "stage 0: backward of micro-batch 0: its recv_grad has not run");
  }
  SUBCASE("a load on the last stage") {
    programs[1].erase(find(programs[1], Op::load, 1));
    CHECK(validate(programs, shape).problem ==
          "stage 1: forward of micro-batch 1: its load has not run");
  }
  SUBCASE("a forward") {
    programs[0].erase(find(programs[0], Op::forward, 1));
    CHECK(validate(programs, shape).problem ==
          "stage 0: send_act of micro-batch 1: its forward has not run");
  }
  SUBCASE("a backward") {
    CHECK(validate({Program{{Op::load, 0}, {Op::forward, 0}, {Op::reduce_grads}}}, {}).problem ==
          "stage 0: reduce_grads: micro-batch 0 has no backward yet");
  }
  SUBCASE("a micro-batch and all else") {
    CHECK(validate({Program{}}, {}).problem == "stage 0: micro-batch 0 is left over: no load");
  }
  SUBCASE("the reduction") {
    programs[0].erase(find(programs[0], Op::reduce_grads));
    CHECK(validate(programs, shape).problem == "stage 0: step: the gradients are not reduced");
  }
  SUBCASE("the step") {
    programs[1].pop_back();
    CHECK(validate(programs, shape).problem ==
          "stage 1: the program does not end with reduce_grads and step");
  }
  SUBCASE("a stage") {
    programs.pop_back();
    CHECK(validate(programs, shape).problem == "1 programs for 2 stages");
  }
}

TEST_CASE("the validator finds what is out of order") {
  const ScheduleShape shape = {.stages = 2, .micro_batches = 3};
  auto programs = make_schedule(shape);
  const auto move_behind = [](Program& program, Program::iterator what, Op op, int micro_batch) {
    const Instruction in = *what;
    program.erase(what);
    program.insert(find(program, op, micro_batch) + 1, in);
  };
  SUBCASE("two receives swapped") {
    auto gpipe = make_schedule({.kind = ScheduleKind::gpipe, .stages = 2, .micro_batches = 3});
    std::iter_swap(find(gpipe[0], Op::recv_grad, 0), find(gpipe[0], Op::recv_grad, 1));
    CHECK(validate(gpipe, shape).problem ==
          "stage 0: recv_grad of micro-batch 1: micro-batch 0 arrives first");
  }
  SUBCASE("two sends swapped") {
    std::iter_swap(find(programs[0], Op::send_act, 1), find(programs[0], Op::send_act, 2));
    CHECK_FALSE(validate(programs, shape).valid);
  }
  SUBCASE("a backward before its forward") {
    CHECK(validate({Program{{Op::backward, 0}}}, {}).problem ==
          "stage 0: backward of micro-batch 0: its forward has not run");
  }
  SUBCASE("a send before its forward") {
    std::iter_swap(find(programs[0], Op::send_act, 0), find(programs[0], Op::forward, 0));
    CHECK(validate(programs, shape).problem ==
          "stage 0: send_act of micro-batch 0: its forward has not run");
  }
  SUBCASE("a gradient sent before its backward") {
    std::iter_swap(find(programs[1], Op::send_grad, 0), find(programs[1], Op::backward, 0));
    CHECK(validate(programs, shape).problem ==
          "stage 1: send_grad of micro-batch 0: its backward has not run");
  }
  SUBCASE("each waits for the other") {
    const ScheduleShape single = {.stages = 2, .micro_batches = 1};
    programs = make_schedule(single);
    move_behind(programs[0], find(programs[0], Op::send_act, 0), Op::recv_grad, 0);
    CHECK(validate(programs, single).problem ==
          "stage 0: recv_grad of micro-batch 0: waits forever (deadlock)");
  }
  SUBCASE("reduced before the last backward") {
    move_behind(programs[0], find(programs[0], Op::reduce_grads), Op::backward, 1);
    CHECK(validate(programs, shape).problem ==
          "stage 0: reduce_grads: micro-batch 2 has no backward yet");
  }
  SUBCASE("something after the step") {
    move_behind(programs[1], find(programs[1], Op::send_grad, 2), Op::step, -1);
    CHECK(validate(programs, shape).problem ==
          "stage 1: send_grad of micro-batch 2: it comes after the step");
  }
  SUBCASE("backwards that do not ascend") {
    const ScheduleShape two = {.micro_batches = 2};
    CHECK(validate({Program{{Op::load, 0, 0, 0},
                            {Op::load, 1, 0, 1},
                            {Op::forward, 0, 0, 0},
                            {Op::forward, 1, 0, 1},
                            {Op::backward, 1, 0, 1},
                            {Op::backward, 0, 0, 0},
                            {Op::reduce_grads},
                            {Op::step}}},
                   two)
              .problem ==
          "stage 0: backward of micro-batch 0: a later micro-batch's has run: gradients are added "
          "in another order");
  }
  SUBCASE("two chunks of a micro-batch swapped") {
    const ScheduleShape chunks = {
        .kind = ScheduleKind::gpipe, .stages = 2, .chunks = 2, .micro_batches = 1};
    auto gpipe = make_schedule(chunks);
    REQUIRE(validate(gpipe, chunks).valid);
    std::iter_swap(find(gpipe[1], Op::recv_act, 0, 0), find(gpipe[1], Op::recv_act, 0, 1));
    CHECK(validate(gpipe, chunks).problem ==
          "stage 1: recv_act of micro-batch 0, chunk 1: micro-batch 0, chunk 0 arrives first");
  }
  SUBCASE("the way round to the first stage") {
    const ScheduleShape ring = {
        .kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2, .micro_batches = 4};
    auto round = make_schedule(ring);
    REQUIRE(validate(round, ring).valid);
    std::iter_swap(find(round[0], Op::recv_act, 0, 1), find(round[0], Op::recv_act, 1, 1));
    CHECK(validate(round, ring).problem ==
          "stage 0: recv_act of micro-batch 1, chunk 1: micro-batch 0, chunk 1 arrives first");
  }
}

TEST_CASE("the validator finds what is there twice or should not be there") {
  const ScheduleShape shape = {.stages = 2, .micro_batches = 2};
  auto programs = make_schedule(shape);
  const auto twice = [&](int stage, Op op) {
    Program& program = programs[static_cast<size_t>(stage)];
    const auto at = find(program, op);
    program.insert(at, *at);
    return validate(programs, shape).problem;
  };
  const auto replaced = [&](int stage, Op op, Instruction by) {
    *find(programs[static_cast<size_t>(stage)], op) = by;
    return validate(programs, shape).problem;
  };
  SUBCASE("load") {
    CHECK(twice(0, Op::load).ends_with("it is run twice"));
  }
  SUBCASE("receive") {
    CHECK(twice(1, Op::recv_act).ends_with("it is run twice"));
  }
  SUBCASE("forward") {
    CHECK(twice(0, Op::forward).ends_with("it is run twice"));
  }
  SUBCASE("send") {
    CHECK(twice(0, Op::send_act).ends_with("it is run twice"));
  }
  SUBCASE("gradient received") {
    CHECK(twice(0, Op::recv_grad).ends_with("it is run twice"));
  }
  SUBCASE("backward") {
    CHECK(twice(1, Op::backward).ends_with("it is run twice"));
  }
  SUBCASE("gradient sent") {
    CHECK(twice(1, Op::send_grad).ends_with("it is run twice"));
  }
  SUBCASE("reduction") {
    CHECK(twice(1, Op::reduce_grads) == "stage 1: reduce_grads: it is run twice");
  }
  SUBCASE("step") {
    CHECK(twice(1, Op::step) == "stage 1: step: it comes after the step");
  }
  SUBCASE("a send past the last stage") {
    CHECK(replaced(1, Op::send_grad, {Op::send_act, 0}) ==
          "stage 1: send_act of micro-batch 0: this virtual stage has none");
  }
  SUBCASE("no such micro-batch") {
    CHECK(replaced(0, Op::forward, {Op::forward, 2}) ==
          "stage 0: forward of micro-batch 2: there is no such micro-batch");
  }
  SUBCASE("no such chunk") {
    CHECK(replaced(0, Op::forward, {Op::forward, 0, 1}) ==
          "stage 0: forward of micro-batch 0: there is no such chunk");
  }
}

TEST_CASE(
    "the validator finds weights' gradients that are lost, early, out of order or elsewhere") {
  const ScheduleShape shape = {.stages = 2, .micro_batches = 3, .weights_later = true};
  auto programs = make_schedule(shape);
  REQUIRE(validate(programs, shape).valid);
  Program& last = programs[1];
  SUBCASE("lost") {
    last.erase(find(last, Op::weight_grads, 2));
    CHECK(validate(programs, shape).problem ==
          "stage 1: reduce_grads: micro-batch 2 has no weight_grads yet");
  }
  SUBCASE("before the backward") {
    std::iter_swap(find(last, Op::weight_grads, 0), find(last, Op::backward, 0));
    CHECK(validate(programs, shape).problem ==
          "stage 1: weight_grads of micro-batch 0: its backward has not run");
  }
  SUBCASE("out of order") {
    std::iter_swap(find(last, Op::weight_grads, 1), find(last, Op::weight_grads, 2));
    CHECK(validate(programs, shape).problem ==
          "stage 1: weight_grads of micro-batch 1: a later micro-batch's has run: gradients are "
          "added in another order");
  }
  SUBCASE("left where another's lie") {
    find(last, Op::backward, 1)->later = 0;
    CHECK(validate(programs, shape).problem ==
          "stage 1: backward of micro-batch 1: slot 0 still holds micro-batch 0");
  }
  SUBCASE("looked for elsewhere") {
    find(last, Op::weight_grads, 0)->later = 1;
    CHECK(validate(programs, shape).problem ==
          "stage 1: weight_grads of micro-batch 0: slot 1 does not hold it");
  }
  SUBCASE("of activations that are another's") {
    find(last, Op::weight_grads, 0)->slot = 1;
    CHECK(validate(programs, shape).problem ==
          "stage 1: weight_grads of micro-batch 0: slot 1 does not hold it");
  }
  SUBCASE("in a schedule that leaves none") {
    ScheduleShape plain = shape;
    plain.weights_later = false;
    CHECK(validate(programs, plain).problem ==
          "stage 1: weight_grads of micro-batch 0: this virtual stage has none");
  }
}

TEST_CASE("the validator finds slots that are used wrongly") {
  const ScheduleShape shape = {.stages = 2, .micro_batches = 3};
  auto programs = make_schedule(shape);
  const auto with_slot = [&](int stage, Op op, int micro_batch, int slot) {
    find(programs[static_cast<size_t>(stage)], op, micro_batch)->slot = slot;
    return validate(programs, shape).problem;
  };
  SUBCASE("taken while another's backward is to come") {
    CHECK(with_slot(0, Op::load, 1, 0) ==
          "stage 0: load of micro-batch 1: slot 0 still holds micro-batch 0");
  }
  SUBCASE("a receive into another slot than the load's") {
    CHECK(with_slot(1, Op::recv_act, 0, 1) ==
          "stage 1: recv_act of micro-batch 0: slot 1 does not hold it");
  }
  SUBCASE("a forward elsewhere") {
    CHECK(with_slot(0, Op::forward, 1, 0) ==
          "stage 0: forward of micro-batch 1: slot 0 does not hold it");
  }
  SUBCASE("a send from elsewhere") {
    CHECK(with_slot(0, Op::send_act, 1, 0) ==
          "stage 0: send_act of micro-batch 1: slot 0 does not hold it");
  }
  SUBCASE("a backward elsewhere") {
    CHECK(with_slot(0, Op::backward, 0, 1) ==
          "stage 0: backward of micro-batch 0: slot 1 does not hold it");
  }
  SUBCASE("no such slot") {
    CHECK(with_slot(0, Op::load, 0, 3) ==
          "stage 0: load of micro-batch 0: slot 3: there is no such slot");
    CHECK(with_slot(0, Op::load, 0, -1) ==
          "stage 0: load of micro-batch 0: slot -1: there is no such slot");
  }
  SUBCASE("a slot past the peak is allowed and counted") {
    for (Instruction& in : programs[1]) {
      if (in.micro_batch == 1 && in.op != Op::send_grad) in.slot = 2;
    }
    std::string problem;
    const auto facts = simulate(programs, shape, problem);
    REQUIRE_MESSAGE(facts, problem);
    CHECK(facts->slots[1] == 3);
    CHECK(facts->peak_in_flight[1] == 1);
  }
}
