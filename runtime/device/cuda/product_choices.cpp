#include "runtime/device/cuda/product_choices.h"

#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/error.h"
#include "common/files.h"
#include "common/text.h"

namespace mtl::cuda {

namespace {

constexpr std::string_view kFirstLine = "mtl-products 1";
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e5m2};
constexpr std::pair<LtEpilogue, std::string_view> kEpilogues[] = {
    {LtEpilogue::none, "none"},
    {LtEpilogue::bias, "bias"},
    {LtEpilogue::gelu_aux, "gelu_aux"},
    {LtEpilogue::gelu_aux_bias, "gelu_aux_bias"},
    {LtEpilogue::dgelu, "dgelu"},
    {LtEpilogue::sums_of_first, "sums_of_first"},
    {LtEpilogue::sums_of_second, "sums_of_second"}};

// In the order of a line's words.
constexpr std::string_view kTypesOf[] = {"first", "second", "result", "bias"};
auto types_of(auto& gemm) {
  return std::array{&gemm.first_type, &gemm.second_type, &gemm.result_type, &gemm.bias_type};
}
constexpr std::string_view kSizesOf[] = {"rows",      "columns",   "k",     "ld_first",
                                         "ld_second", "ld_result", "ld_aux"};
auto sizes_of(auto& gemm) {
  return std::array{&gemm.rows,      &gemm.columns,   &gemm.k,     &gemm.ld_first,
                    &gemm.ld_second, &gemm.ld_result, &gemm.ld_aux};
}
constexpr std::string_view kFlagsOf[] = {"transposed_first", "transposed_second", "add",
                                         "fast_sums"};
auto flags_of(auto& gemm) {
  return std::array{&gemm.transpose_first, &gemm.transpose_second, &gemm.add, &gemm.fast_sums};
}

// The words of one line, one after the other. Each returns nothing where the word does not do.
class Words {
 public:
  explicit Words(const std::string& line) : line_(line) {}
  std::optional<std::string> next() {
    std::string word;
    if (!(line_ >> word)) return std::nullopt;
    return word;
  }
  std::optional<DType> type() {
    const auto word = next();
    for (const DType type : kTypes) {
      if (word == safetensors_name(type)) return type;
    }
    return std::nullopt;
  }
  std::optional<LtEpilogue> epilogue() {
    const auto word = next();
    for (const auto& [epilogue, name] : kEpilogues) {
      if (word == name) return epilogue;
    }
    return std::nullopt;
  }
  template <typename Number>
  std::optional<Number> number() {
    const auto word = next();
    return word ? to_number<Number>(*word) : std::nullopt;
  }

 private:
  std::istringstream line_;
};

template <typename T>
bool take(std::optional<T> from, T& to) {
  if (from) to = *from;
  return from.has_value();
}

// What is wrong with a line that is a choice, behind its first word.
std::string read_choice(Words& words, LtForm& form, LtAlgorithm& algorithm) {
  const auto types = types_of(form.gemm);
  for (size_t i = 0; i < types.size(); ++i) {
    if (!take(words.type(), *types[i])) return fmt::format("no type of '{}'", kTypesOf[i]);
  }
  if (!take(words.epilogue(), form.gemm.epilogue)) return "no epilogue";
  const auto sizes = sizes_of(form.gemm);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!take(words.number<int64_t>(), *sizes[i]) || *sizes[i] < 0) {
      return fmt::format("no number for '{}'", kSizesOf[i]);
    }
  }
  const auto flags = flags_of(form.gemm);
  for (size_t i = 0; i < flags.size(); ++i) {
    const auto flag = words.number<int>();
    if (!flag || *flag < 0 || *flag > 1) return fmt::format("no 0 or 1 for '{}'", kFlagsOf[i]);
    *flags[i] = *flag == 1;
  }
  const auto alignments = words.number<int64_t>();
  if (!alignments || *alignments < 0 || *alignments > UINT32_MAX) return "no 'alignments'";
  form.alignments = static_cast<uint32_t>(*alignments);
  for (uint64_t& word : algorithm) {
    if (!take(words.number<uint64_t>(), word)) return "an algorithm is eight numbers";
  }
  return words.next() ? "words behind the algorithm" : "";
}

}  // namespace

