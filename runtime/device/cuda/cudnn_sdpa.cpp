// The graphs follow arXiv 2307.08691: forward S = Q K^T, softmax, O = P V with the log-sum-exp
// saved; backward P from the log-sum-exp again, dV = P^T dO, dS = P (dO V^T - rowsum(dO O)),
// dQ = dS K, dK = dS^T Q. cuDNN recognises them by their shape: matmul, pointwise and reduction
// nodes in this order, intermediates virtual and f32, operands of products in the I/O type.
#include "runtime/device/cuda/cudnn_sdpa.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace mtl::cudnn {

namespace {

using Dims = std::array<int64_t, 4>;

Data data_of(DType dtype) {
  return dtype == DType::f16 ? Data::f16 : Data::bf16;
}

// Owns descriptors; a graph refers to many.
class Descriptors {
 public:
  explicit Descriptors(const Api& api) : api_(api) {}
  ~Descriptors() {
    for (auto it = all_.rbegin(); it != all_.rend(); ++it) api_.destroy_descriptor(*it);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  Descriptor make(Kind kind, const char* what) {
    Descriptor made = nullptr;
    check(api_, api_.create_descriptor(kind, &made), what);
    all_.push_back(made);
    return made;
  }
  template <class T>
  void set(Descriptor of, Attribute attribute, Type type, std::span<const T> values,
           const char* what) {
    check(
        api_,
        api_.set_attribute(of, attribute, type, static_cast<int64_t>(values.size()), values.data()),
        fmt::format("{}, attribute {}", what, static_cast<int>(attribute)));
  }
  template <class T>
  void set(Descriptor of, Attribute attribute, Type type, const T& value, const char* what) {
    set(of, attribute, type, std::span<const T>(&value, 1), what);
  }
  void finalize(Descriptor made, const char* what) {
    check(api_, api_.finalize(made), fmt::format("{}, finalize", what));
  }

 private:
  const Api& api_;
  std::vector<Descriptor> all_;
};

// Unique ids of the tensors that a caller brings.
enum Id : int64_t { kQ = 1, kK, kV, kO, kLse, kScale, kUnseen, kDO, kDQ, kDK, kDV, kOne, kDelta };

// Tensors and operations of one graph.
class Graph {
 public:
  Graph(const Api& api, const SdpaForm& form)
      : d_(api),
        form_(form),
        io_(data_of(form.dtype)),
        square_{form.batch, form.heads, form.seq, form.seq},
        column_{form.batch, form.heads, form.seq, 1} {}

  Descriptors& descriptors() { return d_; }
  const std::vector<Descriptor>& operations() const { return operations_; }

  // Rows of `dim` elements for each head, `heads` of them, in a tensor whose row has `row`
  // elements; transposed: as [batch, heads, dim, seq].
  Descriptor heads_tensor(int64_t id, int64_t heads, int64_t dim, int64_t row,
                          bool transposed = false) {
    const int64_t batch_stride = form_.seq * row;
    if (transposed) {
      return tensor(id, {form_.batch, heads, dim, form_.seq}, {batch_stride, dim, 1, row}, io_);
    }
    return tensor(id, {form_.batch, heads, form_.seq, dim}, {batch_stride, dim, row, 1}, io_);
  }
  Descriptor lse_tensor() { return tensor(kLse, column_, packed(column_), Data::f32); }
  Descriptor column_tensor(int64_t id) { return tensor(id, column_, packed(column_), Data::f32); }
  Descriptor number(int64_t id) {
    return tensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, Data::f32, false, true);
  }
  Descriptor between(const Dims& dims, Data type) {
    return tensor(next_++, dims, packed(dims), type, true);
  }
  Descriptor scores(Data type = Data::f32) { return between(square_, type); }
  Descriptor column() { return between(column_, Data::f32); }
  Data io() const { return io_; }

