// The file of algorithms that were measured: what is written is read again, what is wrong in it is
// said with its line, and what was measured elsewhere is left alone.
#include <map>
#include <random>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "runtime/device/cuda/product_choices.h"
#include "support/errors.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::cuda;
using namespace mtl::test;

namespace {

ProductChoices some_choices() {
  ProductChoices choices{.gpu = "NVIDIA H200", .cublaslt = "13.1.2", .algorithms = {}};
  std::mt19937_64 random(5);
  const auto flag = [&] { return random() % 2 == 0; };
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e5m2};
  for (int i = 0; i < 200; ++i) {
    LtForm form;
    LtGemm& gemm = form.gemm;
    for (DType* type : {&gemm.first_type, &gemm.second_type, &gemm.result_type, &gemm.bias_type}) {
      *type = kTypes[random() % 5];
    }
    for (int64_t* size : {&gemm.rows, &gemm.columns, &gemm.k, &gemm.ld_first, &gemm.ld_second,
                          &gemm.ld_result, &gemm.ld_aux}) {
      *size = static_cast<int64_t>(random() >> (1 + random() % 60));
    }
    gemm.transpose_first = flag(), gemm.transpose_second = flag();
    gemm.add = flag(), gemm.fast_sums = flag();
    gemm.epilogue = static_cast<LtEpilogue>(random() % 7);
    form.alignments = static_cast<uint32_t>(random());
    for (uint64_t& word : choices.algorithms[form]) word = random() >> (random() % 64);
  }
  return choices;
}

std::map<LtForm, LtAlgorithm> read(const std::string& path, const std::string& gpu,
                                   const std::string& cublaslt, std::string& told) {
  return product_choices(path.c_str(), gpu, cublaslt,
                         [&](const std::string& line) { told = line; });
}

}  // namespace

TEST_CASE("cuda product choices: what was written is read") {
  const ProductChoices choices = some_choices();
  const TempDir folder;
  std::string told;
  const std::string written = folder.file("written", to_text(choices));
  CHECK(read(written, "NVIDIA H200", "13.1.2", told) == choices.algorithms);
  CHECK(told.empty());
  // As people may leave it.
  const std::string edited = folder.file("edited", to_text(choices) + "\n  # the end");
  CHECK(read(edited, "NVIDIA H200", "13.1.2", told) == choices.algorithms);
  CHECK(told.empty());
}

TEST_CASE("cuda product choices: of another GPU or cuBLASLt none is taken, and that is said") {
  const TempDir folder;
  const std::string path = folder.file("choices", to_text(some_choices()));
  for (const auto& [gpu, cublaslt] :
       {std::pair("NVIDIA H100 80GB HBM3", "13.1.2"), std::pair("NVIDIA H200", "13.1.0")}) {
    std::string told;
    CHECK(read(path, gpu, cublaslt, told).empty());
    CHECK(told.find("is of NVIDIA H200 with cuBLASLt 13.1.2, and this is " + std::string(gpu) +
                    " with " + cublaslt) != std::string::npos);
  }
}

TEST_CASE(
    "cuda product choices: without MTL_PRODUCTS there are none, and a wrong file is refused") {
  const auto tell = [](const std::string& line) { FAIL(line); };
  CHECK(product_choices(nullptr, "a GPU", "1", tell).empty());
  CHECK(product_choices("", "a GPU", "1", tell).empty());
  const Diagnostic missing =
      refusal_of([&] { product_choices("/nonexistent/choices", "a GPU", "1", tell); }, Exit::usage);
  CHECK(missing.code == "gpu.products");
  CHECK(missing.what.find("MTL_PRODUCTS=/nonexistent/choices") != std::string::npos);

  const std::string head = "mtl-products 1\ngpu a GPU\ncublaslt 1\n";
  const std::string product =
      "product BF16 BF16 F32 F32 none 8 16 32 8 32 8 0 0 1 1 0 17318416 1 2 3 4 5 6 7 255";
  const std::pair<std::string, std::pair<std::string, int>> wrong[] = {
      {"", {"its first line is not", 1}},
      {"mtl-products 2\n", {"its first line is not", 1}},
      {"mtl-products 1\ngpu a GPU\n", {"which GPU and cuBLASLt", 2}},
      {head + product.substr(0, product.size() - 4), {"eight numbers", 4}},
      {head + product + " 9", {"words behind", 4}},
      {head + "\nproduct BF17", {"no type of 'first'", 5}},
      {head + "product BF16 BF16 F32 I32", {"no type of 'bias'", 4}},
      {head + "product BF16 BF16 F32 F32 relu", {"no epilogue", 4}},
      {head + "product BF16 BF16 F32 F32 none 8 -16", {"no number for 'columns'", 4}},
      {head + "product BF16 BF16 F32 F32 none 8 16 32 8 32 8 0 0 1 2", {"0 or 1 for 'add'", 4}},
      {head + "produkt", {"'produkt' begins no line", 4}}};
  CHECK(parse_product_choices(head + product, "choices").algorithms.size() == 1);
  for (const auto& [text, says] : wrong) {
    const std::string& content = text;
    CAPTURE(content);
    const Diagnostic refusal =
        refusal_of([&] { parse_product_choices(content, "choices"); }, Exit::usage);
    CHECK(refusal.code == "gpu.products");
    CHECK(refusal.what.find(says.first) != std::string::npos);
    REQUIRE(refusal.place.has_value());
    CHECK(refusal.place->file == "choices");
    CHECK(refusal.place->line == says.second);
  }
}
