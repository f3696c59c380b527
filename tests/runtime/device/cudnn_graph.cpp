// The graphs that we give to cuDNN, executed literally on the host by a cuDNN that is none: what is
// multiplied, masked and added, where the tensors lie, and which pointer is which, against the
// CPU's attention. What cuDNN makes of them is another matter (cudnn_sdpa.cpp).
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/cuda/attention_trial.h"
#include "runtime/device/ops_test.h"

using namespace mtl;
using namespace mtl::cuda;
using namespace mtl::cudnn;

namespace {

using Dims = std::array<int64_t, 4>;

struct Node {
  Kind kind{};
  std::map<Attribute, std::vector<char>> values;
  Node* graph = nullptr;  // of a plan
  template <class T>
  std::vector<T> all(Attribute attribute) const {
    const std::vector<char>& bytes = values.at(attribute);
    std::vector<T> list(bytes.size() / sizeof(T));  // NOLINT(bugprone-sizeof-expression)
    std::memcpy(list.data(), bytes.data(), bytes.size());
    return list;
  }
  template <class T>
  T one(Attribute attribute) const {
    return all<T>(attribute).at(0);
  }
  bool has(Attribute attribute) const { return values.count(attribute) > 0; }
  Node* ref(Attribute attribute) const { return has(attribute) ? one<Node*>(attribute) : nullptr; }
};

// Of the engines that the stand-in has: the first one's notes, then the second one's.
std::vector<std::vector<int>> notes;
Node* newest_graph = nullptr;
size_t next_engine = 0;

size_t size_of(Type type) {
  switch (type) {
    case Type::boolean:
    case Type::character:
      return 1;
    case Type::handle:
    case Type::int64:
    case Type::pointer:
    case Type::descriptor:
      return 8;
    default:
      return 4;
  }
}

// Where a tensor's elements are: behind a pointer, or, between operations, in a buffer of ours.
struct Place {
  char* memory = nullptr;
  std::shared_ptr<std::vector<double>> buffer;
  Data type{};
};

class Execution {
 public:
  Execution(const Node& graph, const Node& pack) {
    const auto ids = pack.all<int64_t>(Attribute::pack_ids);
    const auto pointers = pack.all<char*>(Attribute::pack_pointers);
    for (size_t i = 0; i < ids.size(); ++i) given_[ids[i]] = pointers.at(i);
    for (const Node* op : graph.all<Node*>(Attribute::graph_operations)) run(*op);
  }

 private:
  struct View {
    Dims dims{}, strides{};
    Place place;
    double at(Dims i) const {
      int64_t offset = 0;
      for (size_t k = 0; k < 4; ++k) offset += (dims[k] == 1 ? 0 : i[k]) * strides[k];
      if (place.buffer) return place.buffer->at(static_cast<size_t>(offset));
      switch (place.type) {
        case Data::f32:
          return static_cast<double>(reinterpret_cast<const float*>(place.memory)[offset]);
        case Data::bf16:
          return static_cast<double>(
              test::float_of_bf16(reinterpret_cast<const uint16_t*>(place.memory)[offset]));
        default:
          FAIL("a type that no caller brings");
      }
      return 0;
    }
    void set(const Dims& i, double value) const {
      int64_t offset = 0;
      for (size_t k = 0; k < 4; ++k) offset += i[k] * strides[k];
      if (place.buffer) {
        place.buffer->at(static_cast<size_t>(offset)) = value;
      } else if (place.type == Data::f32) {
        reinterpret_cast<float*>(place.memory)[offset] = static_cast<float>(value);
      } else {
        reinterpret_cast<uint16_t*>(place.memory)[offset] =
            test::bf16_of_float(static_cast<float>(value));
      }
    }
  };

