// PREFIX.idx and PREFIX.bin: two bytes say how long the .idx is, the rest is the .bin. What is
// accepted is read whole, and must be what its own numbers say.
#include "runtime/data/indexed_dataset.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "fuzz/seeds.h"
#include "support/temp_dir.h"

namespace {

using mtl::IndexedDataset;

void store(const std::filesystem::path& path, const uint8_t* data, size_t size) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), size);
}

void use(const IndexedDataset& dataset) {
  int64_t tokens = 0, sequences = 0;
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < dataset.documents(); ++d) {
    for (int64_t s = dataset.document_begin(d); s < dataset.document_begin(d + 1); ++s) {
      ids.resize(dataset.length(s));
      ++sequences;
      tokens += dataset.length(s);
      try {
        dataset.read(s, 0, ids);
        for (const int32_t id : ids) {
          if (id < 0) std::abort();
        }
        if (ids.size() > 1) dataset.read(s, 1, std::span(ids).first(ids.size() - 1));
      } catch (const mtl::Error& error) {
        if (error.diagnostics().front().code != "data.token") std::abort();
      }
    }
  }
  if (tokens != dataset.tokens() || sequences != dataset.sequences()) std::abort();
}

}  // namespace

std::vector<std::string> mtl::fuzz::seeds() {
  const test::TempDir dir;
  std::vector<std::string> seeds;
  for (const TokenType type : {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::u16,
                               TokenType::i32, TokenType::i64}) {
    const std::filesystem::path prefix = dir / "seed";
    IndexedDatasetWriter writer(prefix, type);
    writer.add_sequence(std::vector<int32_t>{1, 2, 3});
    writer.end_document();
    writer.end_document();
    writer.add_sequence(std::vector<int32_t>{4});
    writer.add_sequence(std::vector<int32_t>{5, 6});
    writer.finish();
    std::string idx = read_file(prefix.string() + ".idx");
    for (const bool modes : {false, true}) {
      if (modes) idx.append(3, '\1');
      const auto length = static_cast<uint16_t>(idx.size());
      std::string seed(reinterpret_cast<const char*>(&length), sizeof length);
      seeds.push_back(seed + idx + read_file(prefix.string() + ".bin"));
    }
  }
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const mtl::test::TempDir dir;
  uint16_t length = 0;
  if (size < sizeof length) return 0;
  std::memcpy(&length, data, sizeof length);
  data += sizeof length;
  size -= sizeof length;
  const size_t idx = std::min<size_t>(length, size);
  store(dir / "x.idx", data, idx);
  store(dir / "x.bin", data + idx, size - idx);
  try {
    use(IndexedDataset(dir / "x"));
  } catch (const mtl::Error&) {
  }
  return 0;
}
