// The mean of checkpoints (rewrite.h).
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/elements_as_double.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/checkpoint/whole_tensor.h"
#include "runtime/checkpoint/write_parts.h"
#include "runtime/plan/model_shape.h"
#include "runtime/plan/shape_settings.h"

namespace mtl {

void store_double(DType dtype, double value, void* data, int64_t i) {
  const auto put = [&](auto bits) {
    std::memcpy(static_cast<char*>(data) + i * static_cast<int64_t>(sizeof bits), &bits,
                sizeof bits);
  };
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::f32:
      return put(narrow);
    case DType::f64:
      return put(value);
    case DType::f16:
      return put(f32_to_f16(narrow));
    case DType::bf16:
      return put(f32_to_bf16(narrow));
    case DType::i32:
    case DType::u8:
    case DType::u16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
}

namespace {

[[noreturn]] void fail_other_model(const std::filesystem::path& a, const std::filesystem::path& b,
                                   const std::string& what) {
  throw Error(Exit::data,
              Diagnostic{.code = "ckpt.shape",
                         .what = fmt::format("{} and {} are not of the same model: {}", a.string(),
                                             b.string(), what),
                         .help = "give checkpoints of one run, or of runs of one model"});
}

// What makes them two models although their weights have the same shapes: another number of heads,
// other frequencies, tokens of another text. Empty: nothing.
std::string difference_of(const CheckpointReader& a, const CheckpointReader& b) {
  const nlohmann::json nothing;
  const nlohmann::json first = a.state().value("model", nothing);
  const nlohmann::json second = b.state().value("model", nothing);
  if (first.is_object() && second.is_object()) {
    // What an older version did not know yet is filled in by reading it.
    const nlohmann::json mine = to_json(model_shape_from_json(first));
    const nlohmann::json theirs = to_json(model_shape_from_json(second));
    for (const auto& [field, key] : kShapeSettings) {
      const nlohmann::json here = mine.value(field, nothing), there = theirs.value(field, nothing);
      if (here != there) return fmt::format("{} is {} and {}", key, here.dump(), there.dump());
    }
  }
  const auto tokenizer_of = [](const CheckpointReader& reader) {
    const std::vector<std::string> extras = reader.extras();
    const bool any = std::find(extras.begin(), extras.end(), kTokenizerFile) != extras.end();
    return any ? reader.extra(kTokenizerFile) : std::string();
  };
  const std::string mine = tokenizer_of(a), theirs = tokenizer_of(b);
  const bool same = mine.empty() || theirs.empty() || mine == theirs;
  return same ? "" : "their tokenizers differ";
}

}  // namespace

void average_checkpoints(const std::vector<std::filesystem::path>& checkpoints,
                         const std::filesystem::path& out) {
  std::vector<std::shared_ptr<CheckpointReader>> readers;
  std::vector<std::map<std::string, TensorInfo>> tensors;
  for (const std::filesystem::path& path : checkpoints) {
    readers.push_back(std::make_shared<CheckpointReader>(path));
    refuse_adapters(*readers.back(),
                    path.string() +
                        " has adapters, and the product of two means is no mean of "
                        "products");
    tensors.emplace_back();
    for (TensorInfo& tensor : tensors_of(*readers.back())) {
      if (!tensor.optimizer) tensors.back()[tensor.name] = std::move(tensor);
    }
  }
  for (size_t i = 1; i < tensors.size(); ++i) {
    for (const auto& [name, tensor] : tensors[0]) {
      const auto other = tensors[i].find(name);
      if (other == tensors[i].end()) {
        fail_other_model(checkpoints[0], checkpoints[i], fmt::format("'{}' is missing", name));
      }
      if (other->second.shape != tensor.shape || other->second.dtype != tensor.dtype) {
        fail_other_model(
            checkpoints[0], checkpoints[i],
            fmt::format("'{}' is {} {} and {} {}", name, tensor.dtype, to_string(tensor.shape),
                        other->second.dtype, to_string(other->second.shape)));
      }
    }
    if (tensors[i].size() != tensors[0].size()) {
      fail_other_model(checkpoints[0], checkpoints[i],
                       fmt::format("{} and {} tensors", tensors[0].size(), tensors[i].size()));
    }
    if (const std::string what = difference_of(*readers[0], *readers[i]); !what.empty()) {
      fail_other_model(checkpoints[0], checkpoints[i], what);
    }
  }
  std::vector<CheckpointTensor> means;
  for (const auto& [name, tensor] : tensors[0]) {
    const DType dtype = dtype_of(tensor, checkpoints[0].string());
    const bool number = dtype != DType::i32 && dtype != DType::u8;
    means.push_back(streamed(
        tensor, dtype, [&readers, tensor = tensor, dtype, number](int64_t at, int64_t n, void* to) {
          std::vector<double> sum;
          std::vector<char> piece;
          for (int64_t done = 0; done < n; done += kPieceElements) {
            const int64_t count = std::min(kPieceElements, n - done);
            char* const target = static_cast<char*>(to) + done * bytes_of(dtype);
            if (!number) {
              // Nothing to take a mean of.
              read_elements(*readers.back(), tensor, dtype, at + done, count, target);
              continue;
            }
            sum.assign(static_cast<size_t>(count), 0.0);
            piece.resize(static_cast<size_t>(count * bytes_of(dtype)));
            for (const auto& reader : readers) {
              read_elements(*reader, tensor, dtype, at + done, count, piece.data());
              for (int64_t i = 0; i < count; ++i) {
                sum[static_cast<size_t>(i)] += element_as_double(dtype, piece.data(), i);
              }
            }
            for (int64_t i = 0; i < count; ++i) {
              store_double(dtype, sum[static_cast<size_t>(i)] / static_cast<double>(readers.size()),
                           target, i);
            }
          }
        }));
  }
  nlohmann::json state = readers.back()->state();
  nlohmann::json of = nlohmann::json::array();
  for (const std::filesystem::path& path : checkpoints) of.push_back(path.filename().string());
  state["average_of"] = std::move(of);
  state.erase("metrics");
  state.erase(kEvaluationLeft);
  // Of an optimizer that is not there.
  state.erase("engine");
  std::vector<ExtraFile> extras;
  for (const std::string& name : readers.back()->extras()) {
    extras.push_back({name, readers.back()->extra(name)});
  }
  write_new_checkpoint(out, state, extras, {std::move(means)});
}

}  // namespace mtl
