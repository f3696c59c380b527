// The writer: tokens, lengths and document begins go to three files as they come, and the .idx is
// put together from them at the end, so that memory does not grow with the corpus.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/indexed_files.h"
#include "runtime/data/part_file.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

fs::path lengths_path(const fs::path& prefix) {
  return prefix.string() + ".idx.lengths";
}
fs::path documents_path(const fs::path& prefix) {
  return prefix.string() + ".idx.documents";
}
fs::path part(const fs::path& path) {
  return path.string() + ".part";
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_data_write(to, errno);
}

// Stores ids in a narrower (or wider) type; false if one does not fit.
template <typename Number>
bool store(std::span<const int32_t> ids, std::byte* to) {
  bool fits = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto value = static_cast<Number>(ids[i]);
    fits &= static_cast<int64_t>(value) == ids[i] && ids[i] >= 0;
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
  return fits;
}

constexpr size_t kBlockNumbers = 8192;  // numbers that are copied at once

}  // namespace

bool store_tokens(TokenType type, std::span<const int32_t> ids, std::byte* to) {
  switch (type) {
    case TokenType::u8:
      return store<uint8_t>(ids, to);
    case TokenType::i8:
      return store<int8_t>(ids, to);
    case TokenType::i16:
      return store<int16_t>(ids, to);
    case TokenType::u16:
      return store<uint16_t>(ids, to);
    case TokenType::i32:
      return store<int32_t>(ids, to);
    case TokenType::i64:
      return store<int64_t>(ids, to);
  }
  return false;
}

struct IndexedDatasetWriter::State {
  State(const fs::path& where, TokenType token_type, PartFile::Start start)
      : prefix(where),
        type(token_type),
        bin(bin_path(where), start, true),
        lengths(lengths_path(where), start, false),
        documents(documents_path(where), start, false) {}

  void count_tokens(size_t count) {
    at.tokens += static_cast<int64_t>(count);
    at.open_tokens += static_cast<int64_t>(count);
    if (at.open_tokens <= std::numeric_limits<int32_t>::max()) return;
    throw Error(Exit::data, {.code = "data.token",
                             .what = fmt::format("a sequence of more than {} tokens, which is what "
                                                 "the format can say of one",
                                                 std::numeric_limits<int32_t>::max()),
                             .help = "split the document (mtl data tokenize: --document line)"});
  }
  void put_length(int64_t tokens) {
    const auto length = static_cast<int32_t>(tokens);
    lengths.write(&length, sizeof length);
    ++at.sequences;
    ++at.open_sequences;
    at.open_tokens = 0;
  }
  void put_document(int64_t end) {
    documents.write(&end, sizeof end);
    ++at.documents;
    at.open_sequences = 0;
  }

  void write_index() {
    PartFile idx(idx_path(prefix), PartFile::Start::empty, false);
    idx.write(kIndexMagic.data(), kIndexMagic.size());
    const uint64_t version = 1;
    idx.write(&version, sizeof version);
    idx.write(&type, 1);
    idx.write(&at.sequences, 8);
    const int64_t begins = at.documents + 1;
    idx.write(&begins, 8);
    std::vector<int32_t> block(kBlockNumbers);
    lengths.rewind();
    while (const size_t bytes = lengths.read(block.data(), kBlockNumbers * 4)) {
      idx.write(block.data(), bytes);
    }
    lengths.rewind();
    int64_t pointer = 0;
    while (const size_t bytes = lengths.read(block.data(), kBlockNumbers * 4)) {
      for (size_t i = 0; i < bytes / 4; ++i) {
        idx.write(&pointer, sizeof pointer);
        pointer += block[i] * bytes_of(type);
      }
    }
    const int64_t first = 0;
    idx.write(&first, sizeof first);
    documents.rewind();
    while (const size_t bytes = documents.read(block.data(), kBlockNumbers * 4)) {
      idx.write(block.data(), bytes);
    }
    idx.sync();
  }

  fs::path prefix;
  TokenType type;
  PartFile bin, lengths, documents;
  Position at;
  bool keep = false;
  bool finished = false;
};

IndexedDatasetWriter::IndexedDatasetWriter(const fs::path& prefix, TokenType type)
    : state_(std::make_unique<State>(prefix, type, PartFile::Start::empty)) {}

IndexedDatasetWriter::IndexedDatasetWriter(const fs::path& prefix, TokenType type,
                                           const Position& position)
    : state_(std::make_unique<State>(prefix, type, PartFile::Start::keep)) {
  const auto cut = [](PartFile& file, int64_t size) {
    if (size < 0 || file.size() < size) {
      throw Error(Exit::data,
                  {.code = "data.resume",
                   .what = fmt::format("{} has {} bytes, and had {} when the work was interrupted",
                                       file.part_path().string(), file.size(), size),
                   .help = "start anew: --fresh"});
    }
    file.cut(size);
  };
  state_->keep = true;
  cut(state_->bin, position.tokens * bytes_of(type));
  cut(state_->lengths, position.sequences * 4);
  cut(state_->documents, position.documents * 8);
  state_->at = position;
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (state_->finished || state_->keep) return;
  state_->documents.remove();
  state_->lengths.remove();
  ::unlink(part(idx_path(state_->prefix)).c_str());
  state_->bin.remove();
}