  Descriptor matmul(Descriptor a, Descriptor b, Descriptor c) {
    const Descriptor kind = d_.make(Kind::matmul, "a matmul");
    d_.set(kind, Attribute::matmul_type, Type::data_type, Data::f32, "a matmul");
    d_.finalize(kind, "a matmul");
    const Descriptor op = d_.make(Kind::operation_matmul, "a matmul's operation");
    d_.set(op, Attribute::operation_matmul_a, Type::descriptor, a, "a matmul's operation");
    d_.set(op, Attribute::operation_matmul_b, Type::descriptor, b, "a matmul's operation");
    d_.set(op, Attribute::operation_matmul_c, Type::descriptor, c, "a matmul's operation");
    d_.set(op, Attribute::operation_matmul, Type::descriptor, kind, "a matmul's operation");
    return add(op, c, "a matmul's operation");
  }
  // y = mode(x, b, t); b and t may be null. `axis`: of an index.
  Descriptor pointwise(Pointwise mode, Descriptor y, Descriptor x, Descriptor b = nullptr,
                       Descriptor t = nullptr, Data math = Data::f32, int64_t axis = -1) {
    const Descriptor kind = d_.make(Kind::pointwise, "a pointwise");
    d_.set(kind, Attribute::pointwise_mode, Type::pointwise_mode, mode, "a pointwise");
    d_.set(kind, Attribute::pointwise_math, Type::data_type, math, "a pointwise");
    if (axis >= 0) d_.set(kind, Attribute::pointwise_axis, Type::int64, axis, "a pointwise");
    d_.finalize(kind, "a pointwise");
    const char* what = "a pointwise operation";
    const Descriptor op = d_.make(Kind::operation_pointwise, what);
    d_.set(op, Attribute::operation_pointwise, Type::descriptor, kind, what);
    d_.set(op, Attribute::operation_pointwise_x, Type::descriptor, x, what);
    if (b != nullptr) d_.set(op, Attribute::operation_pointwise_b, Type::descriptor, b, what);
    if (t != nullptr) d_.set(op, Attribute::operation_pointwise_t, Type::descriptor, t, what);
    d_.set(op, Attribute::operation_pointwise_y, Type::descriptor, y, what);
    return add(op, y, what);
  }
  Descriptor reduce(Reduction kind_of, Descriptor y, Descriptor x) {
    const Descriptor kind = d_.make(Kind::reduction, "a reduction");
    d_.set(kind, Attribute::reduction_operator, Type::reduction_operator, kind_of, "a reduction");
    d_.set(kind, Attribute::reduction_type, Type::data_type, Data::f32, "a reduction");
    d_.finalize(kind, "a reduction");
    const char* what = "a reduction's operation";
    const Descriptor op = d_.make(Kind::operation_reduction, what);
    d_.set(op, Attribute::operation_reduction_x, Type::descriptor, x, what);
    d_.set(op, Attribute::operation_reduction_y, Type::descriptor, y, what);
    d_.set(op, Attribute::operation_reduction, Type::descriptor, kind, what);
    return add(op, y, what);
  }
  Descriptor reshape(Descriptor y, Descriptor x) {
    const char* what = "a reshape";
    const Descriptor op = d_.make(Kind::operation_reshape, what);
    d_.set(op, Attribute::operation_reshape_x, Type::descriptor, x, what);
    d_.set(op, Attribute::operation_reshape_y, Type::descriptor, y, what);
    return add(op, y, what);
  }
  Descriptor virtual_tensor(const Dims& dims, const Dims& strides, Data type) {
    return tensor(next_++, dims, strides, type, true);
  }

  // Scores of keys behind their query become the number kUnseen.
  Descriptor causal(Descriptor scores_in) {
    const Descriptor row =
        pointwise(Pointwise::index, scores(Data::i32), scores_in, nullptr, nullptr, Data::i32, 2);
    const Descriptor column_index =
        pointwise(Pointwise::index, scores(Data::i32), scores_in, nullptr, nullptr, Data::i32, 3);
    const Descriptor seen = pointwise(Pointwise::greater_or_equal, scores(Data::boolean), row,
                                      column_index, nullptr, Data::boolean);
    return pointwise(Pointwise::select, scores(), scores_in, number(kUnseen), seen);
  }

  static Dims packed(const Dims& dims) {
    return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
  }

