// libFuzzer: the header of a safetensors file. Whatever the bytes, it is refused with an Error or
// every tensor that it names lies inside the file.
#include "runtime/checkpoint/safetensors.h"

#include "seeds.h"

std::vector<std::string> mtl::fuzz::seeds() {
  const std::vector<SafetensorsEntry> entries = {{"empty", "F32", {0, 3}, 0, 0},
                                                 {"wte.weight", "BF16", {2, 3}, 0, 12},
                                                 {"scale", "F64", {}, 12, 20}};
  return {safetensors_header({}, {}),
          safetensors_header(entries, {{"format", "pt"}}) + std::string(20, 'd')};
}

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "runtime/checkpoint/rectangles.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto bytes = static_cast<int64_t>(size);
  try {
    const mtl::SafetensorsHeader header = mtl::parse_safetensors_header(file, bytes, "fuzz");
    int64_t end = 0;
    for (const mtl::SafetensorsEntry& entry : header.entries) {
      const auto elements = mtl::volume(entry.shape);
      if (!elements || entry.begin != end || entry.end < entry.begin ||
          entry.end > bytes - header.data_start ||
          entry.end - entry.begin != *elements * mtl::safetensors_element_bytes(entry.dtype)) {
        std::abort();
      }
      end = entry.end;
    }
    if (header.data_start + end != bytes) std::abort();
    // What is written of it is read back.
    const std::string again = mtl::safetensors_header(header.entries, header.metadata);
    const auto total = static_cast<int64_t>(again.size()) + end;
    if (mtl::parse_safetensors_header(again, total, "again").entries.size() !=
        header.entries.size()) {
      std::abort();
    }
  } catch (const mtl::Error&) {
  }
  return 0;
}