void IndexedDatasetWriter::add_sequence(std::span<const int32_t> ids) {
  State& state = *state_;
  const auto size = static_cast<size_t>(bytes_of(state.type));
  for (size_t done = 0; done < ids.size();) {
    const auto block = ids.subspan(done, std::min(ids.size() - done, kBlockNumbers));
    if (!store_tokens(state.type, block, state.bin.grow(block.size() * size))) {
      throw Error(
          Exit::data,
          {.code = "data.token",
           .what = fmt::format("a token id among {} to {} of a sequence does not fit into "
                               "the {} bytes that a token has in {}",
                               done, done + block.size() - 1, size, state.bin.part_path().string()),
           .help = "the vocabulary is larger than it says, or the type is too narrow"});
    }
    state.count_tokens(block.size());
    done += block.size();
  }
  end_sequence();
}

void IndexedDatasetWriter::add_tokens(std::span<const std::byte> tokens) {
  state_->count_tokens(tokens.size() / static_cast<size_t>(bytes_of(state_->type)));
  state_->bin.write(tokens.data(), tokens.size());
}

void IndexedDatasetWriter::end_sequence() {
  state_->put_length(state_->at.open_tokens);
}

void IndexedDatasetWriter::end_document() {
  state_->put_document(state_->at.sequences);
}

void IndexedDatasetWriter::append(const IndexedDataset& other) {
  State& state = *state_;
  if (other.type() != state.type || other.has_modalities()) {
    throw Error(
        Exit::data,
        {.code = "data.merge",
         .what = other.has_modalities()
                     ? fmt::format("{} is multimodal: it says of each sequence what it is",
                                   other.prefix().string())
                     : fmt::format("{} has tokens of type {}, the others of type {}",
                                   other.prefix().string(), static_cast<int>(other.type()),
                                   static_cast<int>(state.type)),
         .help = "only corpora of one kind go into one file; use a blend of both: data.train"});
  }
  if (state.at.open_sequences > 0) end_document();
  const int64_t bytes = other.tokens() * bytes_of(state.type);
  for (int64_t done = 0; done < bytes;) {
    const auto count = std::min<int64_t>(bytes - done, PartFile::kLargest);
    const auto block = other.bytes(done, count);
    state.bin.write(block.data(), block.size());
    done += count;
  }
  state.at.tokens += other.tokens();
  const int64_t offset = state.at.sequences;
  for (int64_t i = 0; i < other.sequences(); ++i) state.put_length(other.length(i));
  for (int64_t i = 1; i <= other.documents(); ++i) {
    state.put_document(offset + other.document_begin(i));
  }
  other.check_unchanged();
}

IndexedDatasetWriter::Position IndexedDatasetWriter::position() const {
  return state_->at;
}

IndexedDatasetWriter::Position IndexedDatasetWriter::sync() {
  state_->bin.sync();
  state_->lengths.sync();
  state_->documents.sync();
  return state_->at;
}

void IndexedDatasetWriter::keep_parts(bool keep) {
  state_->keep = keep;
}

void IndexedDatasetWriter::finish() {
  State& state = *state_;
  if (state.at.open_tokens > 0) end_sequence();
  if (state.at.open_sequences > 0) end_document();
  state.bin.sync();
  state.write_index();
  // From here on a crash leaves what complete_finish() needs. The old .idx goes first: it must not
  // stand beside the new .bin.
  ::unlink(idx_path(state.prefix).c_str());
  state.bin.rename_to_final();
  rename_or_fail(part(idx_path(state.prefix)), idx_path(state.prefix));
  sync_directory(state.prefix.parent_path());
  state.finished = true;
  state.lengths.remove();
  state.documents.remove();
}

bool IndexedDatasetWriter::complete_finish(const fs::path& prefix) {
  std::error_code ignored;
  if (fs::exists(part(bin_path(prefix)), ignored) || !fs::exists(bin_path(prefix), ignored)) {
    return false;
  }
  if (fs::exists(part(idx_path(prefix)), ignored)) {
    rename_or_fail(part(idx_path(prefix)), idx_path(prefix));
    sync_directory(prefix.parent_path());
  }
  fs::remove(part(lengths_path(prefix)), ignored);
  fs::remove(part(documents_path(prefix)), ignored);
  return fs::exists(idx_path(prefix), ignored);
}

}  // namespace mtl