 private:
  Descriptor add(Descriptor op, Descriptor result, const char* what) {
    d_.finalize(op, what);
    operations_.push_back(op);
    return result;
  }
  Descriptor tensor(int64_t id, const Dims& dims, const Dims& strides, Data type,
                    bool is_virtual = false, bool by_value = false) {
    const char* what = "a tensor";
    const Descriptor made = d_.make(Kind::tensor, what);
    const int64_t alignment = 16;
    d_.set(made, Attribute::tensor_type, Type::data_type, type, what);
    d_.set(made, Attribute::tensor_dimensions, Type::int64, std::span<const int64_t>(dims), what);
    d_.set(made, Attribute::tensor_strides, Type::int64, std::span<const int64_t>(strides), what);
    d_.set(made, Attribute::tensor_id, Type::int64, id, what);
    d_.set(made, Attribute::tensor_alignment, Type::int64, alignment, what);
    if (is_virtual) d_.set(made, Attribute::tensor_is_virtual, Type::boolean, true, what);
    if (by_value) d_.set(made, Attribute::tensor_is_by_value, Type::boolean, true, what);
    d_.finalize(made, what);
    return made;
  }

  Descriptors d_;
  const SdpaForm form_;
  const Data io_;
  const Dims square_, column_;
  int64_t next_ = 100;
  std::vector<Descriptor> operations_;
};

void build_forward(Graph& g, const SdpaForm& form) {
  const int64_t d = form.head_dim, value_dim = form.values();
  const Descriptor q = g.heads_tensor(kQ, form.heads, d, form.row());
  const Descriptor k = g.heads_tensor(kK, form.kv_heads, d, form.row(), true);
  const Descriptor v = g.heads_tensor(kV, form.kv_heads, value_dim, form.row());
  const Descriptor o = g.heads_tensor(kO, form.heads, value_dim, form.out_width());
  Descriptor s = g.matmul(q, k, g.scores());
  s = g.causal(g.pointwise(Pointwise::mul, g.scores(), s, g.number(kScale)));
  const Descriptor most = g.reduce(Reduction::max, g.column(), s);
  const Descriptor e =
      g.pointwise(Pointwise::exp, g.scores(), g.pointwise(Pointwise::sub, g.scores(), s, most));
  const Descriptor sum = g.reduce(Reduction::add, g.column(), e);
  g.pointwise(Pointwise::add, g.lse_tensor(), most, g.pointwise(Pointwise::log, g.column(), sum));
  g.matmul(g.pointwise(Pointwise::div, g.scores(g.io()), e, sum), v, o);
}

void build_backward(Graph& g, const SdpaForm& form) {
  const int64_t b = form.batch, h = form.heads, t = form.seq, d = form.head_dim;
  const int64_t value_dim = form.values();
  const Dims square_transposed = {h * t * t, t * t, 1, t};
  const Descriptor q = g.heads_tensor(kQ, h, d, form.row());
  const Descriptor k = g.heads_tensor(kK, form.kv_heads, d, form.row(), true);
  const Descriptor v = g.heads_tensor(kV, form.kv_heads, value_dim, form.row(), true);
  const Descriptor o = g.heads_tensor(kO, h, value_dim, form.out_width());
  const Descriptor d_o = g.heads_tensor(kDO, h, value_dim, form.out_width());
  const Descriptor scale = g.number(kScale);
  const auto transposed = [&](Descriptor x) {
    return g.reshape(g.virtual_tensor({b, h, t, t}, square_transposed, g.io()), x);
  };
  // Gradients of keys and values that several query heads share are sums over these.
  const auto by_kv = [&](Descriptor a, Descriptor rows, int64_t id, int64_t dim) {
    const Descriptor result = g.heads_tensor(id, form.kv_heads, dim, form.row());
    if (form.kv_heads == h) return g.matmul(a, rows, result);
    return g.reduce(Reduction::add, result, g.matmul(a, rows, g.between({b, h, t, dim}, g.io())));
  };

  Descriptor delta =
      g.pointwise(Pointwise::mul, g.between({b, h, t, value_dim}, Data::f32), d_o, o);
  delta = g.reduce(Reduction::add, g.column(), delta);
  delta = g.pointwise(Pointwise::mul, g.column_tensor(kDelta), delta, g.number(kOne));

  Descriptor p = g.matmul(q, k, g.scores());
  p = g.pointwise(Pointwise::mul, g.scores(), p, scale);
  p = g.causal(g.pointwise(Pointwise::sub, g.scores(), p, g.lse_tensor()));
  p = g.pointwise(Pointwise::exp, g.scores(), p);
  by_kv(transposed(p), d_o, kDV, value_dim);

  Descriptor ds = g.matmul(d_o, v, g.scores());
  ds = g.pointwise(Pointwise::sub, g.scores(), ds, delta);
  ds = g.pointwise(Pointwise::mul, g.scores(), ds, p);
  ds = g.pointwise(Pointwise::mul, g.scores(g.io()), ds, scale);
  by_kv(transposed(ds), q, kDK, d);

  const Descriptor k_rows = g.reshape(
      g.virtual_tensor({b, form.kv_heads, t, d}, {t * form.row(), d, form.row(), 1}, g.io()), k);
  g.matmul(ds, k_rows, g.heads_tensor(kDQ, h, d, form.row()));
}

}  // namespace

