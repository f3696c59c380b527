// Schedules: the programs by hand where they are small, and by property for every shape of the bar
// (p 1..16, v 1..4, m 1..64).
#include "runtime/plan/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace mtl;

namespace {

constexpr auto kGpipe = ScheduleKind::gpipe;
constexpr auto k1F1B = ScheduleKind::one_forward_one_backward;
constexpr auto kInterleaved = ScheduleKind::interleaved;

// Computation only, W the gradients of weights that are left for later: "F0a B0a W0a".
std::string order_of(const Program& program) {
  std::string text;
  for (const Instruction& in : program) {
    if (in.op != Op::forward && in.op != Op::backward && in.op != Op::weight_grads) continue;
    if (!text.empty()) text += ' ';
    const char name = in.op == Op::forward ? 'F' : in.op == Op::backward ? 'B' : 'W';
    text += fmt::format("{}{}{}", name, in.micro_batch, static_cast<char>('a' + in.chunk));
  }
  return text;
}

// The number of pairs in flight at most; exactly, where groups are whole.
int formula_peak(const ScheduleShape& shape, int stage) {
  const int all = shape.micro_batches * shape.chunks;
  const int after = shape.stages - stage - 1;
  const int group = shape.group > 0 ? shape.group : shape.stages;
  // ZB-H1: one more for each stage before this one.
  const int later = shape.weights_later ? stage : 0;
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      return all;
    case ScheduleKind::one_forward_one_backward:
      return std::min(after + 1 + later, all);
    case ScheduleKind::interleaved:
      return std::min(2 * after + (shape.chunks - 1) * group + 1 + later, all);
  }
  return 0;
}

bool whole_groups(const ScheduleShape& shape) {
  return shape.kind != kInterleaved ||
         shape.micro_batches % (shape.group > 0 ? shape.group : shape.stages) == 0;
}

// Checks one shape: what the simulator says, and what it should have checked, counted by hand.
// Gives the facts, or the first thing that is wrong.
ScheduleFacts check_shape(const ScheduleShape& shape, std::string& wrong) {
  const std::vector<Program> programs = make_schedule(shape);
  auto facts = simulate(programs, shape, wrong);
  if (!facts) return {};
  const auto pairs = static_cast<size_t>(shape.micro_batches * shape.chunks);
  for (int s = 0; s < shape.stages; ++s) {
    const auto at = static_cast<size_t>(s);
    std::vector<int> forwards(pairs), backwards(pairs), weights(pairs);
    std::vector<int> next_backward(static_cast<size_t>(shape.chunks));
    std::vector<int> next_weights = next_backward;
    for (const Instruction& in : programs[at]) {
      const auto pair = static_cast<size_t>(in.chunk * shape.micro_batches + in.micro_batch);
      if (in.op == Op::forward) ++forwards[pair];
      if (in.op == Op::weight_grads) {
        ++weights[pair];
        if (in.micro_batch != next_weights[static_cast<size_t>(in.chunk)]++ ||
            backwards[pair] != 1) {
          wrong = fmt::format("stage {}: weights' gradients out of order", s);
        }
      }
      if (in.op != Op::backward) continue;
      ++backwards[pair];
      if (in.micro_batch != next_backward[static_cast<size_t>(in.chunk)]++) {
        wrong = fmt::format("stage {}: the backwards of chunk {} do not ascend", s, in.chunk);
      }
    }
    const std::vector<int> once(pairs, 1);
    const std::vector<int> later(pairs, shape.weights_later ? 1 : 0);
    if (forwards != once || backwards != once || weights != later) {
      wrong = fmt::format("stage {} is incomplete", s);
    }
    // Those of as many passes wait as there are stages before this one.
    const int waiting =
        shape.weights_later ? std::min(s + 1, shape.micro_batches * shape.chunks) : 0;
    if (facts->later[at] != waiting) {
      wrong = fmt::format("stage {}: {} wait, not {}", s, facts->later[at], waiting);
    }
    const int peak = facts->peak_in_flight[at];
    const int formula = formula_peak(shape, s);
    if (whole_groups(shape) ? peak != formula : peak > formula) {
      wrong = fmt::format("stage {}: peak {}, not {}", s, peak, formula);
    }
    if (facts->slots[at] != facts->peak_in_flight[at]) {
      wrong = fmt::format("stage {}: {} slots, peak {}", s, facts->slots[at],
                          facts->peak_in_flight[at]);
    }
  }
  return *facts;
}

