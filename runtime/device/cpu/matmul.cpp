#include "runtime/device/cpu/matmul.h"

#include <algorithm>
#include <map>
#include <omp.h>
#include <string>
#include <tuple>
#include <unordered_map>

#include <dnnl.hpp>
#include <fmt/format.h>

#include "common/error.h"
#include "runtime/device/cpu/isa.h"
#include "runtime/device/cpu/kernels/matmul_kernels.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/device/float8_matmul.h"

namespace mtl {
namespace {

using dnnl::memory;

const MatmulKernels& matmul_kernels() {
  switch (cpu_isa()) {
    case Isa::avx512:
      return avx512::kMatmulKernels;
    case Isa::avx2:
      return avx2::kMatmulKernels;
    case Isa::base:
      break;
  }
  return base::kMatmulKernels;
}

// The loops of a 16-bit type.
struct HalfKernels {
  decltype(MatmulKernels::narrow) narrow;
  decltype(MatmulKernels::gelu_bf16) gelu;
  decltype(MatmulKernels::gelu_grad_narrow) gelu_grad_narrow;
};
HalfKernels half_kernels(DType dtype) {
  const MatmulKernels& k = matmul_kernels();
  if (dtype == DType::f16) return {k.narrow_f16, k.gelu_f16, k.gelu_grad_narrow_f16};
  return {k.narrow, k.gelu_bf16, k.gelu_grad_narrow};
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

[[noreturn]] void fail(const std::string& what) {
  Diagnostic diagnostic;
  diagnostic.code = "device.matmul";
  diagnostic.what = what;
  diagnostic.help = "this is a defect of mtl; please report it with the command line";
  throw Error(Exit::run_failed, diagnostic);
}

constexpr int64_t kSlice = 3072;       // of k, see run_sliced
constexpr int64_t kSums = 8 << 20;     // elements, see run_sliced: fewer rows read B more often
constexpr size_t kMostEntries = 4096;  // primitives that are kept
constexpr int64_t kBlock = 2 << 20;    // elements, see run_in_blocks

struct Shape {
  int64_t m, n, k;
  int64_t row_of_a;  // elements from one stored row of A to the next
};

Shape checked_shape(const Matmul& args) {
  const int64_t m = args.transpose_a ? args.a.cols() : args.a.rows();
  const int64_t k = args.transpose_a ? args.a.rows() : args.a.cols();
  const int64_t n = args.transpose_b ? args.b.rows() : args.b.cols();
  const int64_t k_of_b = args.transpose_b ? args.b.cols() : args.b.rows();
  if (k != k_of_b || args.c.rows() != m || args.c.cols() != n) {
    fail(fmt::format("matmul of [{}, {}] by [{}, {}] into [{}, {}]: the shapes do not fit", m, k,
                     k_of_b, n, args.c.rows(), args.c.cols()));
  }
  // FP8 stands beside bf16.
  const DType type = is_float8_matmul(args) ? DType::bf16 : args.a.dtype;
  if (is_float8_matmul(args)) {
    if (const std::string what = float8_misfit(args); !what.empty()) fail(what);
  } else if (!is_compute_type(type) || args.b.dtype != type ||
             (args.c.dtype != type && args.c.dtype != DType::f32)) {
    fail("matmul of unsupported element types");
  }
  if (args.bias) {
    if (args.bias.numel() != n) {
      fail(fmt::format("matmul with {} columns and a bias of {} elements", n, args.bias.numel()));
    }
    if (!is_compute_type(args.bias.dtype) ||
        (type != DType::f32 && args.bias.dtype != type && args.bias.dtype != DType::f32)) {
      fail("matmul with a bias of an unsupported element type");
    }
  }
  if (args.epilogue != Epilogue::none) {
    if (!args.aux || args.aux.numel() != m * n || args.aux.dtype != args.c.dtype) {
      fail("a GELU epilogue needs `aux` with the shape and type of the result");
    }
    if (args.accumulate) fail("a GELU epilogue cannot accumulate");
  }
  return {m, n, k, args.a.cols()};
}

// Runs body(first, count) over [0, total), cut into chunks for the threads.
template <typename Body>
void parallel_chunks(int64_t total, const Body& body) {
  constexpr int64_t kChunk = 16384;
  const int64_t chunks = (total + kChunk - 1) / kChunk;
#pragma omp parallel for schedule(static) if (chunks > 1)
  for (int64_t i = 0; i < chunks; ++i) {
    body(i * kChunk, std::min(kChunk, total - i * kChunk));
  }
}

template <typename Body>
void parallel_rows(int64_t rows, const Body& body) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; ++i) body(i);
}

float* f32_at(const Tensor& x, int64_t i) {
  return x.as<float>() + i;
}
uint16_t* half_at(const Tensor& x, int64_t i) {
  return x.as<uint16_t>() + i;
}

// Of any type, to f32.
void widen(const Tensor& from, int64_t first, float* to, int64_t count) {
  const MatmulKernels& k = matmul_kernels();
  if (from.dtype == DType::f32) {
    std::copy_n(f32_at(from, first), count, to);
  } else if (from.dtype == DType::bf16) {
    k.widen(half_at(from, first), to, count);
  } else if (from.dtype == DType::f16) {
    k.widen_f16(half_at(from, first), to, count);
  } else {
    const auto loop = from.dtype == DType::f8_e5m2 ? k.widen_e5m2 : k.widen_e4m3;
    loop(from.as<uint8_t>() + first, to, count);
  }
}

// Some rows and columns of a stored matrix.
struct Part {
  int64_t row, rows, col, cols;
};

// They are put one behind the other.
Tensor widened(const Tensor& from, const Part& part, Workspace& space) {
  const int64_t numel = part.rows * part.cols, width = from.cols();
  const Tensor to(space.get(static_cast<size_t>(numel) * 4), DType::f32, {part.rows, part.cols});
  if (part.cols == width) {
    parallel_chunks(numel, [&](int64_t first, int64_t count) {
      widen(from, part.row * width + first, f32_at(to, first), count);
    });
  } else {
    parallel_rows(part.rows, [&](int64_t i) {
      widen(from, (part.row + i) * width + part.col, f32_at(to, i * part.cols), part.cols);
    });
  }
  return to;
}

// Sizes of blocks of which A's, B's and C's have kBlock elements at most: the larger side of one
// that has more is halved.
Shape blocks_of(const Shape& whole) {
  Shape size = whole;
  const auto limit = [](int64_t& a, int64_t& b) {
    while (a * b > kBlock) {
      int64_t& larger = a > b ? a : b;
      larger = ((larger + 1) / 2 + 63) / 64 * 64;
    }
  };
  limit(size.m, size.k);
  limit(size.k, size.n);
  limit(size.m, size.n);
  return size;
}

// A block of C, with the gradient of GELU, as it is stored.
void narrow(const Matmul& args, const Tensor& to, const Part& part, const Tensor& block) {
  const auto some = [&](int64_t at, const float* from, int64_t count) {
    if (to.dtype == DType::f32) {
      std::copy_n(from, count, f32_at(to, at));
    } else if (args.epilogue == Epilogue::gelu_grad) {
      half_kernels(to.dtype).gelu_grad_narrow(half_at(args.aux, at), from, half_at(to, at), count);
    } else {
      half_kernels(to.dtype).narrow(from, half_at(to, at), count);
    }
  };
  const int64_t width = to.cols();
  if (part.cols == width) {
    parallel_chunks(block.numel(), [&](int64_t first, int64_t count) {
      some(part.row * width + first, f32_at(block, first), count);
    });
  } else {
    parallel_rows(part.rows, [&](int64_t i) {
      some((part.row + i) * width + part.col, f32_at(block, i * part.cols), part.cols);
    });
  }
}

}  // namespace

