// fill, cast, scale, add, blend, copies: one pass. Bytes per element, with s the size of the type:
// fill s, cast 6, scale 2 s, add and blend 3 s, copy 2 s.
#include "runtime/device/cuda/kernels.h"

namespace mtl::cuda {

namespace {

template <typename T>
struct Fill {
  T* x;
  float value;
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> values;
    for (int k = 0; k < N; ++k) values.at[k] = value;
    store(x + i, values);
  }
};

template <typename T>
struct Scale {
  T* x;
  float factor;
  template <int N>
  __device__ void at(int64_t i) const {
    Floats<N> values = load<N>(x + i);
    for (int k = 0; k < N; ++k) values.at[k] *= factor;
    store(x + i, values);
  }
};

template <typename T>
struct Add {
  const T* x;
  T* y;
  template <int N>
  __device__ void at(int64_t i) const {
    const Floats<N> addend = load<N>(x + i);
    Floats<N> sum = load<N>(y + i);
    for (int k = 0; k < N; ++k) sum.at[k] += addend.at[k];
    store(y + i, sum);
  }
};

template <typename T>
struct Blend {
  const T* x;
  T* y;
  float of_x, of_y;
  template <int N>
  __device__ void at(int64_t i) const {
    const Floats<N> other = load<N>(x + i);
    Floats<N> sum = load<N>(y + i);
    for (int k = 0; k < N; ++k) sum.at[k] = other.at[k] * of_x + sum.at[k] * of_y;
    store(y + i, sum);
  }
};

template <typename From, typename To>
struct Cast {
  const From* from;
  To* to;
  template <int N>
  __device__ void at(int64_t i) const {
    store(to + i, load<N>(from + i));
  }
};

// Words are copied as such; the bytes behind the last whole word one by one.
template <typename Word>
__global__ void __launch_bounds__(kBlock)
    copy_kernel(const unsigned char* from, unsigned char* to, int64_t bytes) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  const int64_t me = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  for (int64_t i = me; i < words; i += threads) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
  const int64_t byte = words * static_cast<int64_t>(sizeof(Word)) + me;
  if (byte < bytes) to[byte] = from[byte];
}

template <typename Word>
void copy_words(Queue& queue, Tensor from, Tensor to) {
  launch(copy_kernel<Word>,
         blocks_for(queue, from.bytes(), int64_t{kBlock} * static_cast<int64_t>(sizeof(Word))),
         dim3(kBlock), 0, queue.stream(), from.as<const unsigned char>(), to.as<unsigned char>(),
         from.bytes());
}

// Rows of `width` words, a warp each.
template <typename Word>
__global__ void __launch_bounds__(kBlock)
    columns_kernel(const Word* from, int64_t from_stride, Word* to, int64_t to_stride, int64_t rows,
                   int64_t width) {
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows; row += warps) {
    MTL_UNROLL(2)
    for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) {
      to[row * to_stride + i] = from[row * from_stride + i];
    }
  }
}

template <typename Word>
void copy_columns_of(Queue& queue, const CopyColumns& args) {
  const int64_t element = bytes_of(args.from.dtype), word = sizeof(Word);
  launch(columns_kernel<Word>, blocks_for(queue, args.from.rows(), kWarps), dim3(kBlock), 0,
         queue.stream(), reinterpret_cast<const Word*>(args.from.at(0, args.from_column)),
         args.from.cols() * element / word, reinterpret_cast<Word*>(args.to.at(0, args.to_column)),
         args.to.cols() * element / word, args.from.rows(), args.columns * element / word);
}

struct Regroup {
  int64_t n;
  int cols, width;  // of a row, and of one of a block
  int pieces[3] = {}, piece[3] = {}, copies[3] = {};
  bool to_rows;
};
// A block per row.
template <typename T, int N>
__global__ void __launch_bounds__(kBlock) regroup_kernel(Regroup a, T* rows, T* blocks) {
  for (int64_t row = blockIdx.x; row < a.n; row += gridDim.x) {
    for (int col = static_cast<int>(threadIdx.x) * N; col < a.cols; col += kBlock * N) {
      int in_section = col, in_block = 0, section = 0, piece = a.piece[0], copies = a.copies[0];
      for (int s = 0; s < 2; ++s) {
        const int columns = a.pieces[s] * a.piece[s];
        if (section != s || in_section < columns) continue;
        in_section -= columns;
        in_block += a.piece[s];
        section = s + 1;
        piece = a.piece[s + 1];
        copies = a.copies[s + 1];
      }
      const int which = in_section / piece;
      T* const in_rows = rows + row * a.cols + col;
      T* const first = blocks + (int64_t{which} * copies * a.n + row) * a.width + in_block +
                       in_section - which * piece;
      Floats<N> value = load<N>(a.to_rows ? first : in_rows);
      if (!a.to_rows) store(first, value);
      for (int i = 1; i < copies; ++i) {
        T* const copy = first + i * a.n * a.width;
        if (!a.to_rows) {
          store(copy, value);
          continue;
        }
        const Floats<N> more = load<N>(copy);
        for (int k = 0; k < N; ++k) value.at[k] += more.at[k];
      }
      if (a.to_rows) store(in_rows, value);
    }
  }
}

