// The schedule as data: per stage a list of instructions, generated here, validated offline, drawn
// by `mtl plan`, and executed by the engine's interpreter. The shape follows DeepSpeed's pipeline
// schedule (instructions as data); the orders are those of GPipe (arXiv 1811.06965),
// PipeDream-flush and its interleaved form (arXiv 2104.04473, Megatron-LM), and ZB-H1 (zero bubble,
// arXiv 2401.10241).
//
// With v chunks, stage s of p holds the virtual stages s, p + s, 2p + s, ...: a micro-batch passes
// through all p * v of them in order, so that activations go from the last stage round to the first
// where a chunk ends. With p = 1 a stage sends to itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace mtl {

enum class Op {
  load,      // read the micro-batch's tokens (virtual first and virtual last stage)
  recv_act,  // from the previous virtual stage
  forward,
  send_act,      // to the next virtual stage
  recv_grad,     // from the next virtual stage
  backward,      // all of it; or, weights_later, but for what weight_grads does
  send_grad,     // to the previous virtual stage
  weight_grads,  // weights_later: the products that give gradients of weights
  reduce_grads,  // over data parallel ranks, once per step
  step,          // clip, optimizer
};
const char* op_name(Op op);

struct Instruction {
  Op op = Op::load;
  int micro_batch = 0;
  int chunk = 0;  // of this rank; the virtual stage is chunk * stages + stage
  int slot = 0;   // of load, recv_act, forward, send_act, backward, weight_grads: where the
                  // activations of (micro_batch, chunk) live
  int later = 0;  // of backward and weight_grads with weights_later: where the gradients lie that
                  // backward leaves to weight_grads
  bool operator==(const Instruction&) const = default;
};
using Program = std::vector<Instruction>;

enum class ScheduleKind { gpipe, one_forward_one_backward, interleaved };

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_forward_one_backward;
  int stages = 1;         // p
  int chunks = 1;         // v, per stage; one_forward_one_backward has 1
  int micro_batches = 1;  // m, per step
  int group = 0;          // interleaved: micro-batches that take one chunk in turn, >= p; 0 = p
  bool weights_later = false;  // not of gpipe
  // Messages that fit between a stage and its neighbour, each way; a send beyond waits for a
  // receive. 0 = any number. Changes no program, only what simulate() accepts.
  int channel_capacity = 0;
};

// The program of every stage; each ends with reduce_grads, step.
//
//  - gpipe: all forwards, then all backwards.
//  - one_forward_one_backward: stage s warms up with p - s - 1 forwards, then one forward and one
//    backward in turn, then the backwards that are left.
//  - interleaved: the same over chunk-steps; the first `group` micro-batches take chunk 0, then
//    chunk 1, ..., then the next `group` do; backwards take the chunks the other way round. Stage s
//    warms up with 2(p - s - 1) + (v - 1) group chunk-steps. A group has at least p micro-batches
//    (a smaller one may deadlock); the last is one with some left out if m is no multiple of it,
//    which costs a larger bubble than (p - 1) / (m v).
//
//
// With weights_later (ZB-H1, where there are no chunks) a backward makes only what the stage before
// waits for. Stage s leaves the weights' gradients of s chunk-steps for later, when it would wait
// for others: of forwards and backwards that take f and b, w of b for weights, the bubble is
// (p - 1) (f + b - 2 w) / v in place of (p - 1) (f + b) / v. No stage has more under way than the
// first has without.
//
// In each, the backwards of a chunk ascend by micro-batch, and so do the weights' gradients, so
// that gradients are added in the order of a run without a pipeline. A forward takes the lowest
// free slot of its rank (one pool over all chunks) and its backward, or weight_grads, frees it, so
// a rank needs as many slots as it has pairs in flight; a backward likewise takes a slot for what
// it leaves for later. A receive stands right before its use, a send right after what it sends.
std::vector<Program> make_schedule(const ScheduleShape& shape);

// What a forward and a backward of a chunk take, in any unit (a chunk of an evenly cut model does
// 1/v of its stage's work). All chunks alike unless `weight` gives a factor for [stage][chunk].
struct ScheduleTimes {
  double forward = 1;
  double backward = 2;
  double weight_grads = 1;  // of the backward, where the schedule divides it
  std::vector<std::vector<double>> weight;
};

// When a stage did what, in the unit of ScheduleTimes.
struct Span {
  int stage = 0;
  Op op = Op::forward;  // forward, backward or weight_grads
  int micro_batch = 0;
  int chunk = 0;
  double start = 0;
  double end = 0;
};

struct ScheduleFacts {
  // Per stage: the most (micro-batch, chunk) pairs with a forward and no end of their backward yet.
  std::vector<int> peak_in_flight;
  std::vector<int> slots;   // per stage: highest slot used + 1
  std::vector<int> later;   // the same of Instruction::later; 0 where nothing is left for later
  double makespan = 0;      // of the slowest stage, transfers taking no time
  double ideal = 0;         // the busiest stage's own work
  double bubble = 0;        // makespan / ideal - 1
  std::vector<Span> spans;  // each stage's in the order of time
};

// Runs the programs of all stages against each other, `forward`, `backward` and `weight_grads`
// taking the given times and everything else none. Sends never wait. Activations and gradients
// travel on channels of their own, first in, first out. Returns the facts, or in `problem` the
// first violation: something that runs twice, too early, or on the wrong stage; a message that
// arrives before the expected one; a slot that is not free, or not its own; a chunk's backwards or
// weight_grads out of order; a deadlock; a micro-batch left over; a program that does not end with
// reduce_grads and step.
std::optional<ScheduleFacts> simulate(const std::vector<Program>& programs,
                                      const ScheduleShape& shape, std::string& problem,
                                      const ScheduleTimes& times = {});

}  // namespace mtl