// Where groups are whole (p - 1) / (m v); else no longer than with the last one filled up.
void check_bubble(const ScheduleShape& shape, const ScheduleFacts& facts, std::string& wrong) {
  if (whole_groups(shape)) {
    // ZB-H1: a third of it, of a forward, the rest of a backward and weights' gradients that take
    // the same time (arXiv 2401.10241).
    const double part = shape.weights_later ? 1.0 / 3 : 1;
    const double formula = part * (shape.stages - 1.0) / (shape.micro_batches * shape.chunks);
    if (std::abs(facts.bubble - formula) > 1e-12) {
      wrong = fmt::format("bubble {}, not {}", facts.bubble, formula);
    }
    return;
  }
  const int group = shape.group > 0 ? shape.group : shape.stages;
  const int filled = (shape.micro_batches + group - 1) / group * group;
  const double longest = 3.0 * (filled * shape.chunks + shape.stages - 1);
  if (facts.makespan > longest) {
    wrong = fmt::format("makespan {}, above {}", facts.makespan, longest);
  }
}

}  // namespace

TEST_CASE("one stage: load and forward and backward per micro-batch then reduce and step") {
  CHECK(make_schedule({.micro_batches = 2}) == std::vector<Program>{{{Op::load, 0},
                                                                     {Op::forward, 0},
                                                                     {Op::backward, 0},
                                                                     {Op::load, 1},
                                                                     {Op::forward, 1},
                                                                     {Op::backward, 1},
                                                                     {Op::reduce_grads},
                                                                     {Op::step}}});
}

TEST_CASE("two stages of 1F1B in full") {
  const auto programs = make_schedule({.stages = 2, .micro_batches = 2});
  CHECK(programs[0] == Program{{Op::load, 0, 0, 0},
                               {Op::forward, 0, 0, 0},
                               {Op::send_act, 0, 0, 0},
                               {Op::load, 1, 0, 1},
                               {Op::forward, 1, 0, 1},
                               {Op::send_act, 1, 0, 1},
                               {Op::recv_grad, 0},
                               {Op::backward, 0, 0, 0},
                               {Op::recv_grad, 1},
                               {Op::backward, 1, 0, 1},
                               {Op::reduce_grads},
                               {Op::step}});
  CHECK(programs[1] == Program{{Op::load, 0},
                               {Op::recv_act, 0},
                               {Op::forward, 0},
                               {Op::backward, 0},
                               {Op::send_grad, 0},
                               {Op::load, 1},
                               {Op::recv_act, 1},
                               {Op::forward, 1},
                               {Op::backward, 1},
                               {Op::send_grad, 1},
                               {Op::reduce_grads},
                               {Op::step}});
}

