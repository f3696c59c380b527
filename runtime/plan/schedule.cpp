#include "runtime/plan/schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>

#include <fmt/format.h>

namespace mtl {

const char* op_name(Op op) {
  static constexpr std::array kNames = {"load",      "recv_act",     "forward",
                                        "send_act",  "recv_grad",    "backward",
                                        "send_grad", "reduce_grads", "step"};
  return kNames[static_cast<size_t>(op)];
}

Program one_forward_one_backward(int stages, int stage, int micro_batches) {
  Program program;
  const bool first = stage == 0;
  const bool last = stage == stages - 1;
  auto forward = [&](int mb) {
    if (first || last) program.push_back({Op::load, mb});
    if (!first) program.push_back({Op::recv_act, mb});
    program.push_back({Op::forward, mb});
    if (!last) program.push_back({Op::send_act, mb});
  };
  auto backward = [&](int mb) {
    if (!last) program.push_back({Op::recv_grad, mb});
    program.push_back({Op::backward, mb});
    if (!first) program.push_back({Op::send_grad, mb});
  };
  const int warmup = std::min(stages - stage - 1, micro_batches);
  for (int mb = 0; mb < warmup; ++mb) forward(mb);
  for (int mb = warmup; mb < micro_batches; ++mb) {
    forward(mb);
    backward(mb - warmup);
  }
  for (int mb = micro_batches - warmup; mb < micro_batches; ++mb) backward(mb);
  program.push_back({Op::reduce_grads});
  program.push_back({Op::step});
  return program;
}

namespace {

// One stage while its program is executed.
struct StageState {
  size_t next = 0;
  int clock = 0;
  int in_flight = 0;
  int peak = 0;
  std::vector<int> forwards, backwards;  // times run, by micro-batch
};

struct Message {
  int micro_batch;
  int ready;  // time at which it can be received
};

}  // namespace

std::optional<ScheduleFacts> simulate(const std::vector<Program>& programs, int micro_batches,
                                      std::string& problem) {
  const int stages = static_cast<int>(programs.size());
  const auto count = static_cast<size_t>(micro_batches);
  std::vector<StageState> states(programs.size());
  for (StageState& state : states) {
    state.forwards.assign(count, 0);
    state.backwards.assign(count, 0);
  }
  // Messages under way: activations into stage s, gradients into stage s; first in, first out.
  std::vector<std::deque<Message>> activations(programs.size()), gradients(programs.size());

  auto fail = [&](int stage, const Instruction& in, const std::string& why) {
    problem = fmt::format("stage {}: {} of micro-batch {}: {}", stage, op_name(in.op),
                          in.micro_batch, why);
    return std::nullopt;
  };

  bool moved = true;
  while (moved) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      const auto at = static_cast<size_t>(s);
      StageState& state = states[at];
      while (state.next < programs[at].size()) {
        const Instruction& in = programs[at][state.next];
        if (in.micro_batch < 0 || in.micro_batch >= micro_batches) {
          return fail(s, in, "there is no such micro-batch");
        }
        const auto mb = static_cast<size_t>(in.micro_batch);
        bool blocked = false;
        auto receive = [&](std::deque<Message>& queue) -> bool {
          if (queue.empty()) {
            blocked = true;
            return true;
          }
          if (queue.front().micro_batch != in.micro_batch) return false;
          state.clock = std::max(state.clock, queue.front().ready);
          queue.pop_front();
          return true;
        };
        switch (in.op) {
          case Op::load:
            break;
          case Op::forward:
            if (state.forwards[mb]++ != 0) return fail(s, in, "it is run twice");
            state.clock += 1;
            state.peak = std::max(state.peak, ++state.in_flight);
            break;
          case Op::backward:
            if (state.forwards[mb] == 0) return fail(s, in, "its forward has not run");
            if (state.backwards[mb]++ != 0) return fail(s, in, "it is run twice");
            state.clock += 2;
            --state.in_flight;
            break;
          case Op::send_act:
            if (s + 1 >= stages) return fail(s, in, "there is no next stage");
            if (state.forwards[mb] == 0) return fail(s, in, "its forward has not run");
            activations[at + 1].push_back({in.micro_batch, state.clock});
            break;
          case Op::send_grad:
            if (s == 0) return fail(s, in, "there is no previous stage");
            if (state.backwards[mb] == 0) return fail(s, in, "its backward has not run");
            gradients[at - 1].push_back({in.micro_batch, state.clock});
            break;
          case Op::recv_act:
            if (!receive(activations[at])) return fail(s, in, "another micro-batch arrives first");
            break;
          case Op::recv_grad:
            if (!receive(gradients[at])) return fail(s, in, "another micro-batch arrives first");
            break;
          case Op::reduce_grads:
          case Op::step:
            for (size_t i = 0; i < count; ++i) {
              if (state.backwards[i] != 1) {
                return fail(s, in, fmt::format("micro-batch {} has no backward yet", i));
              }
            }
            break;
        }
        if (blocked) break;
        ++state.next;
        moved = true;
      }
    }
  }
  ScheduleFacts facts;
  for (int s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    if (states[at].next < programs[at].size()) {
      return fail(s, programs[at][states[at].next], "waits forever (deadlock)");
    }
    if (!activations[at].empty() || !gradients[at].empty()) {
      problem = fmt::format("stage {}: a message is sent that it never receives", s);
      return std::nullopt;
    }
    for (size_t i = 0; i < count; ++i) {
      if (states[at].backwards[i] != 1) {
        problem = fmt::format("stage {}: micro-batch {} is left over", s, i);
        return std::nullopt;
      }
    }
    facts.peak_in_flight.push_back(states[at].peak);
    facts.makespan = std::max(facts.makespan, states[at].clock);
  }
  facts.ideal = 3 * micro_batches;
  return facts;
}

}  // namespace mtl
