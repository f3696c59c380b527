// The generator: orders of forwards and backwards, written out as instructions.
#include "runtime/plan/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <functional>
#include <queue>

namespace mtl {

const char* op_name(Op op) {
  static constexpr std::array kNames = {"load",         "recv_act", "forward",   "send_act",
                                        "recv_grad",    "backward", "send_grad", "weight_grads",
                                        "reduce_grads", "step"};
  return kNames[static_cast<size_t>(op)];
}

namespace {

struct ChunkStep {
  int micro_batch = 0;
  int chunk = 0;
};

// The forwards of any stage in order: `group` micro-batches take one chunk in turn, then the next.
// The backwards take the same order with the chunks reversed. The last group is filled up with
// micro-batches that do not exist: a stage passes over them, which leaves the interleaving of what
// exists as it is in the full schedule. (Counted without them, a stage could wait for a chunk of
// the last group that another gives only after backwards that the first has still to run.)
std::vector<ChunkStep> forward_order(const ScheduleShape& shape, int group) {
  std::vector<ChunkStep> order;
  for (int begin = 0; begin < shape.micro_batches; begin += group) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int mb = begin; mb < begin + group; ++mb) order.push_back({mb, chunk});
    }
  }
  return order;
}

// Chunk-steps that a stage runs forward before its first backward, were there enough of them.
int warmup(const ScheduleShape& shape, int stage, int group) {
  const int after = shape.stages - stage - 1;
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      break;
    case ScheduleKind::one_forward_one_backward:
      return after;
    case ScheduleKind::interleaved:
      return 2 * after + (shape.chunks - 1) * group;
  }
  return shape.micro_batches * shape.chunks;
}

// Slots of one pool: the lowest that is free is taken.
class Slots {
 public:
  int take() {
    if (free_.empty()) return used_++;
    const int slot = free_.top();
    free_.pop();
    return slot;
  }
  void free(int slot) { free_.push(slot); }

 private:
  std::priority_queue<int, std::vector<int>, std::greater<>> free_;
  int used_ = 0;  // slots 0 .. used_ - 1 are taken, or in free_
};

// Surrounds the forwards and backwards of one stage with their transfers, and gives them slots.
class ProgramWriter {
 public:
  ProgramWriter(const ScheduleShape& shape, int stage)
      : shape_(shape),
        stage_(stage),
        slots_(static_cast<size_t>(shape.micro_batches * shape.chunks)) {
    program_.reserve(slots_.size() * 7 + 2);
  }

  void forward(ChunkStep at) {
    const int slot = activations_.take();
    slots_[index(at)] = slot;
    if (first(at) || last(at)) add(Op::load, at, slot);
    if (!first(at)) add(Op::recv_act, at, slot);
    add(Op::forward, at, slot);
    if (!last(at)) add(Op::send_act, at, slot);
  }

  void backward(ChunkStep at) {
    const int slot = slots_[index(at)];
    if (!last(at)) add(Op::recv_grad, at);
    if (shape_.weights_later) {
      const int later = gradients_.take();
      add(Op::backward, at, slot, later);
      left_.push({Op::weight_grads, at.micro_batch, at.chunk, slot, later});
    } else {
      add(Op::backward, at, slot);
      activations_.free(slot);
    }
    if (!first(at)) add(Op::send_grad, at);
  }

  // Passes whose weights' gradients have been left for later, and those of the first of them.
  int left() const { return static_cast<int>(left_.size()); }
  void weight_grads() {
    const Instruction in = left_.front();
    left_.pop();
    program_.push_back(in);
    activations_.free(in.slot);
    gradients_.free(in.later);
  }

  Program finish() {
    program_.push_back({.op = Op::reduce_grads});
    program_.push_back({.op = Op::step});
    return std::move(program_);
  }

 private:
  bool first(ChunkStep at) const { return stage_ == 0 && at.chunk == 0; }
  bool last(ChunkStep at) const {
    return stage_ == shape_.stages - 1 && at.chunk == shape_.chunks - 1;
  }
  size_t index(ChunkStep at) const {
    return static_cast<size_t>(at.chunk * shape_.micro_batches + at.micro_batch);
  }
  void add(Op op, ChunkStep at, int slot = 0, int later = 0) {
    program_.push_back({op, at.micro_batch, at.chunk, slot, later});
  }

  const ScheduleShape& shape_;
  int stage_;
  Program program_;
  std::vector<int> slots_;  // of each (chunk, micro-batch)
  Slots activations_, gradients_;
  std::queue<Instruction> left_;  // weight_grads to come
};

}  // namespace

std::vector<Program> make_schedule(const ScheduleShape& shape) {
  assert(shape.stages >= 1 && shape.chunks >= 1 && shape.micro_batches >= 1 && shape.group >= 0);
  assert(shape.chunks == 1 || shape.kind != ScheduleKind::one_forward_one_backward);
  assert(!shape.weights_later || shape.kind != ScheduleKind::gpipe);
  const int group = shape.kind != ScheduleKind::interleaved ? shape.micro_batches
                    : shape.group > 0                       ? shape.group
                                                            : shape.stages;
  assert(shape.kind != ScheduleKind::interleaved || group >= shape.stages);
  const std::vector<ChunkStep> order = forward_order(shape, group);
  const auto reversed = [&](ChunkStep at) {
    return ChunkStep{at.micro_batch, shape.chunks - 1 - at.chunk};
  };
  const auto exists = [&](ChunkStep at) { return at.micro_batch < shape.micro_batches; };
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) {
    ProgramWriter writer(shape, stage);
    const size_t ahead = std::min(order.size(), static_cast<size_t>(warmup(shape, stage, group)));
    for (size_t i = 0; i < order.size() + ahead; ++i) {
      if (i < order.size() && exists(order[i])) writer.forward(order[i]);
      if (i >= ahead && exists(order[i - ahead])) writer.backward(reversed(order[i - ahead]));
      if (writer.left() > stage) writer.weight_grads();
    }
    while (writer.left() > 0) writer.weight_grads();
    programs.push_back(writer.finish());
  }
  return programs;
}

}  // namespace mtl
