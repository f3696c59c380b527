// How products are asked of cuBLASLt: what it is told of each, how often it has to choose an
// algorithm, and which one a product gets. (What is asked: cuda_matmul_plan.cpp.)
#if defined(MTL_TEST_CUDA_LIBRARY)

#include <map>
#include <random>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/cuda/lt_words.h"
#include "support/fake_cublaslt.h"

using namespace mtl;
using namespace mtl::cuda;
using namespace mtl::test;

namespace {

// Pointers that nobody reads.
alignas(64) char memory[4096];

// A linear's product as plan_matmul makes it, with so many tokens: its output, the gradients of its
// input and of its weight.
enum class Of { output, input, weight };
LtGemm linear(Of of, int64_t tokens) {
  const int64_t in = 96, out = 48;
  LtGemm gemm;
  gemm.first_type = gemm.second_type = gemm.result_type = DType::bf16;
  switch (of) {
    case Of::output:
      gemm.rows = out, gemm.columns = tokens, gemm.k = in;
      gemm.transpose_first = true;
      gemm.ld_first = gemm.ld_second = in, gemm.ld_result = out;
      break;
    case Of::input:
      gemm.rows = in, gemm.columns = tokens, gemm.k = out;
      gemm.ld_first = gemm.ld_result = in, gemm.ld_second = out;
      break;
    case Of::weight:
      gemm.rows = in, gemm.columns = out, gemm.k = tokens;
      gemm.transpose_second = true;
      gemm.ld_first = gemm.ld_result = in, gemm.ld_second = out;
      gemm.result_type = DType::f32;
      gemm.add = true;
      break;
  }
  return gemm;
}
constexpr Of kAll[] = {Of::output, Of::input, Of::weight};
int64_t& tokens_of(LtGemm& gemm, Of of) {
  return of == Of::weight ? gemm.k : gemm.columns;
}

LtOperands operands_of(const LtGemm& gemm, int64_t offset = 0) {
  LtOperands operands{memory + offset, memory + 256, memory + 512};
  const LtEpilogue epilogue = gemm.epilogue;
  if (epilogue == LtEpilogue::bias || epilogue == LtEpilogue::gelu_aux_bias) {
    operands.bias = memory + 1024;
  }
  if (gemm.ld_aux > 0) operands.aux = memory + 2048;
  if (gemm.first_type == DType::f8_e4m3 || gemm.first_type == DType::f8_e5m2) {
    operands.scale_first = memory + 3072;
    operands.scale_second = memory + 3076;
  }
  return operands;
}
bool same(const LtOperands& a, const LtOperands& b) {
  return a.first == b.first && a.second == b.second && a.result == b.result && a.bias == b.bias &&
         a.aux == b.aux && a.scale_first == b.scale_first && a.scale_second == b.scale_second;
}

}  // namespace

TEST_CASE("cuda products: cuBLASLt is told what was asked for") {
  fake_cublaslt = {};
  {
    LtMatmul lt;
    std::mt19937 random(3);
    const auto any = [&](int64_t most) { return int64_t{1} + random() % most; };
    constexpr DType kAllTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3,
                                   DType::f8_e5m2};
    constexpr LtEpilogue kEpilogues[] = {LtEpilogue::none,          LtEpilogue::bias,
                                         LtEpilogue::gelu_aux,      LtEpilogue::dgelu,
                                         LtEpilogue::gelu_aux_bias, LtEpilogue::none};
    for (int i = 0; i < 2000; ++i) {
      LtGemm gemm;
      gemm.first_type = kAllTypes[random() % 5];
      gemm.second_type = random() % 2 == 0 ? gemm.first_type : kAllTypes[random() % 5];
      gemm.result_type = kAllTypes[random() % 3];
      gemm.rows = any(200), gemm.columns = any(200), gemm.k = any(200);
      gemm.transpose_first = random() % 2 == 0;
      gemm.transpose_second = random() % 2 == 0;
      gemm.ld_first = (gemm.transpose_first ? gemm.k : gemm.rows) + any(3) - 1;
      gemm.ld_second = (gemm.transpose_second ? gemm.columns : gemm.k) + any(3) - 1;
      gemm.ld_result = gemm.rows + any(3) - 1;
      gemm.add = random() % 2 == 0;
      gemm.epilogue = kEpilogues[random() % 6];
      gemm.fast_sums = random() % 4 == 0;
      const bool aux = gemm.epilogue == LtEpilogue::gelu_aux || gemm.epilogue == LtEpilogue::dgelu;
      if (aux || gemm.epilogue == LtEpilogue::gelu_aux_bias) gemm.ld_aux = gemm.rows + 8;
      const LtOperands operands = operands_of(gemm);
      if (operands.bias != nullptr) gemm.bias_type = kAllTypes[random() % 3];
      CHECK(lt.has(gemm, operands));
      lt.run(gemm, operands, nullptr);
      CHECK(fake_cublaslt.calls.back().gemm == gemm);
      CHECK(same(fake_cublaslt.calls.back().operands, operands));
    }
  }
  CHECK(fake_cublaslt.descriptors == 0);
}

