// The validator and simulator of schedules: the programs of all stages run against each other.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

#include "runtime/plan/schedule/schedule.h"

namespace mtl {

namespace {

// What has been done for a (micro-batch, chunk) on a stage: a bit for each Op.
using Ops = uint32_t;

constexpr Ops bit(Op op) {
  return 1u << static_cast<int>(op);
}

template <typename... T>
constexpr Ops ops(T... op) {
  return (bit(op) | ...);
}

// Everything that a virtual stage does for a micro-batch, each once.
Ops all_ops(bool first, bool last, bool weights_later) {
  Ops all = ops(Op::forward, Op::backward);
  if (weights_later) all |= bit(Op::weight_grads);
  if (first || last) all |= bit(Op::load);
  if (!first) all |= ops(Op::recv_act, Op::send_grad);
  if (!last) all |= ops(Op::send_act, Op::recv_grad);
  return all;
}

// What must come before `op`, where the virtual stage does it at all.
Ops ops_before(Op op) {
  switch (op) {
    case Op::forward:
      return ops(Op::load, Op::recv_act);
    case Op::send_act:
      return bit(Op::forward);
    case Op::backward:
      return ops(Op::forward, Op::recv_grad);
    case Op::send_grad:
    case Op::weight_grads:
      return bit(Op::backward);
    default:
      return 0;
  }
}

// The first of `missing`, which has at least one.
const char* first_name(Ops missing) {
  int op = 0;
  while ((missing >> op & 1u) == 0) ++op;
  return op_name(static_cast<Op>(op));
}

struct Message {
  int micro_batch = 0;
  int chunk = 0;     // of the receiver
  double ready = 0;  // when it can be received
};

// Messages of one kind into one stage; they all come from the same neighbour.
struct Channel {
  std::vector<Message> messages;
  size_t received = 0;
};

constexpr int kFree = -1;

struct Stage {
  size_t next = 0;  // instruction
  double clock = 0;
  double work = 0;
  int in_flight = 0;
  int peak = 0;
  std::vector<Ops> done;  // of each pair: chunk * micro_batches + micro_batch
  // The pair that each slot holds, or kFree: of activations, and of what is left for later.
  std::vector<int> slots, later;
  // Per chunk: lowest micro-batch that may come.
  std::vector<int> next_backward, next_weight_grads;
  Channel activations, gradients;
  bool reduced = false;
  bool stepped = false;
};

enum class Outcome { done, blocked, failed };

class Simulation {
 public:
  Simulation(const std::vector<Program>& programs, const ScheduleShape& shape,
             const ScheduleTimes& times)
      : programs_(programs), shape_(shape), times_(times), stages_(programs.size()) {
    const auto pairs = static_cast<size_t>(shape.chunks) * static_cast<size_t>(shape.micro_batches);
    for (Stage& stage : stages_) {
      stage.done.assign(pairs, 0);
      stage.next_backward.assign(static_cast<size_t>(shape.chunks), 0);
      stage.next_weight_grads = stage.next_backward;
    }
    facts_.spans.reserve((shape.weights_later ? 3 : 2) * pairs * stages_.size());
  }

  std::optional<ScheduleFacts> run() {
    if (static_cast<int>(programs_.size()) != shape_.stages) {
      problem_ = fmt::format("{} programs for {} stages", programs_.size(), shape_.stages);
      return std::nullopt;
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < shape_.stages; ++s) {
        const Program& program = programs_[static_cast<size_t>(s)];
        Stage& stage = stages_[static_cast<size_t>(s)];
        for (; stage.next < program.size(); ++stage.next) {
          const Outcome outcome = execute(s, stage, program[stage.next]);
          if (outcome == Outcome::failed) return std::nullopt;
          if (outcome == Outcome::blocked) break;
          moved = true;
        }
      }
    }
    if (!complete()) return std::nullopt;
    return conclude();
  }

  std::string take_problem() { return std::move(problem_); }

 private:
  Ops all_of(int s, int chunk) const {
    return all_ops(first(s, chunk), last(s, chunk), shape_.weights_later);
  }
  bool first(int s, int chunk) const { return s == 0 && chunk == 0; }
  bool last(int s, int chunk) const { return s == shape_.stages - 1 && chunk == shape_.chunks - 1; }
  int pair(const Instruction& in) const { return in.chunk * shape_.micro_batches + in.micro_batch; }

  std::string pair_text(int micro_batch, int chunk) const {
    return shape_.chunks == 1 ? fmt::format("micro-batch {}", micro_batch)
                              : fmt::format("micro-batch {}, chunk {}", micro_batch, chunk);
  }
  std::string pair_text(int of_pair) const {
    return pair_text(of_pair % shape_.micro_batches, of_pair / shape_.micro_batches);
  }

  Outcome fail(int s, const Instruction& in, const std::string& why) {
    const bool whole = in.op == Op::reduce_grads || in.op == Op::step;
    problem_ = whole ? fmt::format("stage {}: {}: {}", s, op_name(in.op), why)
                     : fmt::format("stage {}: {} of {}: {}", s, op_name(in.op),
                                   pair_text(in.micro_batch, in.chunk), why);
    return Outcome::failed;
  }

