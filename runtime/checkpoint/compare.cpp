#include "runtime/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/elements_as_double.h"
#include "runtime/checkpoint/whole_tensor.h"

namespace mtl {

namespace {

// Adds what elements [0, n) of two pieces differ in.
void compare_piece(DType dtype, const char* a, const char* b, int64_t n, TensorDifference& found) {
  const auto element = static_cast<size_t>(bytes_of(dtype));
  if (std::memcmp(a, b, static_cast<size_t>(n) * element) == 0) return;
  for (int64_t i = 0; i < n; ++i) {
    const size_t at = static_cast<size_t>(i) * element;
    if (std::memcmp(a + at, b + at, element) == 0) continue;
    ++found.elements;
    const double x = element_as_double(dtype, a, i), y = element_as_double(dtype, b, i);
    if (std::isnan(x) && std::isnan(y)) continue;
    const double abs = x == y ? 0 : std::abs(x - y);
    const double largest = std::max(std::abs(x), std::abs(y));
    const double rel = abs == 0 ? 0 : std::isinf(largest) ? 1 : abs / largest;
    // NaN wins, and stays.
    const auto raise = [](double& most, double value) {
      if (std::isnan(value) || value > most) most = value;
    };
    if (!std::isnan(found.max_abs)) raise(found.max_abs, abs);
    if (!std::isnan(found.max_rel)) raise(found.max_rel, std::isnan(abs) ? abs : rel);
  }
}

std::map<std::string, TensorInfo> by_name(const CheckpointReader& reader) {
  std::map<std::string, TensorInfo> tensors;
  for (TensorInfo& tensor : tensors_of(reader)) tensors[tensor.name] = std::move(tensor);
  return tensors;
}

}  // namespace

CheckpointDifference compare(const std::filesystem::path& a_dir, const std::filesystem::path& b_dir,
                             bool state) {
  CheckpointReader a(a_dir), b(b_dir);
  CheckpointDifference difference;
  if (state) difference.state = nlohmann::json::diff(a.state(), b.state());
  std::set<std::string> extras;
  for (const CheckpointReader* reader : {&a, &b}) {
    for (const std::string& name : reader->extras()) extras.insert(name);
  }
  for (const std::string& name : extras) {
    const auto content = [&](const CheckpointReader& reader) {
      const auto names = reader.extras();
      const bool there = std::find(names.begin(), names.end(), name) != names.end();
      return there ? std::optional(reader.extra(name)) : std::nullopt;
    };
    if (content(a) != content(b)) difference.extras.push_back(name);
  }
  const auto of_a = by_name(a), of_b = by_name(b);
  std::set<std::string> names;
  for (const auto& [name, ignored] : of_a) names.insert(name);
  for (const auto& [name, ignored] : of_b) names.insert(name);
  std::vector<char> x, y;
  for (const std::string& name : names) {
    TensorDifference found{.tensor = name, .what = ""};
    const auto in_a = of_a.find(name), in_b = of_b.find(name);
    if (in_b == of_b.end()) {
      found.what = "only in A";
    } else if (in_a == of_a.end()) {
      found.what = "only in B";
    } else if (in_a->second.shape != in_b->second.shape) {
      found.what = "shape";
    } else if (in_a->second.dtype != in_b->second.dtype) {
      found.what = "dtype";
    } else {
      const TensorInfo& tensor = in_a->second;
      const DType dtype = dtype_of(tensor, a_dir.string());
      for (int64_t at = 0; at < tensor.elements; at += kPieceElements) {
        const int64_t n = std::min(kPieceElements, tensor.elements - at);
        x.resize(static_cast<size_t>(n * bytes_of(dtype)));
        y.resize(x.size());
        read_elements(a, tensor, dtype, at, n, x.data());
        read_elements(b, in_b->second, dtype, at, n, y.data());
        compare_piece(dtype, x.data(), y.data(), n, found);
      }
      if (found.elements > 0) found.what = "values";
    }
    if (found.what.empty()) {
      ++difference.equal_tensors;
    } else {
      difference.tensors.push_back(std::move(found));
    }
  }
  return difference;
}

}  // namespace mtl