  View view(const Node* tensor) {
    View v;
    const auto dims = tensor->all<int64_t>(Attribute::tensor_dimensions);
    const auto strides = tensor->all<int64_t>(Attribute::tensor_strides);
    std::copy(dims.begin(), dims.end(), v.dims.begin());
    std::copy(strides.begin(), strides.end(), v.strides.begin());
    const auto id = tensor->one<int64_t>(Attribute::tensor_id);
    Place& place = places_[id];
    if (place.memory == nullptr && !place.buffer) {
      place.type = tensor->one<Data>(Attribute::tensor_type);
      if (tensor->has(Attribute::tensor_is_virtual)) {
        place.buffer = std::make_shared<std::vector<double>>(
            static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]));
      } else {
        place.memory = given_.at(id);
      }
    }
    v.place = place;
    return v;
  }

  static void each(const Dims& dims, const std::function<void(const Dims&)>& action) {
    Dims i{};
    for (i[0] = 0; i[0] < dims[0]; ++i[0]) {
      for (i[1] = 0; i[1] < dims[1]; ++i[1]) {
        for (i[2] = 0; i[2] < dims[2]; ++i[2]) {
          for (i[3] = 0; i[3] < dims[3]; ++i[3]) action(i);
        }
      }
    }
  }

  void run(const Node& op) {
    switch (op.kind) {
      case Kind::operation_matmul:
        return matmul(op);
      case Kind::operation_pointwise:
        return pointwise(op);
      case Kind::operation_reduction:
        return reduce(op);
      case Kind::operation_reshape: {  // the same memory, seen otherwise
        const View x = view(op.ref(Attribute::operation_reshape_x));
        const auto id = op.ref(Attribute::operation_reshape_y)->one<int64_t>(Attribute::tensor_id);
        places_[id] = x.place;
        return;
      }
      default:
        FAIL("no operation");
    }
  }

  void matmul(const Node& op) {
    const View a = view(op.ref(Attribute::operation_matmul_a));
    const View b = view(op.ref(Attribute::operation_matmul_b));
    const View c = view(op.ref(Attribute::operation_matmul_c));
    CHECK(a.dims[3] == b.dims[2]);
    each(c.dims, [&](const Dims& i) {
      double sum = 0;
      // Heads that share: head h of the result is of head h * own / all.
      const int64_t ha = i[1] * a.dims[1] / c.dims[1], hb = i[1] * b.dims[1] / c.dims[1];
      for (int64_t k = 0; k < a.dims[3]; ++k) {
        sum += a.at({i[0], ha, i[2], k}) * b.at({i[0], hb, k, i[3]});
      }
      c.set(i, sum);
    });
  }

  void pointwise(const Node& op) {
    const Node& kind = *op.ref(Attribute::operation_pointwise);
    const auto mode = kind.one<Pointwise>(Attribute::pointwise_mode);
    const View y = view(op.ref(Attribute::operation_pointwise_y));
    const View x = view(op.ref(Attribute::operation_pointwise_x));
    const Node* second = op.ref(Attribute::operation_pointwise_b);
    const Node* third = op.ref(Attribute::operation_pointwise_t);
    const View b = second != nullptr ? view(second) : View();
    const View t = third != nullptr ? view(third) : View();
    each(y.dims, [&](const Dims& i) {
      const double p = x.at(i), q = second != nullptr ? b.at(i) : 0;
      const auto value = [&]() -> double {
        switch (mode) {
          case Pointwise::add:
            return p + q;
          case Pointwise::sub:
            return p - q;
          case Pointwise::mul:
            return p * q;
          case Pointwise::div:
            return p / q;
          case Pointwise::exp:
            return std::exp(p);
          case Pointwise::log:
            return std::log(p);
          case Pointwise::greater_or_equal:
            return p >= q ? 1 : 0;
          case Pointwise::index:
            return static_cast<double>(
                i[static_cast<size_t>(kind.one<int64_t>(Attribute::pointwise_axis))]);
          case Pointwise::select:
            return t.at(i) != 0 ? p : q;
        }
        return 0;
      };
      y.set(i, value());
    });
  }

  void reduce(const Node& op) {
    const View x = view(op.ref(Attribute::operation_reduction_x));
    const View y = view(op.ref(Attribute::operation_reduction_y));
    const auto kind =
        op.ref(Attribute::operation_reduction)->one<Reduction>(Attribute::reduction_operator);
    const bool adds = kind == Reduction::add;
    std::map<Dims, double> results;
    each(x.dims, [&](const Dims& i) {
      Dims to{};
      for (size_t k = 0; k < 4; ++k) to[k] = i[k] * y.dims[k] / x.dims[k];
      const auto [at, fresh] = results.emplace(to, x.at(i));
      if (!fresh) at->second = adds ? at->second + x.at(i) : std::max(at->second, x.at(i));
    });
    for (const auto& [i, value] : results) y.set(i, value);
  }

  std::map<int64_t, char*> given_;
  std::map<int64_t, Place> places_;
};