  Outcome execute(int s, Stage& stage, const Instruction& in) {
    if (stage.stepped) return fail(s, in, "it comes after the step");
    if (in.op == Op::reduce_grads || in.op == Op::step) return finish_step(s, stage, in);
    if (in.micro_batch < 0 || in.micro_batch >= shape_.micro_batches) {
      return fail(s, in, "there is no such micro-batch");
    }
    if (in.chunk < 0 || in.chunk >= shape_.chunks) return fail(s, in, "there is no such chunk");

    Ops& done = stage.done[static_cast<size_t>(pair(in))];
    const Ops all = all_of(s, in.chunk);
    if ((all & bit(in.op)) == 0) return fail(s, in, "this virtual stage has none");
    if ((done & bit(in.op)) != 0) return fail(s, in, "it is run twice");
    const Ops missing = ops_before(in.op) & all & ~done;
    if (missing != 0) return fail(s, in, fmt::format("its {} has not run", first_name(missing)));

    const Outcome outcome = effect(s, stage, in);
    if (outcome == Outcome::done) done |= bit(in.op);
    return outcome;
  }

  Outcome effect(int s, Stage& stage, const Instruction& in) {
    switch (in.op) {
      case Op::load:
        return take_slot(s, stage, in);
      case Op::recv_act: {
        const Outcome outcome = receive(s, stage, in, stage.activations);
        return outcome == Outcome::done ? take_slot(s, stage, in) : outcome;
      }
      case Op::recv_grad:
        return receive(s, stage, in, stage.gradients);
      case Op::forward:
        // A slot is its own since the load or the receive that stands before every forward.
        if (!holds(stage, in)) return fail_slot(s, in);
        stage.peak = std::max(stage.peak, ++stage.in_flight);
        compute(s, stage, in, times_.forward);
        return Outcome::done;
      case Op::backward: {
        if (!holds(stage, in)) return fail_slot(s, in);
        if (!ascends(stage.next_backward, in)) return fail_order(s, in);
        if (shape_.weights_later) {
          if (take_slot(s, stage.later, in.later, in) == Outcome::failed) return Outcome::failed;
          compute(s, stage, in, times_.backward - times_.weight_grads);
          return Outcome::done;
        }
        end_backward(stage, in);
        compute(s, stage, in, times_.backward);
        return Outcome::done;
      }
      case Op::weight_grads:
        if (!holds(stage, in)) return fail_slot(s, in);
        if (!held(stage.later, in.later, in)) return fail_slot(s, in, in.later);
        if (!ascends(stage.next_weight_grads, in)) return fail_order(s, in);
        end_backward(stage, in);
        stage.later[static_cast<size_t>(in.later)] = kFree;
        compute(s, stage, in, times_.weight_grads);
        return Outcome::done;
      case Op::send_act: {
        if (!holds(stage, in)) return fail_slot(s, in);
        const bool wraps = s == shape_.stages - 1;
        Stage& to = stages_[wraps ? 0 : static_cast<size_t>(s) + 1];
        return send(to.activations, {in.micro_batch, in.chunk + wraps, stage.clock});
      }
      case Op::send_grad: {
        const bool wraps = s == 0;
        Stage& to = wraps ? stages_.back() : stages_[static_cast<size_t>(s) - 1];
        return send(to.gradients, {in.micro_batch, in.chunk - wraps, stage.clock});
      }
      case Op::reduce_grads:
      case Op::step:
        break;  // finish_step's
    }
    return Outcome::done;
  }

  static bool ascends(std::vector<int>& lowest, const Instruction& in) {
    int& next = lowest[static_cast<size_t>(in.chunk)];
    if (in.micro_batch < next) return false;
    next = in.micro_batch + 1;
    return true;
  }
  Outcome fail_order(int s, const Instruction& in) {
    return fail(s, in, "a later micro-batch's has run: gradients are added in another order");
  }

  static void end_backward(Stage& stage, const Instruction& in) {
    stage.slots[static_cast<size_t>(in.slot)] = kFree;
    --stage.in_flight;
  }

  void compute(int s, Stage& stage, const Instruction& in, double time) {
    if (!times_.weight.empty()) {
      time *= times_.weight[static_cast<size_t>(s)][static_cast<size_t>(in.chunk)];
    }
    const double start = stage.clock;
    stage.clock += time;
    stage.work += time;
    facts_.spans.push_back({s, in.op, in.micro_batch, in.chunk, start, stage.clock});
  }

  Outcome send(Channel& channel, const Message& message) {
    const size_t under_way = channel.messages.size() - channel.received;
    const auto capacity = static_cast<size_t>(shape_.channel_capacity);
    if (capacity > 0 && under_way >= capacity) return Outcome::blocked;
    channel.messages.push_back(message);
    return Outcome::done;
  }

