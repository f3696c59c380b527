#include "sweep/texts.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/corpus_meta.h"
#include "runtime/data/indexed_dataset.h"
#include "sweep/draw.h"

namespace mtl::sweep {

namespace fs = std::filesystem;

namespace {

// What a small model can learn something of: most symbols follow from the one before.
std::vector<int32_t> chain(uint64_t seed, int64_t size, int32_t symbols) {
  Draw draw(seed);
  std::vector<int32_t> out;
  int32_t at = 0;
  for (int64_t i = 0; i < size; ++i) {
    at = draw.chance(0.75) ? (at * 7 + 3) % symbols : static_cast<int32_t>(draw.below(symbols));
    out.push_back(at);
  }
  return out;
}

void write_text(const fs::path& path, uint64_t seed, int64_t size) {
  std::string text = "abcdefghijklmnopqrstuvwxyz .\n";  // every character occurs
  const std::string alphabet = text;
  for (const int32_t symbol : chain(seed, size, kCharacters)) {
    text += alphabet[static_cast<size_t>(symbol)];
  }
  std::ofstream(path, std::ios::binary) << text;
}

// `answers`: only the second half of each document is to be learned.
void write_corpus(const fs::path& prefix, uint64_t seed, int64_t documents, bool answers) {
  Draw draw(seed);
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  std::optional<IndexedDatasetWriter> loss;
  if (answers) loss.emplace(loss_prefix(prefix), TokenType::u8);
  for (int64_t i = 0; i < documents; ++i) {
    std::vector<int32_t> ids = chain(seed + static_cast<uint64_t>(i), 3 + draw.below(40), kIds - 1);
    ids.push_back(kIds - 1);
    writer.add_sequence(ids);
    writer.end_document();
    if (!loss) continue;
    std::vector<int32_t> learn(ids.size(), 0);
    std::fill(learn.begin() + std::ssize(learn) / 2, learn.end(), 1);
    loss->add_sequence(learn);
    loss->end_document();
  }
  if (loss) loss->finish();
  writer.finish();
}

void write_ids(const fs::path& path, uint64_t seed, int64_t size) {
  std::ofstream out(path, std::ios::binary);
  for (const int32_t id : chain(seed, size, kIds)) {
    const auto two = static_cast<uint16_t>(id);
    out.put(static_cast<char>(two & 255)).put(static_cast<char>(two >> 8));
  }
}

}  // namespace

int64_t vocab_of(const Settings& s) {
  const int64_t given = s.number("data.vocab", 0);
  return given > 0 ? given : s.text("data.tokenizer.type") == "chars" ? kCharacters : 256;
}

void write_texts(const fs::path& folder) {
  write_text(folder / "a.txt", 1, 4000);
  write_text(folder / "b.txt", 2, 2500);
  write_text(folder / "valid.txt", 3, 700);
  write_text(folder / "short.txt", 7, 300);
  write_corpus(folder / "one", 4, 150, false);
  write_corpus(folder / "two", 5, 90, true);
  write_ids(folder / "ids.bin", 6, 4000);
  std::ofstream(folder / "train.yaml") << "log: {every: 1}\n";
}

}  // namespace mtl::sweep
