// libFuzzer: manifest.json of a checkpoint. Whatever the text, it is refused with an Error or every
// chunk lies inside its tensor and its file, and no file is outside the folder.
#include "runtime/checkpoint/manifest.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/safetensors.h"
#include "seeds.h"

std::vector<std::string> mtl::fuzz::seeds() {
  Manifest manifest;
  manifest.state = {{"step", 3}, {"metrics", {{"loss", 1.5}}}};
  manifest.extras["tokenizer.json"] = {.bytes = 12, .xxh3 = 7};
  manifest.files["model-r00000.safetensors"] = {.bytes = 200, .header_bytes = 100};
  ChunkRecord chunk{.tensor = "wte.weight",
                    .dtype = "F32",
                    .shape = {4, 4},
                    .offset = {0, 0},
                    .extent = {4, 2},
                    .file = "model-r00000.safetensors",
                    .byte_offset = 100,
                    .bytes = 32,
                    .xxh3 = 1};
  manifest.chunks = {chunk};
  chunk.offset = {0, 2};
  chunk.byte_offset = 132;
  manifest.chunks.push_back(chunk);
  std::string text = manifest_text(manifest);
  std::string old = text;
  old.replace(old.find("\"version\": 2"), 12, "\"version\": 1");
  return {text, old};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const mtl::Manifest manifest =
        mtl::parse_manifest({reinterpret_cast<const char*>(data), size}, "manifest.json");
    const auto plain = [](const std::string& name) {
      return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
    };
    for (const auto& [name, file] : manifest.files) {
      if (!plain(name) || file.header_bytes > file.bytes) std::abort();
    }
    for (const auto& [name, file] : manifest.extras) {
      if (!plain(name) || file.bytes < 0) std::abort();
    }
    for (const mtl::ChunkRecord& chunk : manifest.chunks) {
      const auto file = manifest.files.find(chunk.file);
      if (file == manifest.files.end() || !mtl::inside({chunk.offset, chunk.extent}, chunk.shape) ||
          chunk.byte_offset < file->second.header_bytes ||
          chunk.byte_offset > file->second.bytes - chunk.bytes ||
          chunk.bytes != *mtl::volume(chunk.extent) * mtl::safetensors_element_bytes(chunk.dtype)) {
        std::abort();
      }
    }
    mtl::manifest_text(manifest);
  } catch (const mtl::Error&) {
  }
  return 0;
}
