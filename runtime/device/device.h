// Device: memory and the list of ops that model code is written in. One implementation per kind of
// hardware (cpu/, later cuda/ in a plug-in); every op is checked against a double-precision
// reference over a table of shapes (tests/runtime/device).
//
// Rules that hold for every op:
//  - Ops are enqueued in program order; results are visible to later ops, and to the host after
//  synchronize().
//  - "activation" tensors have the compute type (f32, bf16 or f16, all the same within one call);
//  statistics and losses are f32; parameter
//    gradients are f32. Norms, softmax, losses and reductions compute in f32 whatever the storage
//    type.
//  - Results do not depend on scheduling, nor on the number of threads but for the products of a
//  CPU (where oneDNN decides): every reduction has a fixed order.
//  - `amax` (f32 [1], optional) becomes the larger of its value and the largest magnitude of what
//  the op has written, rounded as it lies there; NaN is larger than any. What makes an operand of
//  FP8 so spares the pass that Device::amax is; the caller has set it to 0.
//  - `accumulate` = false writes the gradient, true adds to it (so that nobody has to zero
//  gradients).
//  - Tensors are contiguous row-major; [n, c] below means rows() x cols().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device/kernel_scratch.h"
#include "runtime/device/op_arguments.h"
#include "runtime/device/step_clock.h"

namespace mtl {

class Device {
 public:
  virtual ~Device() = default;
  // Whether communication goes on beside computation without taking anything from it (a GPU's copy
  // engines and spare multiprocessors do; a CPU's cores are busy): decides what `auto` means.
  virtual bool communicates_beside() const = 0;
  virtual std::string description()
      const = 0;  // "cpu: 2 threads, avx512, bf16 by AMX (oneDNN 2.6.3)"
  // Whether it multiplies FP8.
  virtual bool has_float8() const { return true; }
  // Whether the host may read and write allocated memory itself, once the device is idle.
  virtual bool host_memory() const { return true; }

  // Memory for the arena, 4096-byte aligned, zeroed. With a communicator whose transport wants its
  // own memory (shared memory between ranks) the arena comes from Communicator::allocate instead.
  virtual void* allocate(size_t bytes) = 0;
  // The same in the host's memory, where ops reach it as they reach any other, if slower: over
  // PCIe on a GPU.
  virtual void* allocate_on_host(size_t bytes) { return allocate(bytes); }
  virtual void free(void* pointer) = 0;  // of either kind
  // The largest ops that come next, before the first of them: memory for their partial results is
  // there once and for all, so much as the plan has foretold (gpu_memory.h); and how much that is.
  virtual void expect(const KernelNeeds&) {}
  virtual int64_t scratch_for(const KernelNeeds&) const { return 0; }
  virtual void copy_from_host(Tensor destination, const void* source) = 0;
  virtual void copy_to_host(void* destination, Tensor source) = 0;
  virtual void synchronize() = 0;
  // Of this device's time line. The device outlives it.
  virtual std::unique_ptr<DeviceClock> make_clock();
  // Whether replay() spares the host the enqueuing.
  virtual bool replays() const { return false; }
  // What `enqueue` enqueues, to be done in this order among the other ops. Of calls with one key
  // the device may take what an earlier one enqueued, and not call `enqueue` at all. So all that
  // `enqueue` does is ops, the same ones with the same arguments for the same key: what varies
  // lies in device memory or is part of the key. All else goes through anew().
  virtual void replay(const std::string& key, const std::function<void()>& enqueue) {
    static_cast<void>(key);
    enqueue();
  }
  // Calls `what`: within replay() each time, in this place among the ops, and perhaps only when
  // `enqueue` has returned. For communication, waiting, copies from or to the host, and ops whose
  // arguments are others each time. It outlives `enqueue`, so it captures by value, and what it
  // refers to is there as long as the key is used.
  virtual void anew(const std::function<void()>& what) { what(); }