TEST_CASE("the orders are those of the papers") {
  const auto one = make_schedule({.stages = 4, .micro_batches = 5});
  CHECK(order_of(one[0]) == "F0a F1a F2a F3a B0a F4a B1a B2a B3a B4a");
  CHECK(order_of(one[3]) == "F0a B0a F1a B1a F2a B2a F3a B3a F4a B4a");
  const auto all = make_schedule({.kind = kGpipe, .stages = 2, .chunks = 2, .micro_batches = 3});
  for (const Program& program : all) {
    CHECK(order_of(program) == "F0a F1a F2a F0b F1b F2b B0b B1b B2b B0a B1a B2a");
  }
  // By hand, after Figure 4 of arXiv 2104.04473, which has p = 4.
  const auto two =
      make_schedule({.kind = kInterleaved, .stages = 2, .chunks = 2, .micro_batches = 4});
  CHECK(order_of(two[0]) == "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  CHECK(order_of(two[1]) == "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
}

TEST_CASE("every schedule is valid and has the known peak and slots and bubble") {
  int shapes = 0;
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      for (int v = 1; v <= 4; ++v) {
        for (const auto& [kind, later] :
             {std::pair(kGpipe, false), std::pair(k1F1B, false), std::pair(kInterleaved, false),
              std::pair(k1F1B, true), std::pair(kInterleaved, true)}) {
          if (kind == k1F1B && v > 1) continue;
          const ScheduleShape shape = {
              .kind = kind, .stages = p, .chunks = v, .micro_batches = m, .weights_later = later};
          std::string wrong;
          const ScheduleFacts facts = check_shape(shape, wrong);
          // GPipe with fewer micro-batches than stages waits for the way round to the next chunk;
          // and ZB-H1 has fewer weights' gradients than would fill the bubble.
          const bool waits = m < p && ((kind == kGpipe && v > 1) || later);
          if (wrong.empty() && !waits) check_bubble(shape, facts, wrong);
          if (later && wrong.empty()) {
            ScheduleShape plain = shape;
            plain.weights_later = false;
            const auto without = simulate(make_schedule(plain), plain, wrong);
            if (!without || facts.makespan > without->makespan) wrong = "longer than at once";
          }
          ++shapes;
          CAPTURE(static_cast<int>(kind));
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(m);
          REQUIRE(wrong == "");
        }
      }
    }
  }
  CHECK(shapes == 16 * 64 * (4 + 1 + 4 + 1 + 4));
}

TEST_CASE("ZB-H1 is 1F1B with the weights' gradients where stages would wait") {
  // By hand, after Figure 3 of arXiv 2401.10241, which has p = 4.
  const auto programs = make_schedule({.stages = 3, .micro_batches = 4, .weights_later = true});
  CHECK(order_of(programs[0]) == "F0a F1a F2a B0a W0a F3a B1a W1a B2a W2a B3a W3a");
  CHECK(order_of(programs[1]) == "F0a F1a B0a F2a B1a W0a F3a B2a W1a B3a W2a W3a");
  CHECK(order_of(programs[2]) == "F0a B0a F1a B1a F2a B2a W0a F3a B3a W1a W2a W3a");
  // Its gradient leaves before the weights' own.
  const Program& last = programs[2];
  for (size_t i = 0; i < last.size(); ++i) {
    if (last[i].op == Op::backward) CHECK(last[i + 1].op == Op::send_grad);
  }
}

TEST_CASE("a third of a backward that comes later shortens a step by what it fills") {
  std::string problem;
  ScheduleShape shape = {.kind = k1F1B, .stages = 4, .micro_batches = 8};
  const ScheduleTimes times = {.forward = 10, .backward = 22, .weight_grads = 8, .weight = {}};
  const auto plain = simulate(make_schedule(shape), shape, problem, times);
  shape.weights_later = true;
  const auto later = simulate(make_schedule(shape), shape, problem, times);
  REQUIRE(plain);
  REQUIRE(later);
  CHECK(later->ideal == plain->ideal);
  CHECK(plain->makespan == 8 * 32 + 3 * 32);
  // arXiv 2401.10241: (p - 1) (forward + backward - 2 weights' gradients).
  CHECK(later->makespan == 8 * 32 + 3 * (32 - 2 * 8));
}

