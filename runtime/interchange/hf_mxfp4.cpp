#include "runtime/interchange/hf_mxfp4.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mtl {

namespace {

constexpr int64_t kBlockBytes = kMxGroup / 2;

// One of the two: bytes of `shape`.
const StridedTensor* bytes_named(const ForeignTensors& there, const std::vector<std::string>& names,
                                 const char* end, const Dims& shape, std::set<std::string>& used,
                                 std::vector<std::string>& notes) {
  const auto known = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return there.tensors.contains(name + end) || there.others.contains(name + end);
  });
  if (known == names.end()) {
    notes.push_back(fmt::format("missing: {}{} {}", names.front(), end, to_string(shape)));
    return nullptr;
  }
  const std::string name = *known + end;
  used.insert(name);
  const auto found = there.bytes.find(name);
  if (found == there.bytes.end()) {
    const auto other = there.others.find(name);
    notes.push_back(fmt::format("{} is of type {}, and MXFP4 is of U8", name,
                                other != there.others.end()
                                    ? std::string_view(other->second)
                                    : safetensors_name(there.tensors.at(name).dtype)));
    return nullptr;
  }
  if (found->second.shape == shape) return &found->second;
  notes.push_back(fmt::format("{} is {}, and by config.json it is {}", name,
                              to_string(found->second.shape), to_string(shape)));
  return nullptr;
}

}  // namespace

bool read_mxfp4(ConfigReader& config) {
  const auto said = config.json().find("quantization_config");
  if (said == config.json().end() || !said->is_object()) return false;
  const auto method = said->find("quant_method");
  if (method == said->end() || *method != "mxfp4") return false;
  ConfigReader quantised = config.section("quantization_config");
  // What is no expert's is not converted anyway, and a program may say how it wants to load them.
  for (const char* known : {"quant_method", "modules_to_not_convert", "dequantize"}) {
    quantised.find(known);
  }
  quantised.finish();
  return true;
}

std::optional<StridedTensor> join_mxfp4(const ForeignTensors& there,
                                        const std::vector<std::string>& names, const Dims& shape,
                                        std::set<std::string>& used,
                                        std::vector<std::string>& notes) {
  Dims scales_shape = shape;
  scales_shape.back() /= kMxGroup;
  Dims blocks_shape = scales_shape;
  blocks_shape.push_back(kBlockBytes);
  const StridedTensor* const blocks =
      bytes_named(there, names, "_blocks", blocks_shape, used, notes);
  const StridedTensor* const scales =
      bytes_named(there, names, "_scales", scales_shape, used, notes);
  if (blocks == nullptr || scales == nullptr) return std::nullopt;
  StridedTensor joined = *blocks;
  joined.shape = shape;
  joined.strides = contiguous_strides(shape);
  joined.scales = {.file = scales->file, .byte_offset = scales->byte_offset};
  return joined;
}

}  // namespace mtl