struct CpuMatmul::Impl {
  // Everything that a oneDNN primitive is made for.
  // m, n, k, distance of A's rows, flags, threads
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int, int>;
  struct Entry {
    dnnl::matmul primitive;
    dnnl::reorder pack;  // of B, when `packs`
    bool packs = false;
    memory a, b, packed_b, c, bias, scratchpad;
    size_t scratchpad_bytes = 0, packed_bytes = 0;
  };

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Entry> entries;
  Workspace scratchpad, packed, wide_a, wide_b, wide_c, wide_bias;

  Entry& entry(const Shape& shape, const Matmul& args);
  void run_primitive(const Shape& shape, const Matmul& args);
  void run_sgemm(const Shape& shape, const Matmul& args);
  void run_in_blocks(const Shape& shape, const Matmul& args);
  void run_sliced(const Shape& shape, const Matmul& args);
  void finish_float8(const Matmul& args, const Tensor& to, const Part& part, float* rows);
  void product(const Shape& shape, const Matmul& args);
};

CpuMatmul::Impl::Entry& CpuMatmul::Impl::entry(const Shape& shape, const Matmul& args) {
  int flags = 0;
  for (const bool flag : {args.transpose_a, args.transpose_b, args.accumulate,
                          args.a.dtype == DType::bf16, args.c.dtype == DType::bf16,
                          static_cast<bool>(args.bias), args.bias.dtype == DType::bf16}) {
    flags = flags * 2 + flag;
  }
  const Key key{shape.m, shape.n, shape.k, shape.row_of_a, flags, omp_get_max_threads()};
  if (const auto found = entries.find(key); found != entries.end()) return found->second;

  // Experts have another number of rows each time: what was made for each is not kept for ever.
  if (entries.size() >= kMostEntries) entries.clear();

  using tag = memory::format_tag;
  const auto type = type_of(args.a.dtype);
  const memory::desc a(
      {shape.m, shape.k}, type,
      args.transpose_a ? memory::dims{1, shape.row_of_a} : memory::dims{shape.row_of_a, 1});
  const memory::desc b({shape.k, shape.n}, type, args.transpose_b ? tag::ba : tag::ab);
  const memory::desc c({shape.m, shape.n}, type_of(args.c.dtype), tag::ab);
  const memory::desc bias =
      args.bias ? memory::desc({1, shape.n}, type_of(args.bias.dtype), tag::ab) : memory::desc();
  dnnl::primitive_attr attributes;
  // The scratch memory (copies of B and the like) is ours, one block for all primitives.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (args.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  // With A transposed (the gradient of a weight) and few rows, oneDNN's own copy of B is slower
  // than packing it once beforehand: 10 to 25 % at k = 256; at k = 4096 it is the other way round.
  const bool packs = args.transpose_a && args.a.dtype == DType::bf16 && shape.k <= 1024;
  const auto wanted_b = packs ? memory::desc({shape.k, shape.n}, type, tag::any) : b;
  const auto description =
      args.bias ? dnnl::matmul::desc(a, wanted_b, bias, c) : dnnl::matmul::desc(a, wanted_b, c);
  const dnnl::matmul::primitive_desc chosen(description, attributes, engine);
  Entry made;
  made.primitive = dnnl::matmul(chosen);
  made.a = memory(a, engine, nullptr);
  made.b = memory(b, engine, nullptr);
  made.c = memory(c, engine, nullptr);
  if (args.bias) made.bias = memory(bias, engine, nullptr);
  if (packs && chosen.weights_desc() != b) {
    made.packs = true;
    made.packed_b = memory(chosen.weights_desc(), engine, nullptr);
    made.pack = dnnl::reorder(made.b, made.packed_b);
    made.packed_bytes = chosen.weights_desc().get_size();
  }
  made.scratchpad = memory(chosen.scratchpad_desc(), engine, nullptr);
  made.scratchpad_bytes = chosen.scratchpad_desc().get_size();
  return entries.emplace(key, std::move(made)).first->second;
}

