// The heads of latent attention against a reference in double, and their gradients as the
// transposed map.
#include "runtime/device/ops_test.h"

namespace mtl::test::latent_heads {

namespace {

struct Case {
  int64_t rows, heads, dim, rope_dim, value_dim;
  int64_t latent_cols, seq, first_position = 0;
  double amplitude = 1;
};
// DeepSeek's shapes, odd ones that come in no packs, a key that is rotated as a whole, sequences
// behind one another, a part of a sequence that begins later.
const Case kCases[] = {
    {1, 1, 2, 2, 1, 2, 1},           {3, 2, 7, 4, 5, 9, 2},
    {7, 3, 24, 8, 16, 8, 7},         {9, 4, 40, 16, 8, 48, 3, 4},
    {5, 2, 8, 8, 8, 24, 16, 13},     {70, 2, 192, 64, 128, 576, 35, 100, 1.25},
    {33, 16, 96, 32, 64, 32, 11, 0}, {130, 1, 33, 18, 40, 20, 64, 2, 0.5},
};

// The tensors of a case, filled at random but for what an op writes.
struct Heads {
  Heads(const Case& shape, DType type, std::mt19937& random, bool backward, int64_t positions = 0)
      : c(shape),
        queries(type, {c.rows, c.heads * c.dim}),
        pairs(type, {c.rows, c.heads * (c.dim - c.rope_dim + c.value_dim)}),
        latents(type, {c.rows, c.latent_cols}),
        qkv(type, {c.rows, c.heads * (2 * c.dim + c.value_dim)}),
        table(DType::f32, {c.first_position + c.seq + positions, c.rope_dim}) {
    for (Held* const held : {&queries, &pairs, &latents, &qkv}) held->randomize(random);
    for (Held* const held : {&queries, &pairs}) {
      for (int64_t i = 0; backward && i < held->size(); ++i) held->set(i, NAN);
    }
    for (int64_t i = 0; !backward && i < qkv.size(); ++i) qkv.set(i, NAN);
    fill_table(table, c.rope_dim, c.amplitude);
  }
  LatentHeads args(bool backward) const {
    return {.queries = queries.view,
            .pairs = pairs.view,
            .latents = latents.view,
            .qkv = qkv.view,
            .heads = c.heads,
            .head_dim = c.dim,
            .rope_dim = c.rope_dim,
            .value_dim = c.value_dim,
            .table = table.view,
            .seq = c.seq,
            .first_position = c.first_position,
            .backward = backward};
  }
  Case c;
  Held queries, pairs, latents, qkv, table;
};

struct Values {
  std::vector<double> queries, pairs, latents, qkv;
};

// Where an element of the qkv comes from: so many times elements of the three.
struct Source {
  const char* tensor;
  int64_t at;
  double factor;
};
// body(index in the qkv, sources): the definition of the op, element by element.
template <typename Body>
void each_element(const Heads& h, const std::vector<int64_t>& positions, Body body) {
  const Case& c = h.c;
  const int64_t kept = c.dim - c.rope_dim, pair = kept + c.value_dim;
  const int64_t width = c.heads * (2 * c.dim + c.value_dim);
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t position =
        positions.empty() ? c.first_position + row % c.seq : positions[static_cast<size_t>(row)];
    // Element i of what is rotated, of which the first is at `first` of the tensor.
    const auto rotated = [&](const char* tensor, int64_t first, int64_t i) {
      const int64_t angle = position * c.rope_dim + i / 2;
      const double cosine = h.table[angle], sine = h.table[angle + c.rope_dim / 2];
      const int64_t even = first + i - i % 2;
      if (i % 2 == 0) return std::vector<Source>{{tensor, even, cosine}, {tensor, even + 1, -sine}};
      return std::vector<Source>{{tensor, even, sine}, {tensor, even + 1, cosine}};
    };
    for (int64_t head = 0; head < c.heads; ++head) {
      const int64_t query = (row * c.heads + head) * c.dim, of_pair = (row * c.heads + head) * pair;
      const int64_t shared = (row + 1) * c.latent_cols - c.rope_dim;
      const int64_t q = row * width + head * c.dim, k = q + c.heads * c.dim;
      const int64_t v = row * width + 2 * c.heads * c.dim + head * c.value_dim;
      for (int64_t i = 0; i < kept; ++i) {
        body(q + i, std::vector<Source>{{"queries", query + i, 1}});
        body(k + i, std::vector<Source>{{"pairs", of_pair + i, 1}});
      }
      for (int64_t i = 0; i < c.rope_dim; ++i) {
        body(q + kept + i, rotated("queries", query + kept, i));
        body(k + kept + i, rotated("latents", shared, i));
      }
      for (int64_t i = 0; i < c.value_dim; ++i) {
        body(v + i, std::vector<Source>{{"pairs", of_pair + kept + i, 1}});
      }
    }
  }
}

// What forward writes into the qkv, and backward into the three.
Values expected(const Heads& h, const std::vector<int64_t>& positions = {}) {
  const auto zeros = [](const Held& x) {
    return std::vector<double>(static_cast<size_t>(x.size()));
  };
  Values want = {zeros(h.queries), zeros(h.pairs), h.latents.values(), zeros(h.qkv)};
  const Case& c = h.c;
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto end = want.latents.begin() + (row + 1) * c.latent_cols;
    std::fill(end - c.rope_dim, end, 0.0);
  }
  each_element(h, positions, [&](int64_t at, const std::vector<Source>& sources) {
    for (const Source& s : sources) {
      const std::string tensor = s.tensor;
      const Held& from = tensor == "queries" ? h.queries : tensor == "pairs" ? h.pairs : h.latents;
      auto& to = tensor == "queries" ? want.queries : tensor == "pairs" ? want.pairs : want.latents;
      want.qkv[static_cast<size_t>(at)] += s.factor * from[s.at];
      to[static_cast<size_t>(s.at)] += s.factor * h.qkv[at];
    }
  });
  return want;
}

