// The schedule as data: per stage a list of instructions, generated here, validated offline, drawn
// by `mtl plan`, and executed by the engine's interpreter. The shape follows DeepSpeed's pipeline
// schedule (instructions as data).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace mtl {

enum class Op {
  load,      // read the micro-batch's tokens (first and last stage)
  recv_act,  // from the previous stage
  forward,
  send_act,   // to the next stage
  recv_grad,  // from the next stage
  backward,
  send_grad,     // to the previous stage
  reduce_grads,  // over data parallel ranks, once per step
  step,          // clip, optimizer
};
const char* op_name(Op op);

struct Instruction {
  Op op = Op::load;
  int micro_batch = 0;
  int chunk = 0;  // virtual stage on this rank
  bool operator==(const Instruction&) const = default;
};
using Program = std::vector<Instruction>;

// One forward, one backward (PipeDream-flush; Megatron-LM's default): stage s warms up with
// min(stages-s-1, m) forwards. With one stage: load, forward, backward per micro-batch. Every
// program ends with reduce_grads, step.
Program one_forward_one_backward(int stages, int stage, int micro_batches);

struct ScheduleFacts {
  std::vector<int> peak_in_flight;  // per stage: micro-batches with a forward and no backward yet
  int makespan = 0;                 // with forward = 1, backward = 2, transfers 0
  int ideal = 0;                    // 3 * micro_batches
};
// Runs the programs of all stages against each other. Returns the facts, or in `problem` the first
// violation: a send without its receive, a deadlock, a backward before its forward, a micro-batch
// left over.
std::optional<ScheduleFacts> simulate(const std::vector<Program>& programs, int micro_batches,
                                      std::string& problem);

}  // namespace mtl