void CpuMatmul::Impl::run_primitive(const Shape& shape, const Matmul& args) {
  Entry& e = entry(shape, args);
  e.a.set_data_handle(args.a.data);
  e.b.set_data_handle(args.b.data);
  e.c.set_data_handle(args.c.data);
  if (e.scratchpad_bytes > 0) e.scratchpad.set_data_handle(scratchpad.get(e.scratchpad_bytes));
  if (e.packs) {
    e.packed_b.set_data_handle(packed.get(e.packed_bytes));
    e.pack.execute(stream, e.b, e.packed_b);
  }
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, e.a},
                                               {DNNL_ARG_WEIGHTS, e.packs ? e.packed_b : e.b},
                                               {DNNL_ARG_DST, e.c},
                                               {DNNL_ARG_SCRATCHPAD, e.scratchpad}};
  if (args.bias) {
    e.bias.set_data_handle(args.bias.data);
    arguments.emplace(DNNL_ARG_BIAS, e.bias);
  }
  e.primitive.execute(stream, arguments);
  stream.wait();
}

// f32 in, f32 out, bias by a pass of its own.
void CpuMatmul::Impl::run_sgemm(const Shape& shape, const Matmul& args) {
  const auto status =
      dnnl_sgemm(args.transpose_a ? 'T' : 'N', args.transpose_b ? 'T' : 'N', shape.m, shape.n,
                 shape.k, 1.0f, args.a.as<float>(), args.transpose_a ? shape.m : shape.k,
                 args.b.as<float>(), args.transpose_b ? shape.k : shape.n,
                 args.accumulate ? 1.0f : 0.0f, args.c.as<float>(), shape.n);
  if (status != dnnl_success) fail("oneDNN refused a matmul");
  if (!args.bias) return;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < shape.m; ++i) {
    matmul_kernels().add(args.bias.as<float>(), f32_at(args.c, i * shape.n), shape.n);
  }
}