TEST_CASE("interleaved groups other than the stages are valid too") {
  for (int p : {1, 2, 3, 4, 8}) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = 1; m <= 24; ++m) {
        for (int group = p; group <= m + 2; ++group) {
          const ScheduleShape shape = {
              .kind = kInterleaved, .stages = p, .chunks = v, .micro_batches = m, .group = group};
          std::string wrong;
          const ScheduleFacts facts = check_shape(shape, wrong);
          if (wrong.empty()) check_bubble(shape, facts, wrong);
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(m);
          CAPTURE(group);
          REQUIRE(wrong == "");
          ScheduleShape later = shape;
          later.weights_later = true;
          const ScheduleFacts shorter = check_shape(later, wrong);
          REQUIRE(wrong == "");
          REQUIRE(shorter.makespan <= facts.makespan);
        }
      }
    }
  }
}

TEST_CASE("a last group that is not full keeps the interleaving") {
  // Counted without the micro-batches that do not exist, this one never ends: stage 0 waits for
  // micro-batch 4 to come round through chunk 1, stage 3 for a gradient of stage 0 before that.
  const auto programs =
      make_schedule({.kind = kInterleaved, .stages = 4, .chunks = 3, .micro_batches = 5});
  CHECK(order_of(programs[3]) ==
        "F0a F1a F2a F3a F0b F1b F2b F3b F0c B0c F1c B1c F2c B2c F3c B3c F4a B0b B1b B2b B3b F4b "
        "B0a B1a B2a B3a F4c B4c B4b B4a");
}

TEST_CASE("the times of chunks reach the makespan") {
  std::string problem;
  const ScheduleShape shape = {.stages = 2, .micro_batches = 4};
  const auto programs = make_schedule(shape);
  const auto even = simulate(programs, shape, problem,
                             {.forward = 2, .backward = 3, .weight_grads = 0, .weight = {}});
  REQUIRE(even);
  CHECK(even->ideal == 20);
  CHECK(even->makespan == 25);
  // The second stage is the slow one and never waits after its first forward has arrived; the first
  // has the last backward.
  const auto uneven = simulate(programs, shape, problem, {.weight = {{1}, {3}}});
  REQUIRE(uneven);
  CHECK(uneven->ideal == 36);
  CHECK(uneven->makespan == 1 + 36 + 2);
  REQUIRE(uneven->spans.size() == 16);
  const Span& first = uneven->spans.front();
  CHECK(std::tuple(first.stage, first.op, first.start, first.end) ==
        std::tuple(0, Op::forward, 0.0, 1.0));
}

TEST_CASE("1F1B and interleaved schedules need room for few messages whatever their length") {
  for (int p = 2; p <= 8; ++p) {
    for (const int m : {1, 2, 7, 8, 24, 64}) {
      CAPTURE(p);
      CAPTURE(m);
      std::string problem;
      ScheduleShape plain{.kind = ScheduleKind::one_forward_one_backward,
                          .stages = p,
                          .micro_batches = m,
                          .channel_capacity = 1};
      CHECK(simulate(make_schedule(plain), plain, problem).has_value());
      ScheduleShape later = plain;
      later.weights_later = true;
      CHECK(simulate(make_schedule(later), later, problem).has_value());
      ScheduleShape gpipe = plain;
      gpipe.kind = ScheduleKind::gpipe;
      CHECK(simulate(make_schedule(gpipe), gpipe, problem).has_value());
      ScheduleShape interleaved = plain;
      interleaved.kind = ScheduleKind::interleaved;
      interleaved.chunks = 3;
      interleaved.channel_capacity = 2;
      CAPTURE(problem);
      CHECK(simulate(make_schedule(interleaved), interleaved, problem).has_value());
      interleaved.weights_later = true;
      CHECK(simulate(make_schedule(interleaved), interleaved, problem).has_value());
    }
  }
  // All forwards of a chunk before the next chunk's first: the ring fills.
  ScheduleShape ring{.kind = ScheduleKind::gpipe,
                     .stages = 2,
                     .chunks = 2,
                     .micro_batches = 160,
                     .channel_capacity = 64};
  std::string problem;
  CHECK_FALSE(simulate(make_schedule(ring), ring, problem).has_value());
  CHECK(problem.find("deadlock") != std::string::npos);
}
