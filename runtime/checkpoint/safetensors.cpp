// Writing and strict reading of safetensors headers (safetensors.h).
#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/strict_json.h"

namespace mtl {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace {

constexpr int64_t kMaxHeader = 100'000'000;
constexpr int64_t kLengthBytes = 8;
constexpr size_t kAlign = 64;
constexpr const char* kMetadata = "__metadata__";

[[noreturn]] void fail_format(const std::string& file, const std::string& what) {
  throw Error(Exit::data, Diagnostic{.code = "ckpt.format",
                                     .what = file + ": not a valid safetensors file: " + what,
                                     .help = "the file is damaged or of another kind; use another "
                                             "checkpoint"});
}

SafetensorsEntry parse_entry(const std::string& name, const nlohmann::json& json) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!json.is_object() || json.size() != 3) {
    throw JsonProblem("an entry has dtype, shape and data_offsets, nothing else");
  }
  entry.dtype = json_string(json, "dtype");
  entry.shape = json_sizes(json, "shape");
  const auto offsets = json_sizes(json, "data_offsets");
  if (offsets.size() != 2) throw JsonProblem("'data_offsets' is not [begin, end]");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const int64_t element = safetensors_element_bytes(entry.dtype);
  if (element == 0) throw JsonProblem("unknown dtype");
  const auto elements = volume(entry.shape);
  if (!elements || *elements > (int64_t{1} << 62) / element) throw JsonProblem("shape too large");
  if (entry.begin > entry.end || entry.end - entry.begin != *elements * element) {
    throw JsonProblem(fmt::format("data_offsets [{}, {}] are not the {} bytes of its shape",
                                  entry.begin, entry.end, *elements * element));
  }
  return entry;
}

}  // namespace

int64_t safetensors_element_bytes(std::string_view dtype) {
  struct Known {
    std::string_view name;
    int64_t bytes;
  };
  constexpr Known kKnown[] = {{"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4},     {"I32", 4},
                              {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},
                              {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += fmt::format("\"{}\":{}", kMetadata, nlohmann::json(metadata).dump());
  }
  for (const SafetensorsEntry& entry : entries) {
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", nlohmann::json(entry.name).dump(), entry.dtype,
                        fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  json += "}";
  json.resize((json.size() + kLengthBytes + kAlign - 1) / kAlign * kAlign - kLengthBytes, ' ');
  if (static_cast<int64_t>(json.size()) > kMaxHeader) {
    throw Error(Exit::data, Diagnostic{.code = "ckpt.write",
                                       .what = fmt::format(
                                           "a shard with {} tensors needs a header of {} bytes, "
                                           "and safetensors allows {}",
                                           entries.size(), json.size(), kMaxHeader),
                                       .help = "spread the parameters over more ranks"});
  }
  const uint64_t length = json.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  return header + json;
}

int64_t safetensors_header_bytes(std::string_view start, int64_t file_bytes,
                                 const std::string& file) {
  if (file_bytes < kLengthBytes || start.size() < static_cast<size_t>(kLengthBytes)) {
    fail_format(file, fmt::format("{} bytes are too few", file_bytes));
  }
  uint64_t length = 0;
  std::memcpy(&length, start.data(), kLengthBytes);
  if (length > static_cast<uint64_t>(kMaxHeader)) {
    fail_format(file, fmt::format("a header of {} bytes (at most {})", length, kMaxHeader));
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    fail_format(file, fmt::format("a header of {} bytes in a file of {}", length, file_bytes));
  }
  return kLengthBytes + static_cast<int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view start, int64_t file_bytes,
                                           const std::string& file) {
  SafetensorsHeader header;
  header.data_start = safetensors_header_bytes(start, file_bytes, file);
  const std::string_view text = start.substr(kLengthBytes, header.data_start - kLengthBytes);
  if (text.empty() || text[0] != '{') fail_format(file, "the header does not begin with '{'");
  const size_t last = text.find_last_not_of(' ');
  if (text[last] != '}') fail_format(file, "the header does not end with '}' and spaces");
  std::string at;
  try {
    const nlohmann::json json = parse_strict_json(text);
    for (const auto& [name, value] : json.items()) {
      at = fmt::format("'{}': ", name);
      if (name != kMetadata) {
        header.entries.push_back(parse_entry(name, value));
        continue;
      }
      if (!value.is_object()) throw JsonProblem("is not an object");
      for (const auto& [key, text_value] : value.items()) {
        header.metadata[key] = json_string(value, key);
      }
    }
  } catch (const JsonProblem& problem) {
    fail_format(file, at + problem.what());
  }
  // Empty tensors share their place with the next one, so the end decides among equal begins.
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  int64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != end) {
      fail_format(file, fmt::format("'{}' {} at byte {} of the data", entry.name,
                                    entry.begin < end ? "overlaps another tensor"
                                                      : "leaves a hole before it",
                                    entry.begin));
    }
    end = entry.end;
  }
  if (end != file_bytes - header.data_start) {
    fail_format(file, fmt::format("its tensors take {} bytes, and {} follow the header", end,
                                  file_bytes - header.data_start));
  }
  return header;
}

}  // namespace mtl