void check_case(Device& device, const Case& c, DType type) {
  CAPTURE(c.rows);
  CAPTURE(c.heads);
  CAPTURE(c.dim);
  CAPTURE(c.value_dim);
  CAPTURE(safetensors_name(type));
  std::mt19937 random(1);
  Heads forward(c, type, random, false);
  const Values want = expected(forward);
  device.latent_heads(forward.args(false));
  check_close(forward.qkv, want.qkv, 2e-6, "qkv");  // three roundings of numbers below 8
  Heads backward(c, type, random, true);
  const Values gradients = expected(backward);
  device.latent_heads(backward.args(true));
  check_close(backward.queries, gradients.queries, 2e-6, "gradient of queries");
  check_close(backward.pairs, gradients.pairs, 0, "gradient of pairs");
  // Sums of up to 16 heads; what is not rotated stays as it was.
  check_close(backward.latents, gradients.latents, 1e-5, "gradient of latents");
}

}  // namespace

TEST_CASE("latent_heads puts queries, keys and values together, and backward takes them apart") {
  for_each_device([](Device& device) {
    for (const Case& c : kCases) {
      for (const DType type : kComputeTypes) check_case(device, c, type);
    }
  });
}

TEST_CASE("latent_heads by positions that are given") {
  for_each_device([](Device& device) {
    std::mt19937 random(3);
    for (Case c : {kCases[1], kCases[3], kCases[5]}) {
      c.first_position = 1000;  // not looked at
      for (const DType type : kComputeTypes) {
        std::vector<int64_t> at;
        Held positions(DType::i32, {c.rows});
        for (int64_t row = 0; row < c.rows; ++row) {
          at.push_back(static_cast<int64_t>(random() % 50));
          positions.set(row, static_cast<double>(at.back()));
        }
        for (const bool backward : {false, true}) {
          Heads heads(c, type, random, backward);
          const Values want = expected(heads, at);
          LatentHeads args = heads.args(backward);
          args.positions = positions.view;
          device.latent_heads(args);
          if (backward) {
            check_close(heads.queries, want.queries, 2e-6, "gradient of queries");
            check_close(heads.latents, want.latents, 1e-5, "gradient of latents");
          } else {
            check_close(heads.qkv, want.qkv, 2e-6, "qkv");
          }
        }
      }
    }
  });
}

TEST_CASE("latent_heads backward is the transpose of forward") {
  for_each_device([](Device& device) {
    std::mt19937 random(5);
    for (const Case& c : kCases) {
      CAPTURE(c.dim);
      Heads x(c, DType::f32, random, false), y(c, DType::f32, random, true);
      device.latent_heads(x.args(false));
      device.latent_heads(y.args(true));
      double forward = 0, backward = 0, size = 0;
      for (int64_t i = 0; i < x.qkv.size(); ++i) {
        forward += x.qkv[i] * y.qkv[i];
        size += std::abs(x.qkv[i] * y.qkv[i]);
      }
      for (int64_t i = 0; i < x.queries.size(); ++i) backward += x.queries[i] * y.queries[i];
      for (int64_t i = 0; i < x.pairs.size(); ++i) backward += x.pairs[i] * y.pairs[i];
      for (int64_t i = 0; i < x.latents.size(); ++i) {
        if (i % c.latent_cols >= c.latent_cols - c.rope_dim) {
          backward += x.latents[i] * y.latents[i];
        }
      }
      CHECK(std::abs(forward - backward) <= 1e-6 * size);
    }
  });
}

TEST_CASE("latent_heads gives a part of a sequence the bits it has in the whole") {
  for_each_device([](Device& device) {
    std::mt19937 random(7);
    const Case c = {40, 3, 24, 8, 16, 40, 40};
    for (const DType type : kComputeTypes) {
      Heads whole(c, type, random, false), part(c, type, random, false);
      LatentHeads args = whole.args(false);
      device.latent_heads(args);
      constexpr int64_t kFirst = 13, kRows = 20;
      for (Tensor* const x : {&args.queries, &args.pairs, &args.latents}) {
        *x = x->row_slice(kFirst, kRows);
      }
      args.qkv = part.qkv.view.row_slice(0, kRows);
      args.seq = kRows;
      args.first_position = kFirst;
      device.latent_heads(args);
      const int64_t width = whole.qkv.view.cols();
      int64_t others = 0;
      for (int64_t i = 0; i < kRows * width; ++i) {
        others += part.qkv[i] != whole.qkv[kFirst * width + i];
      }
      CHECK(others == 0);
    }
  });
}

}  // namespace mtl::test::latent_heads