TEST_CASE("cuda products: pointers may change from call to call, alignment asks anew") {
  fake_cublaslt = {};
  LtMatmul lt;
  LtGemm gemm = linear(Of::output, 128);
  gemm.epilogue = LtEpilogue::bias;
  gemm.bias_type = DType::bf16;
  for (const int64_t offset : {0, 16, 64, 4096 - 16}) {
    LtOperands operands = operands_of(gemm, offset);
    operands.bias = memory + offset;
    lt.run(gemm, operands, nullptr);
    CHECK(same(fake_cublaslt.calls.back().operands, operands));
  }
  CHECK(fake_cublaslt.queries == 1);
  lt.run(gemm, operands_of(gemm, 2), nullptr);
  CHECK(fake_cublaslt.queries == 2);
}

TEST_CASE("cuda products: numbers of tokens that change cost few choices, the same in any order") {
  for (const Of of : kAll) {
    CAPTURE(static_cast<int>(of));
    // Up, then down: the algorithm of a number does not depend on those before it.
    std::vector<LtGemm> chosen;
    for (const bool down : {false, true}) {
      fake_cublaslt = {};
      LtMatmul lt;
      for (int64_t i = 0; i < 1000; ++i) {
        const int64_t tokens = down ? 1000 - i : i + 1;
        const LtGemm gemm = linear(of, tokens);
        REQUIRE(lt.has(gemm, operands_of(gemm)));
        lt.run(gemm, operands_of(gemm), nullptr);
        const LtCall& call = fake_cublaslt.calls.back();
        REQUIRE(call.gemm == gemm);
        LtGemm expected = gemm;
        if (tokens > 64) tokens_of(expected, of) = (tokens + 63) / 64 * 64;
        REQUIRE(call.chosen_for == expected);
      }
      CHECK(fake_cublaslt.queries == 64 + 15);
    }
  }
}

TEST_CASE("cuda products: what lies side by side in memory is not rounded") {
  LtGemm gemm = linear(Of::output, 100);
  gemm.rows = gemm.ld_result = 100;
  gemm.k = gemm.ld_first = gemm.ld_second = 200;
  LtGemm expected = gemm;
  expected.columns = 128;
  CHECK(choice_of(gemm) == expected);
  // FP8's gradient of a weight has its tokens along the rows of both.
  gemm.columns = 48;
  CHECK(choice_of(gemm) == gemm);
  // A transposed second one has its columns, and one that is not its k.
  gemm.transpose_second = true;
  gemm.columns = gemm.ld_second = 100;
  CHECK(choice_of(gemm) == gemm);
  gemm.transpose_first = false;
  gemm.ld_first = 100;
  expected = gemm;
  expected.k = 256;
  CHECK(choice_of(gemm) == expected);
}