struct Bytes {
  unsigned char at[kMostBytesInArguments];
};
__global__ void __launch_bounds__(kMostBytesInArguments)
    write_kernel(Bytes from, int bytes, unsigned char* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < bytes) to[i] = from.at[i];
}

// Four elements: 16 bytes of the f32, 8 of the other.
template <typename From, typename To>
void cast_as(Queue& queue, Tensor from, Tensor to) {
  const bool packs = aligned({from.data}, 4 * sizeof(From)) && aligned({to.data}, 4 * sizeof(To));
  with_pack<4>(packs, [&](auto pack) {
    each<decltype(pack)::value>(queue, from.numel(),
                                Cast<From, To>{from.as<const From>(), to.as<To>()});
  });
}

}  // namespace

void fill(Queue& queue, Tensor x, float value) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data}), [&](auto pack) {
      each<decltype(pack)::value>(queue, x.numel(), Fill<T>{x.as<T>(), value});
    });
  });
}

void cast(Queue& queue, Tensor from, Tensor to) {
  if (from.dtype == to.dtype) {
    if (from.data != to.data) copy(queue, from, to);
  } else if (from.dtype == DType::bf16) {
    cast_as<Bf16, float>(queue, from, to);
  } else if (from.dtype == DType::f16) {
    cast_as<Half, float>(queue, from, to);
  } else if (to.dtype == DType::bf16) {
    cast_as<float, Bf16>(queue, from, to);
  } else {
    cast_as<float, Half>(queue, from, to);
  }
}

void scale(Queue& queue, Tensor x, float factor) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data}), [&](auto pack) {
      each<decltype(pack)::value>(queue, x.numel(), Scale<T>{x.as<T>(), factor});
    });
  });
}

void add(Queue& queue, Tensor x, Tensor y) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data, y.data}), [&](auto pack) {
      each<decltype(pack)::value>(queue, x.numel(), Add<T>{x.as<const T>(), y.as<T>()});
    });
  });
}

void blend(Queue& queue, Tensor x, Tensor y, float of_x, float of_y) {
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_pack<kPackOf<T>>(aligned({x.data, y.data}), [&](auto pack) {
      each<decltype(pack)::value>(queue, x.numel(),
                                  Blend<T>{x.as<const T>(), y.as<T>(), of_x, of_y});
    });
  });
}

void write(Queue& queue, Tensor to, const void* from) {
  Bytes bytes = {};
  std::memcpy(bytes.at, from, static_cast<size_t>(to.bytes()));
  launch(write_kernel, dim3(1), dim3(static_cast<unsigned>(kMostBytesInArguments)), 0,
         queue.stream(), bytes, static_cast<int>(to.bytes()), to.as<unsigned char>());
}

void copy(Queue& queue, Tensor from, Tensor to) {
  if (aligned({from.data, to.data})) {
    copy_words<uint4>(queue, from, to);
  } else if (aligned({from.data, to.data}, 4)) {
    copy_words<uint32_t>(queue, from, to);
  } else if (aligned({from.data, to.data}, 2)) {
    copy_words<uint16_t>(queue, from, to);
  } else {
    copy_words<uint8_t>(queue, from, to);
  }
}

void copy_columns(Queue& queue, const CopyColumns& args) {
  const int64_t element = bytes_of(args.from.dtype);
  const auto in_words = [&](int64_t word) {
    const bool whole = args.from.cols() * element % word == 0 &&
                       args.to.cols() * element % word == 0 && args.columns * element % word == 0;
    return whole && aligned({args.from.at(0, args.from_column), args.to.at(0, args.to_column)},
                            static_cast<size_t>(word));
  };
  if (in_words(16)) {
    copy_columns_of<uint4>(queue, args);
  } else if (in_words(4)) {
    copy_columns_of<uint32_t>(queue, args);
  } else if (in_words(2)) {
    copy_columns_of<uint16_t>(queue, args);
  } else {
    copy_columns_of<uint8_t>(queue, args);
  }
}

void regroup_columns(Queue& queue, const ColumnBlocks& args) {
  Regroup regroup = {.n = args.rows.rows(),
                     .cols = static_cast<int>(args.rows.cols()),
                     .width = static_cast<int>(args.blocks.cols()),
                     .to_rows = args.to_rows};
  with_type(args.rows.dtype, [&](auto type) {
    using T = decltype(type);
    bool packs = aligned({args.rows.data, args.blocks.data});
    for (size_t s = 0; s < args.sections.size(); ++s) {
      const ColumnSection& section = args.sections[s];
      regroup.pieces[s] = static_cast<int>(section.pieces);
      regroup.piece[s] = static_cast<int>(section.width());
      regroup.copies[s] = static_cast<int>(args.parts / section.pieces);
      packs = packs && section.width() % kPackOf<T> == 0;
    }
    with_pack<kPackOf<T>>(packs, [&](auto pack) {
      launch(regroup_kernel<T, decltype(pack)::value>, blocks_for(queue, regroup.n, 1),
             dim3(kBlock), 0, queue.stream(), regroup, args.rows.as<T>(), args.blocks.as<T>());
    });
  });
}

}  // namespace mtl::cuda