// f16, which oneDNN does not know on CPUs, FP8, and bf16 without tiles: the operands are widened
// and multiplied in f32, where their values are exact. For bf16 that is faster than AVX512_BF16,
// and it works everywhere. Block by block, so that it needs three workspaces of 8 MB however long
// the operands are (the head's in f32 would be twice the largest weight).
void CpuMatmul::Impl::run_in_blocks(const Shape& shape, const Matmul& args) {
  const bool float8 = is_float8_matmul(args);
  const Tensor& result = args.epilogue == Epilogue::gelu ? args.aux : args.c;
  const Tensor to(result.data, result.dtype, {shape.m, shape.n});
  const Shape size = blocks_of(shape);
  const bool whole_rows = size.n == shape.n, whole_k = size.k == shape.k;
  const bool in_place = !float8 && to.dtype == DType::f32 && whole_rows;
  const bool adds = args.accumulate && !float8;
  Matmul wide;
  wide.transpose_a = args.transpose_a;
  wide.transpose_b = args.transpose_b;
  for (int64_t i = 0; i < shape.m; i += size.m) {
    const int64_t m = std::min(size.m, shape.m - i);
    for (int64_t j = 0; j < shape.n; j += size.n) {
      const int64_t n = std::min(size.n, shape.n - j);
      const Part part = {i, m, j, n};
      if (in_place) {
        wide.c = to.row_slice(i, m);
      } else if (adds) {
        wide.c = widened(to, part, wide_c);
      } else {
        wide.c = Tensor(wide_c.get(static_cast<size_t>(m * n) * 4), DType::f32, {m, n});
      }
      for (int64_t l = 0; l < shape.k; l += size.k) {
        const int64_t k = std::min(size.k, shape.k - l);
        // What the block before had is still there.
        if (!whole_k || j == 0) {
          const Part a = args.transpose_a ? Part{l, k, i, m} : Part{i, m, l, k};
          wide.a = widened(args.a, a, wide_a);
        }
        if (!whole_k || !whole_rows || i == 0) {
          const Part b = args.transpose_b ? Part{j, n, l, k} : Part{l, k, j, n};
          wide.b = widened(args.b, b, wide_b);
        }
        wide.accumulate = adds || l > 0;
        wide.bias = args.bias && !float8 && l == 0 ? args.bias.slice(j, n) : Tensor{};
        product({m, n, k, wide.a.cols()}, wide);
      }
      if (float8) finish_float8(args, to, part, f32_at(wide.c, 0));
      if (!in_place) narrow(args, to, part, wide.c);
    }
  }
}

// The scales, what C was, and the bias, in the order in which cuBLASLt has them.
void CpuMatmul::Impl::finish_float8(const Matmul& args, const Tensor& to, const Part& part,
                                    float* rows) {
  const float scale = *args.scale_a.as<float>() * *args.scale_b.as<float>();
  const float* bias = nullptr;
  if (args.bias) {
    auto* const copy = static_cast<float*>(wide_bias.get(static_cast<size_t>(part.cols) * 4));
    widen(args.bias, part.col, copy, part.cols);
    bias = copy;
  }
  parallel_rows(part.rows, [&](int64_t i) {
    const int64_t at = (part.row + i) * to.cols() + part.col;
    float* const row = rows + i * part.cols;
    matmul_kernels().scale(row, scale, part.cols);
    if (args.accumulate && to.dtype == DType::f32) {
      matmul_kernels().add(f32_at(to, at), row, part.cols);
    } else if (args.accumulate) {
      matmul_kernels().widen_add(half_at(to, at), row, part.cols);
    }
    if (bias != nullptr) matmul_kernels().add(bias, row, part.cols);
  });
}