  virtual void fill(Tensor x, float value) = 0;
  // f32 <-> bf16 or f16, same numel, no overlap. To nearest even; from 65520 on f16 is infinite.
  virtual void cast(Tensor from, Tensor to) = 0;
  virtual void scale(Tensor x, float factor) = 0;  // any compute type
  virtual void add(Tensor x, Tensor y) = 0;        // y += x, same type
  // y = of_x * x + of_y * y; any compute type, rounded once.
  virtual void blend(Tensor x, Tensor y, float of_x, float of_y) = 0;
  // x /= its L2 norm, of all elements, or kLeastNorm where that is larger; any compute type.
  virtual void normalize(Tensor x) = 0;
  virtual void copy(Tensor from, Tensor to) = 0;               // same type and numel, no overlap
  virtual void regroup_columns(const ColumnBlocks& args) = 0;  // one becomes the other
  virtual void matmul(const Matmul& args) = 0;
  // out[0] = the largest |x|, NaN if there is one; x of compute type, out f32.
  virtual void amax(Tensor x, Tensor out) = 0;
  virtual void quantize(const Quantize& args) = 0;
  // db[c] (+)= sum of the rows of dy [n, c]; db f32.
  virtual void bias_grad(Tensor dy, Tensor db, bool accumulate) = 0;
  // sum[c] (+)= rows[0][c], += rows[1][c], ...: few rows [n, c], long ones, in this order and in
  // f32, the same bits on every device; sum f32.
  virtual void sum_rows(Tensor rows, Tensor sum, bool accumulate) = 0;
  virtual void layernorm_forward(const LayerNorm& args) = 0;
  virtual void layernorm_backward(const LayerNormBackward& args) = 0;
  virtual void head_norm_forward(const HeadNorm& args) = 0;
  virtual void head_norm_backward(const HeadNormBackward& args) = 0;
  // squares reads x and writes args.squares, forward reads them; products writes args.products,
  // backward reads them. What an op does not need may be missing.
  virtual void wide_norm_squares(const WideNorm& args) = 0;
  virtual void wide_norm_forward(const WideNorm& args) = 0;
  virtual void wide_norm_products(const WideNormBackward& args) = 0;
  virtual void wide_norm_backward(const WideNormBackward& args) = 0;
  // y = gelu_tanh(x), y distinct from x: the bits that Epilogue::gelu makes of the same aux (but
  // with gelu_once).
  virtual void gelu_forward(Tensor x, Tensor y) = 0;
  // The exact form, x times the normal distribution's integral up to x: y = gelu_exact(x), y
  // distinct from x; dy <- dy * gelu_exact'(x), in place, and y, if there is one, as forward makes
  // it. No product has these.
  virtual void gelu_exact_forward(Tensor x, Tensor y) = 0;
  virtual void gelu_exact_backward(Tensor dy, Tensor x, Tensor y) = 0;
  virtual void swiglu_forward(const Swiglu& args) = 0;
  virtual void swiglu_backward(const SwigluBackward& args) = 0;
  // A token is routed by its logits alone, so ranks and passes that see equal logits agree.
  virtual void route_experts(const RouteExperts& args) = 0;
  virtual void route_experts_backward(const RouteExpertsBackward& args) = 0;
  virtual void add_shared(const AddShared& args) = 0;
  virtual void add_shared_backward(const AddSharedBackward& args) = 0;
  virtual void count_experts(const CountExperts& args) = 0;
  virtual void balance_experts(const BalanceExperts& args) = 0;
  virtual void gather_rows(const GatherRows& args) = 0;
  virtual void combine_rows(const CombineRows& args) = 0;
  virtual void add_row_products(const AddRowProducts& args) = 0;
  virtual void rope(const Rope& args) = 0;
  virtual void latent_heads(const LatentHeads& args) = 0;
  virtual void copy_columns(const CopyColumns& args) = 0;
  virtual void attention_forward(const Attention& args) = 0;
  virtual void attention_backward(const AttentionBackward& args) = 0;
  virtual void attention_sinks_backward(const AttentionSinksBackward& args) = 0;
  // out[n, c] = table[tokens[i] - first] for ids in [first, first + rows of table), else 0. tokens
  // i32 [n].
  virtual void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) = 0;
  // dtable[id - first] += dout rows, in token order (deterministic); always adds. Ids outside the
  // shard (negative ones anywhere) are skipped. dtable f32, dout f32 or the compute type.
  virtual void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) = 0;
  // Row i has position t = (first_row + i) % seq: a range of rows may begin and end inside a
  // sequence (sequence parallelism). out[i] = x[i] + positions[t] (out may be x), then dropout with
  // element index (first_row + i) * c + column.
  virtual void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out,
                                Dropout dropout, int64_t first_row) = 0;
  // dx = dropout'(dout) (dx may be dout); dpositions[t] (+)= the sum of its rows, 0 where no row
  // has the position, for all t < seq. dpositions f32.
  virtual void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions,
                                 bool accumulate, Dropout dropout, int64_t first_row) = 0;
  virtual void bias_dropout_add(const ResidualAdd& args) = 0;
  // bias_dropout_add() and layernorm_forward() of what it gives (norm.x is add.out) at once, with
  // the same results.
  virtual void add_norm_forward(const ResidualAdd& add, const LayerNorm& norm) {
    bias_dropout_add(add);
    layernorm_forward(norm);
  }
  virtual void dropout_backward(const DropoutBackward& args) = 0;

  virtual void cross_entropy_max(const CrossEntropy& args) = 0;  // logits -> row_max (local)
  virtual void cross_entropy_sum(
      const CrossEntropy& args) = 0;  // + row_max (global) -> sum_exp, target_logit (local)
  virtual void cross_entropy_loss(
      const CrossEntropy& args) = 0;  // + sum_exp, target_logit (global) -> loss
  // The three at once, of logits that are the whole vocabulary. A device may read them once only.
  virtual void cross_entropy_losses(const CrossEntropy& args) {
    cross_entropy_max(args);
    cross_entropy_sum(args);
    cross_entropy_loss(args);
  }
  // logits <- (softmax - onehot) * scale; 0 in padding columns and ignored rows.
  virtual void cross_entropy_backward(const CrossEntropy& args, float scale) = 0;
  // cross_entropy_losses() and cross_entropy_backward() at once, with the same results.
  virtual void cross_entropy_both(const CrossEntropy& args, float scale) {
    cross_entropy_losses(args);
    cross_entropy_backward(args, scale);
  }

  // out[0] (+)= the sum of x in a fixed order, f64; x f32.
  virtual void sum(Tensor x, Tensor out, bool accumulate) = 0;
  virtual void sum_squares(const SumSquares& args) = 0;
  // out[i] = the sum of the range ranges[i] of x, both f64, in an order that depends on its length
  // alone; `ranges` u8 [n * sizeof(ElementRange)].
  virtual void sum_ranges(Tensor x, Tensor ranges, Tensor out) = 0;
  virtual void gradient_scale(const GradientScale& args) = 0;
  virtual void adamw(const AdamW& args) = 0;
  virtual void sgd(const Sgd& args) = 0;
  virtual void lion(const Lion& args) = 0;
  virtual void momentum(const Momentum& args) = 0;
  virtual void descend(const Descend& args) = 0;
  // Whether no element is infinite or NaN; any compute type. Waits for the device.
  virtual bool all_finite(Tensor x) = 0;

 protected:
  // The sums of an operand that a product asks for, by a pass of their own.
  void sum_operand(const Matmul& args) {
    if (args.sums_of_a) bias_grad(args.a, args.sums_of_a, args.accumulate);
    if (args.sums_of_b) bias_grad(args.b, args.sums_of_b, args.accumulate);
  }
};

// The CPU engine: `threads` worker threads (0 = OMP_NUM_THREADS, else all cores this process may
// use). f16 is there to be correct, for tests and for weights made elsewhere, not to be fast: every
// product is computed in f32 on widened copies. bf16 is the fast 16-bit type of CPUs.
std::unique_ptr<Device> make_cpu_device(int threads = 0);

}  // namespace mtl