std::string to_text(const ProductChoices& choices) {
  std::string text =
      fmt::format("{}\ngpu {}\ncublaslt {}\n# {} epilogue {} {} alignments algorithm\n", kFirstLine,
                  choices.gpu, choices.cublaslt, fmt::join(kTypesOf, " "), fmt::join(kSizesOf, " "),
                  fmt::join(kFlagsOf, " "));
  for (const auto& [form, algorithm] : choices.algorithms) {
    text += "product";
    for (const DType* type : types_of(form.gemm))
      text += fmt::format(" {}", safetensors_name(*type));
    for (const auto& [epilogue, name] : kEpilogues) {
      if (epilogue == form.gemm.epilogue) text += fmt::format(" {}", name);
    }
    for (const int64_t* size : sizes_of(form.gemm)) text += fmt::format(" {}", *size);
    for (const bool* flag : flags_of(form.gemm)) text += *flag ? " 1" : " 0";
    text += fmt::format(" {} {}\n", form.alignments, fmt::join(algorithm, " "));
  }
  return text;
}

ProductChoices parse_product_choices(const std::string& text, const std::string& path) {
  ProductChoices choices;
  const auto refuse = [&](size_t line, const std::string& why) {
    throw Error(Exit::usage, {.code = "gpu.products",
                              .what = fmt::format("this is no file of chosen products: {}", why),
                              .place = Place{.file = path, .line = static_cast<int>(line)},
                              .help = "MTL_PRODUCTS takes what `bench/products_gpu --choose FILE` "
                                      "has written; without it cuBLASLt's heuristics choose"});
  };
  const std::vector<std::string> lines = lines_of(text);
  if (lines.empty() || lines[0] != kFirstLine) {
    refuse(1, fmt::format("its first line is not '{}'", kFirstLine));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    Words words(lines[i]);
    const std::string key = words.next().value_or("#");
    if (key[0] == '#') continue;
    const auto rest = [&] {
      return lines[i].size() > key.size() ? lines[i].substr(key.size() + 1) : "";
    };
    if (key == "gpu") {
      choices.gpu = rest();
    } else if (key == "cublaslt") {
      choices.cublaslt = rest();
    } else if (key == "product") {
      LtForm form;
      LtAlgorithm algorithm{};
      const std::string wrong = read_choice(words, form, algorithm);
      if (!wrong.empty()) refuse(i + 1, wrong);
      choices.algorithms[form] = algorithm;
    } else {
      refuse(i + 1, fmt::format("'{}' begins no line of it", key));
    }
  }
  if (choices.gpu.empty() || choices.cublaslt.empty()) {
    refuse(lines.size(), "it does not say of which GPU and cuBLASLt");
  }
  return choices;
}

std::map<LtForm, LtAlgorithm> product_choices(const char* variable, const std::string& gpu,
                                              const std::string& cublaslt,
                                              const std::function<void(const std::string&)>& tell) {
  if (variable == nullptr || *variable == '\0') return {};
  const std::string path = variable;
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw Error(Exit::usage,
                {.code = "gpu.products",
                 .what = fmt::format("MTL_PRODUCTS={}: {}", path, error.diagnostics().front().what),
                 .help = "name a file that is there on every machine, or unset it: "
                         "then cuBLASLt's heuristics choose"});
  }
  ProductChoices choices = parse_product_choices(text, path);
  if (choices.gpu == gpu && choices.cublaslt == cublaslt) return std::move(choices.algorithms);
  tell(
      fmt::format("MTL_PRODUCTS={} is of {} with cuBLASLt {}, and this is {} with {}: cuBLASLt's "
                  "heuristics choose",
                  path, choices.gpu, choices.cublaslt, gpu, cublaslt));
  return {};
}

}  // namespace mtl::cuda
