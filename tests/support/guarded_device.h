// A CPU whose memory the host cannot touch, as that of a GPU: the pages are there while an op or a
// copy runs, and a read or write at any other time is a segmentation fault. Ops refuse tensors that
// are not in its memory. What passes over it, never takes an address of the device for one of its
// own, nor the other way round.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include <sys/mman.h>

#include "runtime/device/cpu/cpu_device.h"

namespace mtl::test {

class GuardedDevice final : public Device {
 public:
  // `shared`: ranks have their arenas in memory that they share, which is the host's; then nothing
  // is guarded, only counted.
  enum class Memory { guarded, shared };
  explicit GuardedDevice(bool float8 = true, Memory memory = Memory::guarded)
      : float8_(float8), guards_(memory == Memory::guarded) {}
  ~GuardedDevice() override {
    for (const auto& [begin, bytes] : regions_) munmap(reinterpret_cast<void*>(begin), bytes);
  }
  GuardedDevice(const GuardedDevice&) = delete;
  GuardedDevice& operator=(const GuardedDevice&) = delete;

  int64_t ops() const { return ops_; }                // and copies
  int64_t multiplied() const { return multiplied_; }  // by products: m n k of each
  int64_t amaxes() const { return amaxes_; }          // amax ops
  int64_t additions() const { return additions_; }    // with a norm behind them
  // Of SwiGLU and GELU's exact form, forward ops, and backward ops that made their results again.
  int64_t activations() const { return activations_; }
  int64_t activations_again() const { return activations_again_; }
  // Of quantize: tensors; those whose amax was another number than their largest magnitude; and of
  // these the ones that lie as before, and those where it was less.
  int64_t quantized() const { return quantized_; }
  int64_t wrong_amaxes() const { return wrong_amaxes_; }
  int64_t wrong_row_amaxes() const { return wrong_row_amaxes_; }
  int64_t small_amaxes() const { return small_amaxes_; }

  bool communicates_beside() const override { return false; }
  bool has_float8() const override { return float8_; }
  bool host_memory() const override { return !guards_; }
  std::string description() const override { return "guarded " + cpu_.description(); }
  void* allocate_on_host(size_t bytes) override {
    void* const memory = allocate(bytes);
    on_host_[reinterpret_cast<uintptr_t>(memory)] = static_cast<int64_t>(bytes);
    return memory;
  }
  // What allocate_on_host() has given from this address on; 0: nothing.
  int64_t on_host(const void* memory) const {
    const auto found = on_host_.find(reinterpret_cast<uintptr_t>(memory));
    return found == on_host_.end() ? 0 : found->second;
  }
  void* allocate(size_t bytes) override {
    const size_t size = (bytes / kPage + 1) * kPage;
    const int protection = guards_ ? PROT_NONE : PROT_READ | PROT_WRITE;
    void* const memory = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory");
    regions_.emplace(reinterpret_cast<uintptr_t>(memory), size);
    return memory;
  }
  void free(void* pointer) override {
    const auto found = regions_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == regions_.end()) return;
    munmap(pointer, found->second);
    on_host_.erase(found->first);
    regions_.erase(found);
  }
  void copy_from_host(Tensor destination, const void* source) override {
    check_host(source, destination.bytes());
    op({destination}, [&] { cpu_.copy_from_host(destination, source); });
  }
  void copy_to_host(void* destination, Tensor source) override {
    check_host(destination, source.bytes());
    op({source}, [&] { cpu_.copy_to_host(destination, source); });
  }
  void synchronize() override {}