std::string describe(const SdpaForm& form) {
  std::string heads = fmt::format("{} heads", form.heads);
  if (form.kv_heads != form.heads) heads += fmt::format(" ({} of keys)", form.kv_heads);
  heads += fmt::format(" of {}", form.head_dim);
  if (form.values() != form.head_dim) heads += fmt::format(" and {}", form.values());
  return fmt::format("{}x{}, {}, {}", form.batch, form.seq, heads, safetensors_name(form.dtype));
}

TargetDevice::TargetDevice(const Api& api, Handle handle) : api_(api) {
  check(api, api.create_descriptor(Kind::device_properties, &descriptor_), "the GPU's properties");
  check(api, api.set_attribute(descriptor_, Attribute::device_handle, Type::handle, 1, &handle),
        "the GPU's properties");
  check(api, api.finalize(descriptor_), "the GPU's properties, finalize");
}

TargetDevice::TargetDevice(const Api& api, const std::string& json) : api_(api) {
  check(api, api.create_descriptor(Kind::device_properties, &descriptor_), "a GPU's properties");
  check(api,
        api.set_attribute(descriptor_, Attribute::device_json, Type::character,
                          static_cast<int64_t>(json.size()), json.data()),
        "a GPU's properties");
  check(api, api.finalize(descriptor_), "a GPU's properties, finalize");
}

TargetDevice::~TargetDevice() {
  api_.destroy_descriptor(descriptor_);
}

struct SdpaPlan::State {
  State(const Api& a, const SdpaForm& f, Pass p) : api(a), form(f), pass(p), graph(a, f) {}
  const Api& api;
  const SdpaForm form;
  const Pass pass;
  Graph graph;
  Descriptor plan = nullptr;
  int64_t workspace = 0;
  int64_t delta_offset = 0;  // backward: rowsum(dO O) lies behind cuDNN's own workspace
};

namespace {

constexpr int64_t kAlignment = 256;

bool is_deterministic(const Api& api, Descriptors& d, Descriptor config) {
  Descriptor engine = d.make(Kind::engine, "an engine");
  int64_t count = 0;
  check(api,
        api.get_attribute(config, Attribute::config_engine, Type::descriptor, 1, &count, &engine),
        "a configuration's engine");
  std::array<int, kMostNotes> notes = {};
  check(api,
        api.get_attribute(engine, Attribute::engine_notes, Type::numerical_note, kMostNotes, &count,
                          notes.data()),
        "an engine's notes");
  return std::find(notes.begin(), notes.begin() + count, kNondeterministic) ==
         notes.begin() + count;
}

}  // namespace