TEST_CASE("cuda products: where the choice does not do, the product has one of its own") {
  fake_cublaslt = {};
  const LtGemm gemm = linear(Of::weight, 1001);
  const LtGemm other = linear(Of::weight, 1008);
  // An algorithm that wants an even k.
  fake_cublaslt.does = [](const LtCall& call) { return call.gemm.k % 2 == 0; };
  {
    LtMatmul lt;
    for (int i = 0; i < 3; ++i) {
      // Twice in a row, and asked before, as the device does.
      for (int again = 0; again < 2; ++again) {
        CHECK(lt.has(gemm, operands_of(gemm)));
        lt.run(gemm, operands_of(gemm), nullptr);
        CHECK(fake_cublaslt.calls.back().gemm == gemm);
        CHECK(fake_cublaslt.calls.back().chosen_for == gemm);
      }
      lt.run(other, operands_of(other), nullptr);
      CHECK(fake_cublaslt.calls.back().gemm == other);
      CHECK(fake_cublaslt.calls.back().chosen_for == choice_of(other));
    }
    CHECK(fake_cublaslt.queries == 2);
  }
  // None for the choice; and none at all.
  fake_cublaslt = {};
  fake_cublaslt.algorithms = [](const LtGemm& asked) { return asked.k == 1001 ? 1 : 0; };
  LtMatmul lt;
  CHECK(lt.has(gemm, operands_of(gemm)));
  lt.run(gemm, operands_of(gemm), nullptr);
  CHECK(fake_cublaslt.calls.back().chosen_for == gemm);
  CHECK_FALSE(lt.has(other, operands_of(other)));
  CHECK_THROWS_AS(lt.run(other, operands_of(other), nullptr), Error);
}

TEST_CASE("cuda products: what is named and refused all the same gives way to the next") {
  const LtGemm gemm = linear(Of::weight, 1001);
  for (const bool own : {false, true}) {
    CAPTURE(own);
    fake_cublaslt = {};
    fake_cublaslt.algorithms = [](const LtGemm&) { return 3; };
    // Two of the choice's; or all of the choice's, and one of the product's own.
    fake_cublaslt.refuses = [&](const LtCall& call) {
      return own ? !(call.chosen_for == gemm) || call.place == 0 : call.place < 2;
    };
    LtMatmul lt;
    for (int again = 0; again < 2; ++again) {
      CHECK(lt.has(gemm, operands_of(gemm)));
      lt.run(gemm, operands_of(gemm), nullptr);
      REQUIRE(fake_cublaslt.calls.size() == static_cast<size_t>(again + 1));
      CHECK(fake_cublaslt.calls.back().gemm == gemm);
      CHECK(fake_cublaslt.calls.back().chosen_for == (own ? gemm : choice_of(gemm)));
      CHECK(fake_cublaslt.calls.back().place == (own ? 1 : 2));
    }
    CHECK(fake_cublaslt.queries == (own ? 4 + 2 : 3));
  }
  // All of them: an error, and none for this product, or its choice, from then on.
  fake_cublaslt = {};
  fake_cublaslt.refuses = [](const LtCall&) { return true; };
  LtMatmul lt;
  CHECK(lt.has(gemm, operands_of(gemm)));
  CHECK_THROWS_AS(lt.run(gemm, operands_of(gemm), nullptr), Error);
  CHECK_FALSE(lt.has(gemm, operands_of(gemm)));
  CHECK_FALSE(lt.has(choice_of(gemm), operands_of(gemm)));
  CHECK(fake_cublaslt.calls.empty());
}

TEST_CASE("cuda products: a measurement takes any algorithm that there is") {
  fake_cublaslt = {};
  fake_cublaslt.algorithms = [](const LtGemm&) { return 3; };
  LtMatmul lt;
  const LtGemm gemm = linear(Of::output, 100);
  const LtOperands operands = operands_of(gemm);
  const std::vector<LtAlgorithm> there = lt.candidates(gemm, operands, 64);
  REQUIRE(there.size() == 3);
  CHECK(lt.candidates(gemm, operands, 2).size() == 2);
  for (const size_t place : {2, 0, 1}) {
    CHECK(lt.take(gemm, operands, there[place]));
    CHECK(lt.choice(gemm, operands).second == there[place]);
    lt.run(gemm, operands, nullptr);
    CHECK(fake_cublaslt.calls.back().place == static_cast<int>(place));
    CHECK(fake_cublaslt.calls.back().gemm == gemm);
  }
  // One that is refused when it comes to it is not taken any more.
  fake_cublaslt.refuses = [](const LtCall& call) { return call.place == 2; };
  CHECK(lt.take(gemm, operands, there[2]));
  lt.run(gemm, operands, nullptr);
  CHECK(fake_cublaslt.calls.back().place == 0);
  CHECK(lt.choice(gemm, operands).second != there[2]);
  // Nor is one that does not do here; that it would for its choice does not matter.
  fake_cublaslt.does = [](const LtCall&) { return false; };
  CHECK_FALSE(lt.take(gemm, operands, there[1]));
  CHECK(LtMatmul::version() == "13.1.2");
  // None at all.
  fake_cublaslt.algorithms = [](const LtGemm&) { return 0; };
  CHECK(lt.candidates(gemm, operands, 64).empty());
}