  void fill(Tensor x, float value) override {
    op({x}, [&] { cpu_.fill(x, value); });
  }
  void cast(Tensor from, Tensor to) override {
    refuse_overlap(from, to);
    op({from, to}, [&] { cpu_.cast(from, to); });
  }
  void scale(Tensor x, float factor) override {
    op({x}, [&] { cpu_.scale(x, factor); });
  }
  void add(Tensor x, Tensor y) override {
    op({x, y}, [&] { cpu_.add(x, y); });
  }
  void blend(Tensor x, Tensor y, float of_x, float of_y) override {
    op({x, y}, [&] { cpu_.blend(x, y, of_x, of_y); });
  }
  void normalize(Tensor x) override {
    op({x}, [&] { cpu_.normalize(x); });
  }
  void copy(Tensor from, Tensor to) override {
    refuse_overlap(from, to);
    op({from, to}, [&] { cpu_.copy(from, to); });
  }
  void regroup_columns(const ColumnBlocks& c) override {
    op({c.rows, c.blocks}, [&] { cpu_.regroup_columns(c); });
  }
  void matmul(const Matmul& m) override {
    multiplied_ += m.c.numel() * (m.transpose_a ? m.a.rows() : m.a.cols());
    op({m.a, m.b, m.c, m.bias, m.aux, m.scale_a, m.scale_b, m.sums_of_a, m.sums_of_b},
       [&] { cpu_.matmul(m); });
  }
  void amax(Tensor x, Tensor out) override {
    ++amaxes_;
    op({x, out}, [&] { cpu_.amax(x, out); });
  }
  void quantize(const Quantize& q) override {
    op({q.x, q.amax, q.y, q.transposed, q.inverse}, [&] {
      float largest = 0;
      cpu_.amax(q.x, Tensor(&largest, DType::f32, {1}));
      ++quantized_;
      const bool wrong = std::memcmp(&largest, q.amax.data, sizeof largest) != 0;
      wrong_amaxes_ += wrong;
      wrong_row_amaxes_ += wrong && q.y;
      small_amaxes_ += *q.amax.as<float>() < largest;
      cpu_.quantize(q);
    });
  }
  void sum_rows(Tensor rows, Tensor sum, bool accumulate) override {
    refuse_overlap(rows, sum);
    op({rows, sum}, [&] { cpu_.sum_rows(rows, sum, accumulate); });
  }
  void bias_grad(Tensor dy, Tensor db, bool accumulate) override {
    op({dy, db}, [&] { cpu_.bias_grad(dy, db, accumulate); });
  }
  void layernorm_forward(const LayerNorm& l) override {
    op({l.x, l.gamma, l.beta, l.y, l.mean, l.rstd, l.amax}, [&] { cpu_.layernorm_forward(l); });
  }
  void layernorm_backward(const LayerNormBackward& l) override {
    op({l.dy, l.x, l.gamma, l.mean, l.rstd, l.dx, l.dgamma, l.dbeta, l.amax},
       [&] { cpu_.layernorm_backward(l); });
  }
  void head_norm_forward(const HeadNorm& h) override {
    op({h.x, h.raw, h.gamma, h.rstd}, [&] { cpu_.head_norm_forward(h); });
  }
  void head_norm_backward(const HeadNormBackward& h) override {
    op({h.dx, h.raw, h.gamma, h.rstd, h.dgamma}, [&] { cpu_.head_norm_backward(h); });
  }
  void wide_norm_squares(const WideNorm& w) override {
    op({w.x, w.squares}, [&] { cpu_.wide_norm_squares(w); });
  }
  void wide_norm_forward(const WideNorm& w) override {
    op({w.x, w.raw, w.gamma, w.squares}, [&] { cpu_.wide_norm_forward(w); });
  }
  void wide_norm_products(const WideNormBackward& w) override {
    op({w.dx, w.raw, w.gamma, w.squares, w.products}, [&] { cpu_.wide_norm_products(w); });
  }
  void wide_norm_backward(const WideNormBackward& w) override {
    op({w.dx, w.raw, w.gamma, w.squares, w.products, w.dgamma},
       [&] { cpu_.wide_norm_backward(w); });
  }
  void gelu_forward(Tensor x, Tensor y) override {
    op({x, y}, [&] { cpu_.gelu_forward(x, y); });
  }
  void gelu_exact_forward(Tensor x, Tensor y) override {
    ++activations_;
    op({x, y}, [&] { cpu_.gelu_exact_forward(x, y); });
  }
  void gelu_exact_backward(Tensor dy, Tensor x, Tensor y) override {
    activations_again_ += y ? 1 : 0;
    op({dy, x, y}, [&] { cpu_.gelu_exact_backward(dy, x, y); });
  }
  void swiglu_forward(const Swiglu& s) override {
    ++activations_;
    op({s.x, s.y, s.amax}, [&] { cpu_.swiglu_forward(s); });
  }
  void swiglu_backward(const SwigluBackward& s) override {
    activations_again_ += s.y ? 1 : 0;
    op({s.dy, s.x, s.dx, s.amax, s.y, s.rows.index, s.rows.weights, s.rows.dweights},
       [&] { cpu_.swiglu_backward(s); });
  }
  // A GPU's kernel reads one row while it writes another.
  void add_norm_forward(const ResidualAdd& add, const LayerNorm& norm) override {
    for (const Tensor& made : {norm.y, norm.mean, norm.rstd}) {
      for (const Tensor& read : {add.x, add.bias, add.residual, add.out, norm.gamma, norm.beta}) {
        if (made && read && begin_of(made) < begin_of(read) + read.bytes() &&
            begin_of(read) < begin_of(made) + made.bytes()) {
          throw std::runtime_error("a norm lies over what it is made of");
        }
      }
    }
    ++additions_;
    Device::add_norm_forward(add, norm);
  }
  void route_experts(const RouteExperts& r) override {
    op(tensors_of(r.routes, {r.logits, r.bias}), [&] { cpu_.route_experts(r); });
  }
  void route_experts_backward(const RouteExpertsBackward& r) override {
    op(tensors_of(r.routes, {r.logits, r.dweights, r.dlogits, r.losses, r.sequence_experts}),
       [&] { cpu_.route_experts_backward(r); });
  }
  void add_shared(const AddShared& a) override {
    op({a.from, a.gate, a.to}, [&] { cpu_.add_shared(a); });
  }
  void add_shared_backward(const AddSharedBackward& a) override {
    op({a.x, a.dy, a.gate, a.dgate}, [&] { cpu_.add_shared_backward(a); });
  }
  void count_experts(const CountExperts& c) override {
    op({c.counts, c.sums}, [&] { cpu_.count_experts(c); });
  }
  void balance_experts(const BalanceExperts& b) override {
    op({b.counts, b.bias, b.factor}, [&] { cpu_.balance_experts(b); });
  }
  void gather_rows(const GatherRows& g) override {
    op({g.from, g.index, g.weights, g.to}, [&] { cpu_.gather_rows(g); });
  }
  void combine_rows(const CombineRows& c) override {
    op({c.from, c.rows, c.weights, c.to}, [&] { cpu_.combine_rows(c); });
  }
  void add_row_products(const AddRowProducts& a) override {
    op({a.rows, a.vector, a.index, a.sums}, [&] { cpu_.add_row_products(a); });
  }
  void rope(const Rope& r) override {
    op({r.qkv, r.table, r.positions}, [&] { cpu_.rope(r); });
  }
  void latent_heads(const LatentHeads& l) override {
    op({l.queries, l.pairs, l.latents, l.qkv, l.table, l.positions}, [&] { cpu_.latent_heads(l); });
  }
  void copy_columns(const CopyColumns& c) override {
    refuse_overlap(c.from, c.to);
    op({c.from, c.to}, [&] { cpu_.copy_columns(c); });
  }
  void attention_forward(const Attention& a) override {
    op({a.qkv, a.out, a.lse, a.shape.sinks, a.shape.first_key, a.shape.dropout.pass},
       [&] { cpu_.attention_forward(a); });
  }
  void attention_backward(const AttentionBackward& a) override {
    op({a.qkv, a.out, a.lse, a.dout, a.dqkv, a.shape.first_key, a.shape.dropout.pass},
       [&] { cpu_.attention_backward(a); });
  }
  void attention_sinks_backward(const AttentionSinksBackward& a) override {
    op({a.out, a.dout, a.lse, a.shape.sinks, a.dsinks}, [&] { cpu_.attention_sinks_backward(a); });
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first, Tensor out) override {
    op({tokens, table, out}, [&] { cpu_.embedding_forward(tokens, table, first, out); });
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first, Tensor dtable) override {
    op({tokens, dout, dtable}, [&] { cpu_.embedding_backward(tokens, dout, first, dtable); });
  }
  void position_forward(Tensor x, Tensor positions, int64_t seq, Tensor out, Dropout dropout,
                        int64_t first_row) override {
    op({x, positions, out, dropout.pass},
       [&] { cpu_.position_forward(x, positions, seq, out, dropout, first_row); });
  }
  void position_backward(Tensor dout, int64_t seq, Tensor dx, Tensor dpositions, bool accumulate,
                         Dropout dropout, int64_t first_row) override {
    op({dout, dx, dpositions, dropout.pass},
       [&] { cpu_.position_backward(dout, seq, dx, dpositions, accumulate, dropout, first_row); });
  }
  void bias_dropout_add(const ResidualAdd& r) override {
    op({r.x, r.bias, r.residual, r.out, r.dropout.pass}, [&] { cpu_.bias_dropout_add(r); });
  }
  void dropout_backward(const DropoutBackward& d) override {
    op({d.dout, d.dx, d.dropout.pass}, [&] { cpu_.dropout_backward(d); });
  }
  void cross_entropy_max(const CrossEntropy& c) override {
    op(tensors_of(c), [&] { cpu_.cross_entropy_max(c); });
  }
  void cross_entropy_sum(const CrossEntropy& c) override {
    op(tensors_of(c), [&] { cpu_.cross_entropy_sum(c); });
  }
  void cross_entropy_loss(const CrossEntropy& c) override {
    op(tensors_of(c), [&] { cpu_.cross_entropy_loss(c); });
  }
  void cross_entropy_backward(const CrossEntropy& c, float scale) override {
    op(tensors_of(c), [&] { cpu_.cross_entropy_backward(c, scale); });
  }
  void sum(Tensor x, Tensor out, bool accumulate) override {
    op({x, out}, [&] { cpu_.sum(x, out, accumulate); });
  }
  void sum_squares(const SumSquares& s) override {
    op({s.pieces.table, s.x, s.partials}, [&] { cpu_.sum_squares(s); });
  }
  void sum_ranges(Tensor x, Tensor ranges, Tensor out) override {
    op({x, ranges, out}, [&] { cpu_.sum_ranges(x, ranges, out); });
  }
  void gradient_scale(const GradientScale& g) override {
    op({g.row_squares, g.loss, g.counted, g.norm, g.factor}, [&] { cpu_.gradient_scale(g); });
  }
  void adamw(const AdamW& a) override {
    op({a.pieces.table, a.master, a.exp_avg, a.exp_avg_sq, a.grad, a.weights, a.factor},
       [&] { cpu_.adamw(a); });
  }
  void sgd(const Sgd& s) override {
    op({s.pieces.table, s.master, s.momentum_buffer, s.grad, s.weights, s.factor},
       [&] { cpu_.sgd(s); });
  }
  void lion(const Lion& l) override {
    op({l.pieces.table, l.master, l.exp_avg, l.grad, l.weights, l.factor}, [&] { cpu_.lion(l); });
  }
  void momentum(const Momentum& m) override {
    op({m.pieces.table, m.buffer, m.grad, m.factor}, [&] { cpu_.momentum(m); });
  }
  void descend(const Descend& d) override {
    op({d.pieces.table, d.master, d.grad, d.weights, d.factor}, [&] { cpu_.descend(d); });
  }
  bool all_finite(Tensor x) override {
    bool finite = false;
    op({x}, [&] { finite = cpu_.all_finite(x); });
    return finite;
  }