  Outcome receive(int s, Stage& stage, const Instruction& in, Channel& channel) {
    if (channel.received == channel.messages.size()) return Outcome::blocked;
    const Message& front = channel.messages[channel.received];
    if (front.micro_batch != in.micro_batch || front.chunk != in.chunk) {
      return fail(s, in, pair_text(front.micro_batch, front.chunk) + " arrives first");
    }
    ++channel.received;
    stage.clock = std::max(stage.clock, front.ready);
    return Outcome::done;
  }

  Outcome take_slot(int s, Stage& stage, const Instruction& in) {
    // The last virtual stage has both a load and a receive: the second finds the slot taken.
    if (stage.done[static_cast<size_t>(pair(in))] != 0) {
      return holds(stage, in) ? Outcome::done : fail_slot(s, in);
    }
    return take_slot(s, stage.slots, in.slot, in);
  }
  Outcome take_slot(int s, std::vector<int>& slots, int number, const Instruction& in) {
    const auto slot = static_cast<size_t>(number);
    if (number < 0 || slot >= stages_.front().done.size()) {
      return fail(s, in, fmt::format("slot {}: there is no such slot", number));
    }
    if (slot >= slots.size()) slots.resize(slot + 1, kFree);
    if (slots[slot] != kFree) {
      return fail(s, in, fmt::format("slot {} still holds {}", number, pair_text(slots[slot])));
    }
    slots[slot] = pair(in);
    return Outcome::done;
  }

  bool held(const std::vector<int>& slots, int number, const Instruction& in) const {
    return number >= 0 && static_cast<size_t>(number) < slots.size() &&
           slots[static_cast<size_t>(number)] == pair(in);
  }
  bool holds(const Stage& stage, const Instruction& in) const {
    return held(stage.slots, in.slot, in);
  }
  Outcome fail_slot(int s, const Instruction& in) { return fail_slot(s, in, in.slot); }
  Outcome fail_slot(int s, const Instruction& in, int slot) {
    return fail(s, in, fmt::format("slot {} does not hold it", slot));
  }

  Outcome finish_step(int s, Stage& stage, const Instruction& in) {
    const Op end = shape_.weights_later ? Op::weight_grads : Op::backward;
    for (size_t i = 0; i < stage.done.size(); ++i) {
      if ((stage.done[i] & bit(end)) == 0) {
        return fail(s, in,
                    fmt::format("{} has no {} yet", pair_text(static_cast<int>(i)), op_name(end)));
      }
    }
    if (in.op == Op::reduce_grads && stage.reduced) return fail(s, in, "it is run twice");
    if (in.op == Op::step && !stage.reduced) return fail(s, in, "the gradients are not reduced");
    (in.op == Op::step ? stage.stepped : stage.reduced) = true;
    return Outcome::done;
  }

  // Nothing can move any more: has everything run?
  bool complete() {
    for (int s = 0; s < shape_.stages; ++s) {
      const Program& program = programs_[static_cast<size_t>(s)];
      const Stage& stage = stages_[static_cast<size_t>(s)];
      if (stage.next < program.size()) {
        fail(s, program[stage.next], "waits forever (deadlock)");
        return false;
      }
    }
    // Each pair's messages are sent and received exactly once if its own bits are complete, so that
    // the channels are empty then.
    for (int s = 0; s < shape_.stages; ++s) {
      const Stage& stage = stages_[static_cast<size_t>(s)];
      for (size_t i = 0; i < stage.done.size(); ++i) {
        const int chunk = static_cast<int>(i) / shape_.micro_batches;
        const Ops missing = all_of(s, chunk) & ~stage.done[i];
        if (missing != 0) {
          problem_ = fmt::format("stage {}: {} is left over: no {}", s,
                                 pair_text(static_cast<int>(i)), first_name(missing));
          return false;
        }
      }
      if (!stage.stepped) {
        problem_ = fmt::format("stage {}: the program does not end with reduce_grads and step", s);
        return false;
      }
    }
    return true;
  }

  ScheduleFacts conclude() {
    for (const Stage& stage : stages_) {
      facts_.peak_in_flight.push_back(stage.peak);
      facts_.slots.push_back(static_cast<int>(stage.slots.size()));
      facts_.later.push_back(static_cast<int>(stage.later.size()));
      facts_.makespan = std::max(facts_.makespan, stage.clock);
      facts_.ideal = std::max(facts_.ideal, stage.work);
    }
    if (facts_.ideal > 0) facts_.bubble = facts_.makespan / facts_.ideal - 1;
    return std::move(facts_);
  }

  const std::vector<Program>& programs_;
  const ScheduleShape& shape_;
  const ScheduleTimes& times_;
  std::vector<Stage> stages_;
  ScheduleFacts facts_;
  std::string problem_;
};

}  // namespace

std::optional<ScheduleFacts> simulate(const std::vector<Program>& programs,
                                      const ScheduleShape& shape, std::string& problem,
                                      const ScheduleTimes& times) {
  Simulation simulation(programs, shape, times);
  auto facts = simulation.run();
  if (!facts) problem = simulation.take_problem();
  return facts;
}

}  // namespace mtl