Api make_stand_in() {
  Api api;
  api.get_version = [] { return size_t{91900}; };
  api.get_error_string = [](int) { return "AN_ERROR"; };
  api.get_last_error_string = [](char* text, size_t) { *text = '\0'; };
  api.create_descriptor = [](Kind kind, Descriptor* made) {
    auto* node = new Node;
    node->kind = kind;
    *made = node;
    return kSuccess;
  };
  api.destroy_descriptor = [](Descriptor node) {
    delete static_cast<Node*>(node);
    return kSuccess;
  };
  api.set_attribute = [](Descriptor node, Attribute attribute, Type type, int64_t count,
                         const void* values) {
    const auto* bytes = static_cast<const char*>(values);
    static_cast<Node*>(node)->values[attribute].assign(
        bytes, bytes + static_cast<size_t>(count) * size_of(type));
    return kSuccess;
  };
  api.get_attribute = [](Descriptor node, Attribute attribute, Type, int64_t asked, int64_t* count,
                         void* values) {
    switch (attribute) {
      case Attribute::heuristics_results:
        *count = static_cast<int64_t>(notes.size());
        break;
      case Attribute::engine_notes: {
        const std::vector<int>& own = notes.at(next_engine++);
        std::copy(own.begin(), own.end(), static_cast<int*>(values));
        *count = static_cast<int64_t>(own.size());
        break;
      }
      case Attribute::plan_workspace:
        *static_cast<int64_t*>(values) = 100;
        *count = 1;
        break;
      default:
        *count = asked;
    }
    (void)node;
    return kSuccess;
  };
  api.finalize = [](Descriptor made) {
    auto* node = static_cast<Node*>(made);
    if (node->kind == Kind::operation_graph) {
      newest_graph = node;
      next_engine = 0;
    }
    if (node->kind == Kind::plan) node->graph = newest_graph;
    return kSuccess;
  };
  api.execute = [](Handle, Descriptor plan, Descriptor pack) {
    const Execution executed(*static_cast<Node*>(plan)->graph, *static_cast<Node*>(pack));
    return kSuccess;
  };
  return api;
}

}  // namespace

TEST_CASE("cuDNN's graph: forward and backward are the attention of the CPU") {
  const Api api = make_stand_in();
  const TargetDevice target(api, "{}");
  notes = {{}};
  const auto device = make_cpu_device(1);
  for (const AttentionForm form :
       {AttentionForm{1, 9, 2, 2, 64, DType::bf16}, AttentionForm{2, 13, 6, 2, 96, DType::bf16},
        AttentionForm{1, 9, 2, 2, 192, DType::bf16, 128},
        AttentionForm{2, 7, 4, 2, 96, DType::bf16, 64}}) {
    CAPTURE(describe(form));
    const SdpaPlan forward(api, target, form, SdpaPlan::Pass::forward);
    const SdpaPlan backward(api, target, form, SdpaPlan::Pass::backward);
    CHECK(forward.workspace_bytes() == 256);
    CHECK(backward.workspace_bytes() == 256 + 4 * form.batch * form.heads * form.seq);
    std::vector<char> workspace(static_cast<size_t>(backward.workspace_bytes()));
    const AttentionKernel cpu = {
        .forward = [&](const Attention& args) { device->attention_forward(args); },
        .backward = [&](const AttentionBackward& args) { device->attention_backward(args); }};
    const AttentionKernel graphs = {.forward =
                                        [&](const Attention& args) {
                                          forward.run(nullptr,
                                                      {.qkv = args.qkv.data,
                                                       .out = args.out.data,
                                                       .lse = args.lse.data,
                                                       .scale = args.shape.scale},
                                                      workspace.data());
                                        },
                                    .backward =
                                        [&](const AttentionBackward& args) {
                                          backward.run(nullptr,
                                                       {.qkv = args.qkv.data,
                                                        .out = args.out.data,
                                                        .lse = args.lse.data,
                                                        .dout = args.dout.data,
                                                        .dqkv = args.dqkv.data,
                                                        .scale = args.shape.scale},
                                                       workspace.data());
                                        }};
    const AttentionTrial trial = try_attention(*device, form, cpu, graphs);
    CHECK(trial.out_error < 5e-3);
    CHECK(trial.lse_error < 1e-4);
    CHECK(trial.gradient_error < 5e-3);
    CHECK(trial.repeats);
  }
}

TEST_CASE("cuDNN's graph: an engine that is not deterministic is not taken") {
  const Api api = make_stand_in();
  const TargetDevice target(api, "{}");
  const SdpaForm form = {1, 8, 1, 1, 64, DType::bf16};
  notes = {{1, kNondeterministic}, {0}};
  CHECK_NOTHROW(SdpaPlan(api, target, form, SdpaPlan::Pass::backward));
  notes = {{kNondeterministic}, {kNondeterministic, 0}};
  try {
    const SdpaPlan plan(api, target, form, SdpaPlan::Pass::backward);
    FAIL("taken all the same");
  } catch (const Failure& failure) {
    CHECK(failure.why.find("its engines for this graph are not deterministic") !=
          std::string::npos);
  }
  notes = {};
  try {
    const SdpaPlan plan(api, target, form, SdpaPlan::Pass::forward);
    FAIL("without an engine");
  } catch (const Failure& failure) {
    CHECK(failure.why ==
          "cuDNN 9.19.0 has no plan for attention 1x8, 1 heads of 64, BF16 "
          "(forward): it has no engine for this graph");
  }
}