 private:
  // A CPU, which goes from the first element to the last, would not show it.
  static void refuse_overlap(const Tensor& from, const Tensor& to) {
    const auto a = reinterpret_cast<uintptr_t>(from.data);
    const auto b = reinterpret_cast<uintptr_t>(to.data);
    if (a < b + static_cast<size_t>(to.bytes()) && b < a + static_cast<size_t>(from.bytes())) {
      throw std::logic_error("what is read and what is written overlap");
    }
  }
  static constexpr size_t kPage = 4096;
  using Tensors = std::vector<Tensor>;

  static Tensors tensors_of(const CrossEntropy& c) {
    return {c.logits, c.targets, c.row_max, c.sum_exp, c.target_logit, c.loss};
  }

  static Tensors tensors_of(const ExpertRoutes& r, Tensors others) {
    others.insert(others.end(), {r.weights, r.experts, r.rows, r.assignments, r.counts});
    return others;
  }

  static int64_t begin_of(const Tensor& x) { return reinterpret_cast<intptr_t>(x.data); }

  bool is_mine(const void* data, int64_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto region = regions_.upper_bound(address);
    if (region == regions_.begin()) return false;
    --region;
    return address + static_cast<uintptr_t>(bytes) <= region->first + region->second;
  }
  void check_host(const void* data, int64_t bytes) {
    if (guards_ && bytes > 0 && is_mine(data, 1))
      throw std::logic_error("the host's side is the device's");
  }
  void protect(int protection) {
    for (const auto& [begin, bytes] : regions_) {
      mprotect(reinterpret_cast<void*>(begin), bytes, protection);
    }
  }

  template <typename Body>
  void op(const Tensors& tensors, const Body& body) {
    ++ops_;
    if (!guards_) return body();
    for (const Tensor& tensor : tensors) {
      if (tensor && !is_mine(tensor.data, tensor.bytes())) {
        throw std::logic_error("an op on memory of the host");
      }
    }
    protect(PROT_READ | PROT_WRITE);
    body();
    protect(PROT_NONE);
  }

  const bool float8_, guards_;
  CpuDevice cpu_{1, cpu_isa()};
  std::map<uintptr_t, size_t> regions_;
  std::map<uintptr_t, int64_t> on_host_;
  int64_t ops_ = 0, multiplied_ = 0, amaxes_ = 0, additions_ = 0, activations_ = 0,
          activations_again_ = 0, quantized_ = 0, wrong_amaxes_ = 0, wrong_row_amaxes_ = 0,
          small_amaxes_ = 0;
};

}  // namespace mtl::test
