// The safetensors container (https://github.com/huggingface/safetensors, "Format"): u64
// little-endian header length N, N bytes of JSON, then the tensors' bytes, row-major and without
// holes. The reader enforces all of it, so a file that passes has every tensor inside it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mtl {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from data_start
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by `begin`
  std::map<std::string, std::string> metadata;
  int64_t data_start = 0;  // bytes from the start of the file
};

// Bytes of an element of a safetensors dtype; 0 = unknown.
int64_t safetensors_element_bytes(std::string_view dtype);

// Length and JSON, padded with spaces so that the data starts at a multiple of 64. `entries` are
// contiguous in this order. Throws Error ckpt.write when the format cannot hold it.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

// Reads the header from the start of a file: `start` is at least its first
// min(file_bytes, safetensors_header_bytes(start)) bytes. Throws Error (Exit::data) ckpt.format
// that names `file`.
SafetensorsHeader parse_safetensors_header(std::string_view start, int64_t file_bytes,
                                           const std::string& file);
// How many bytes length and header take, from the first 8 bytes; checked against the limit and
// `file_bytes`.
int64_t safetensors_header_bytes(std::string_view start, int64_t file_bytes,
                                 const std::string& file);

}  // namespace mtl