SdpaPlan::SdpaPlan(const Api& api, const TargetDevice& device, const SdpaForm& form, Pass pass)
    : state_(std::make_unique<State>(api, form, pass)) {
  Graph& g = state_->graph;
  Descriptors& d = g.descriptors();
  if (pass == Pass::forward) {
    build_forward(g, form);
  } else {
    build_backward(g, form);
  }
  const Descriptor graph = d.make(Kind::operation_graph, "the graph");
  d.set(graph, Attribute::graph_operations, Type::descriptor,
        std::span<const Descriptor>(g.operations()), "the graph");
  d.finalize(graph, "the graph");

  const Descriptor heuristics = d.make(Kind::heuristics, "the choice of engines");
  d.set(heuristics, Attribute::heuristics_graph, Type::descriptor, graph, "the choice of engines");
  d.set(heuristics, Attribute::heuristics_mode, Type::heuristic_mode, kHeuristicA,
        "the choice of engines");
  d.set(heuristics, Attribute::heuristics_device, Type::descriptor, device.get(),
        "the choice of engines");
  d.finalize(heuristics, "the choice of engines");
  std::vector<Descriptor> configs;
  int64_t count = 0;
  check(api,
        api.get_attribute(heuristics, Attribute::heuristics_results, Type::descriptor, 0, &count,
                          nullptr),
        "how many engines there are");
  for (int64_t i = 0; i < count; ++i) configs.push_back(d.make(Kind::engine_config, "an engine"));
  check(api,
        api.get_attribute(heuristics, Attribute::heuristics_results, Type::descriptor, count,
                          &count, configs.data()),
        "the engines");
  configs.resize(static_cast<size_t>(count));

  std::string why = "it has no engine for this graph";
  for (const Descriptor config : configs) {
    try {
      if (!is_deterministic(api, d, config)) {
        why = "its engines for this graph are not deterministic";
        continue;
      }
      const Descriptor plan = d.make(Kind::plan, "a plan");
      d.set(plan, Attribute::plan_config, Type::descriptor, config, "a plan");
      d.set(plan, Attribute::plan_device, Type::descriptor, device.get(), "a plan");
      d.finalize(plan, "a plan");
      int64_t bytes = 0;
      check(api, api.get_attribute(plan, Attribute::plan_workspace, Type::int64, 1, &count, &bytes),
            "a plan's workspace");
      state_->plan = plan;
      state_->delta_offset = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      state_->workspace = state_->delta_offset;
      if (pass == Pass::backward) {
        state_->workspace += form.batch * form.heads * form.seq * int64_t{sizeof(float)};
      }
      return;
    } catch (const Failure& failure) {
      why = failure.why;
    }
  }
  throw Failure{fmt::format("cuDNN {} has no plan for attention {} ({}): {}",
                            version_text(api.get_version()), describe(form),
                            pass == Pass::forward ? "forward" : "backward", why)};
}

SdpaPlan::~SdpaPlan() = default;

int64_t SdpaPlan::workspace_bytes() const {
  return state_->workspace;
}

void SdpaPlan::run(Handle handle, const SdpaTensors& tensors, void* workspace) const {
  const SdpaForm& form = state_->form;
  const int64_t element = bytes_of(form.dtype);
  const auto column = [&](const void* rows, int64_t first) {
    return static_cast<char*>(const_cast<void*>(rows)) + first * element;
  };
  const int64_t key = form.query_width(), value = key + form.key_width();
  // Before 9.10 its kernels want the least finite number.
  const bool takes_infinity = state_->api.get_version() >= 91000;
  float scale = tensors.scale, one = 1;
  float unseen = takes_infinity ? -std::numeric_limits<float>::infinity() : -FLT_MAX;
  std::vector<int64_t> ids = {kQ, kK, kV, kO, kLse, kScale, kUnseen};
  std::vector<void*> pointers = {column(tensors.qkv, 0),
                                 column(tensors.qkv, key),
                                 column(tensors.qkv, value),
                                 tensors.out,
                                 tensors.lse,
                                 &scale,
                                 &unseen};
  if (state_->pass == Pass::backward) {
    ids.insert(ids.end(), {kDO, kDQ, kDK, kDV, kOne, kDelta});
    pointers.insert(pointers.end(), {column(tensors.dout, 0), column(tensors.dqkv, 0),
                                     column(tensors.dqkv, key), column(tensors.dqkv, value), &one,
                                     static_cast<char*>(workspace) + state_->delta_offset});
  }
  Descriptors d(state_->api);
  const char* what = "the tensors of a call";
  const Descriptor pack = d.make(Kind::variant_pack, what);
  d.set(pack, Attribute::pack_ids, Type::int64, std::span<const int64_t>(ids), what);
  d.set(pack, Attribute::pack_pointers, Type::pointer, std::span<void* const>(pointers), what);
  d.set(pack, Attribute::pack_workspace, Type::pointer, workspace, what);
  d.finalize(pack, what);
  check(state_->api, state_->api.execute(handle, state_->plan, pack), "running attention");
}

}  // namespace mtl::cudnn