// A long k in slices, summed in f32: the slices of B stay in the caches. For the gradient of the
// head's input (k = vocabulary). Where C is bf16, so many rows at a time as have room for sums.
void CpuMatmul::Impl::run_sliced(const Shape& shape, const Matmul& args) {
  const bool narrows = args.c.dtype == DType::bf16;
  const int64_t most = narrows ? std::max<int64_t>(1, kSums / shape.n) : shape.m;
  for (int64_t i = 0; i < shape.m; i += most) {
    const int64_t m = std::min(most, shape.m - i);
    const Tensor to = args.c.row_slice(i, m);
    Matmul part = args;
    part.c = to;
    if (narrows) {
      part.c.dtype = DType::f32;
      part.c.data = wide_c.get(static_cast<size_t>(part.c.bytes()));
      part.accumulate = false;
    }
    for (int64_t first = 0; first < shape.k; first += kSlice) {
      const int64_t k = std::min(kSlice, shape.k - first);
      part.a = Tensor(half_at(args.a, i * shape.row_of_a + first), DType::bf16, {m, k});
      part.b = Tensor(half_at(args.b, first * shape.n), DType::bf16, {k, shape.n});
      run_primitive({m, shape.n, k, shape.row_of_a}, part);
      part.accumulate = true;
    }
    if (!narrows) continue;
    parallel_chunks(to.numel(), [&](int64_t first, int64_t count) {
      float* from = f32_at(part.c, first);
      if (args.accumulate) matmul_kernels().widen_add(half_at(to, first), from, count);
      matmul_kernels().narrow(from, half_at(to, first), count);
    });
  }
}

// Which way, measured on two cores with AVX-512 over the shapes of GPT-2 (tests/bench/matmul.cpp):
// the matmul primitive is as fast as sgemm when B is transposed, and up to twice slower in f32 when
// it is not; sgemm has too much overhead for small products.
void CpuMatmul::Impl::product(const Shape& shape, const Matmul& given) {
  Matmul args = given;
  if (args.a.dtype == DType::f32 && args.bias && args.bias.dtype != DType::f32) {
    args.bias.dtype = DType::f32;  // oneDNN takes a bf16 bias only beside bf16 operands
    args.bias.data = wide_bias.get(static_cast<size_t>(args.bias.bytes()));
    widen(given.bias, 0, f32_at(args.bias, 0), shape.n);
  }
  constexpr double kLarge = 1 << 22;  // multiply-adds
  const double work =
      static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  if (args.a.dtype == DType::f32 && !args.transpose_b && work >= kLarge) {
    run_sgemm(shape, args);
  } else if (args.a.dtype == DType::bf16 && !args.transpose_a && !args.transpose_b && !args.bias &&
             shape.k >= 4 * kSlice) {
    run_sliced(shape, args);
  } else {
    run_primitive(shape, args);
  }
}

CpuMatmul::CpuMatmul() : impl_(std::make_unique<Impl>()) {}
CpuMatmul::~CpuMatmul() = default;

void CpuMatmul::gelu(const Tensor& aux, const Tensor& c) const {
  parallel_chunks(c.numel(), [&](int64_t first, int64_t count) {
    if (c.dtype == DType::f32) {
      matmul_kernels().gelu_f32(f32_at(aux, first), f32_at(c, first), count);
    } else {
      half_kernels(c.dtype).gelu(half_at(aux, first), half_at(c, first), count);
    }
  });
}

void CpuMatmul::run(const Matmul& args) {
  const Shape shape = checked_shape(args);
  if (shape.m == 0 || shape.n == 0) return;
  const bool wide = is_float8_matmul(args) || args.a.dtype == DType::f16 ||
                    (args.a.dtype == DType::bf16 && !has_amx_bf16());
  Matmul plain = args;
  plain.epilogue = Epilogue::none;
  if (args.epilogue == Epilogue::gelu) plain.c = args.aux;
  if (wide) {
    impl_->run_in_blocks(shape, args);
  } else {
    impl_->product(shape, plain);
  }
  const bool f32 = args.c.dtype == DType::f32;
  if (args.epilogue == Epilogue::gelu) {
    gelu(args.aux, args.c);
  } else if (args.epilogue == Epilogue::gelu_grad && (f32 || !wide)) {
    parallel_chunks(args.c.numel(), [&](int64_t first, int64_t count) {
      if (f32) {
        matmul_kernels().gelu_grad_f32(f32_at(args.aux, first), f32_at(args.c, first), count);
      } else {
        matmul_kernels().gelu_grad_bf16(half_at(args.aux, first), half_at(args.c, first), count);
      }
    });
  }
}

}  // namespace mtl