TEST_CASE("cuda products: of algorithms with the same numbers a measurement has the first") {
  fake_cublaslt = {};
  fake_cublaslt.algorithms = [](const LtGemm&) { return 6; };
  fake_cublaslt.tile = [](int place) { return 10 + place / 2; };
  LtMatmul lt;
  const LtGemm gemm = linear(Of::output, 100);
  const LtOperands operands = operands_of(gemm);
  const std::vector<LtAlgorithm> there = lt.candidates(gemm, operands, 64);
  REQUIRE(there.size() == 3);
  for (size_t i = 0; i < there.size(); ++i) {
    CHECK(lt.take(gemm, operands, there[i]));
    lt.run(gemm, operands, nullptr);
    CHECK(fake_cublaslt.calls.back().place == 2 * static_cast<int>(i));
    const std::string words = words_of(there[i]);
    CHECK(words.starts_with(fmt::format("id 0 tile {} stages 0 cluster 0 ", 10 + i)));
  }
}

TEST_CASE("cuda products: what has been measured is taken, where it does and is not refused") {
  fake_cublaslt = {};
  fake_cublaslt.algorithms = [](const LtGemm&) { return 3; };
  // Of these tokens alone, which the heuristics would be asked for as 1,024.
  const LtGemm gemm = linear(Of::weight, 1001), other = linear(Of::weight, 1008);
  const LtOperands operands = operands_of(gemm);
  std::map<LtForm, LtAlgorithm> choices;
  {
    LtMatmul measuring;
    CHECK(measuring.take(gemm, operands, measuring.candidates(gemm, operands, 3).at(2)));
    choices.insert(measuring.choice(gemm, operands));
  }
  fake_cublaslt.queries = 0;
  {
    LtMatmul lt(choices);
    CHECK(lt.has(gemm, operands));
    lt.run(gemm, operands, nullptr);
    CHECK(fake_cublaslt.calls.back().place == 2);
    CHECK(fake_cublaslt.calls.back().chosen_for == gemm);
    CHECK(fake_cublaslt.queries == 0);
    lt.run(other, operands, nullptr);
    CHECK(fake_cublaslt.calls.back().place == 0);
    CHECK(fake_cublaslt.calls.back().chosen_for == choice_of(other));
    // Otherwise aligned it is another product.
    lt.run(gemm, operands_of(gemm, 2), nullptr);
    CHECK(fake_cublaslt.calls.back().place == 0);
    CHECK(fake_cublaslt.queries == 2);
  }
  // cuBLASLt says that it does not do here; or refuses it when it comes to it.
  for (const bool refuses : {false, true}) {
    CAPTURE(refuses);
    fake_cublaslt.queries = 0;
    const auto is_it = [](const LtCall& call) { return call.place == 2; };
    fake_cublaslt.does = [&](const LtCall& call) { return refuses || !is_it(call); };
    fake_cublaslt.refuses = [&](const LtCall& call) { return refuses && is_it(call); };
    LtMatmul lt(choices);
    for (int again = 0; again < 2; ++again) {
      CHECK(lt.has(gemm, operands));
      lt.run(gemm, operands, nullptr);
      CHECK(fake_cublaslt.calls.back().gemm == gemm);
      CHECK(fake_cublaslt.calls.back().place == 0);
    }
    CHECK(fake_cublaslt.queries == 1);
  }
}

#endif
