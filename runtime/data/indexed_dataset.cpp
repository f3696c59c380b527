// The reader: everything in the .idx is checked once, against the sizes of both files.
#include "runtime/data/indexed_dataset.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <system_error>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/indexed_files.h"

namespace mtl {

static_assert(std::endian::native == std::endian::little);

namespace fs = std::filesystem;

int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

fs::path indexed_prefix(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".bin" || extension == ".idx" ? fs::path(path).replace_extension() : path;
}

bool is_indexed_dataset(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(idx_path(indexed_prefix(path)), ignored);
}

namespace {

[[noreturn]] void refuse_index(const fs::path& file, int64_t offset, const std::string& what,
                               const std::string& help) {
  throw Error(Exit::data,
              {.code = "data.index",
               .what = offset < 0 ? fmt::format("{}: {}", file.string(), what)
                                  : fmt::format("{}: at byte {}: {}", file.string(), offset, what),
               .help = help});
}

// Linux 5.14's, missing in older headers: like touching every page, but with an error where that
// would be a SIGBUS.
constexpr int kPopulateRead = 22;

Fd open_to_read(const fs::path& path, struct stat& info) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    throw Error(Exit::data,
                {.code = missing ? "data.missing" : "data.unreadable",
                 .what = fmt::format("cannot open {}: {}", path.string(),
                                     std::generic_category().message(errno)),
                 .help = missing ? "a corpus is a pair of files, PREFIX.bin and PREFIX.idx; check "
                                   "the spelling, or make it: mtl data tokenize --help"
                                 : "check the permissions of the file"});
  }
  Fd file(fd);
  if (!S_ISREG(info.st_mode)) {
    throw Error(Exit::data, {.code = "data.unreadable",
                             .what = fmt::format("{} is not a regular file", path.string()),
                             .help = "a corpus is a pair of files, PREFIX.bin and PREFIX.idx"});
  }
  return file;
}

// A file in memory as long as this lives.
class Mapping {
 public:
  explicit Mapping(const fs::path& path) : path_(path) {
    struct stat info {};
    fd_ = open_to_read(path, info);
    size_ = info.st_size;
    if (size_ == 0) return;
    void* at = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, fd_.get(), 0);
    if (at == MAP_FAILED) {
      throw Error(Exit::data, {.code = "data.unreadable",
                               .what = fmt::format("cannot map {}: {}", path.string(),
                                                   std::generic_category().message(errno)),
                               .help = "check the limit on address space (ulimit -v)"});
    }
    data_ = static_cast<const std::byte*>(at);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const fs::path& path() const { return path_; }
  int64_t size() const { return size_; }
  const std::byte* data() const { return data_; }

  void advise(int advice) const {
    if (data_ != nullptr) {
      ::madvise(const_cast<std::byte*>(data_), static_cast<size_t>(size_), advice);
    }
  }

  // Brings [offset, offset + count) into memory in one go.
  void populate(int64_t offset, int64_t count) const {
    if (count == 0) return;
    static const int64_t page = ::sysconf(_SC_PAGESIZE);
    const int64_t from = offset / page * page;
    std::byte* at = const_cast<std::byte*>(data_) + from;
    if (::madvise(at, static_cast<size_t>(offset + count - from), kPopulateRead) != 0 &&
        (errno == EFAULT || errno == EHWPOISON)) {
      check_size();
      throw Error(Exit::data,
                  {.code = "data.unreadable",
                   .what = fmt::format("cannot read {} around byte {}: input/output error",
                                       path_.string(), offset),
                   .help = "the disk or the network below it fails: see the kernel's log"});
    }
  }

  void check_size() const {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0 || info.st_size == size_) return;
    refuse_index(
        path_, -1,
        fmt::format("has {} bytes now and had {} when it was opened", info.st_size, size_),
        "something writes to the corpus while it is in use: let it finish and start again");
  }

 private:
  fs::path path_;
  Fd fd_;
  int64_t size_ = 0;
  const std::byte* data_ = nullptr;
};

// The header's arrays are not aligned: 34 bytes stand before them.
template <typename Number>
Number load(const std::byte* at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename Number>
bool widen(const std::byte* from, std::span<int32_t> out) {
  // One pass that the compiler makes vectors of; only then a look at whether it was allowed.
  uint64_t seen = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto value = load<Number>(from + i * sizeof(Number));
    seen |= static_cast<uint64_t>(static_cast<int64_t>(value));
    out[i] = static_cast<int32_t>(value);
  }
  return seen <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
}

bool widen(TokenType type, const std::byte* from, std::span<int32_t> out) {
  switch (type) {
    case TokenType::u8:
      return widen<uint8_t>(from, out);
    case TokenType::i8:
      return widen<int8_t>(from, out);
    case TokenType::i16:
      return widen<int16_t>(from, out);
    case TokenType::u16:
      return widen<uint16_t>(from, out);
    case TokenType::i32:
      return widen<int32_t>(from, out);
    case TokenType::i64:
      return widen<int64_t>(from, out);
  }
  return false;
}

}  // namespace

struct IndexedDataset::Files {
  explicit Files(const fs::path& base)
      : prefix(indexed_prefix(base)), idx(idx_path(prefix)), bin(bin_path(prefix)) {
    read_header();
    lengths = idx.data() + kIndexHeaderBytes;
    pointers = lengths + sequences * 4;
    document_begins = pointers + sequences * 8;
    idx.advise(MADV_SEQUENTIAL);
    check_sequences();
    check_documents();
    idx.advise(MADV_NORMAL);
    // Samples lie anywhere and read() asks for what it needs: reading ahead would be for nothing.
    bin.advise(MADV_RANDOM);
  }

  int32_t length(int64_t sequence) const { return load<int32_t>(lengths + sequence * 4); }
  int64_t pointer(int64_t sequence) const { return load<int64_t>(pointers + sequence * 8); }
  int64_t document_begin(int64_t document) const {
    return load<int64_t>(document_begins + document * 8);
  }

  void read_header() {
    constexpr const char* kNoIndex = "this is not the index of a Megatron corpus";
    if (idx.size() < kIndexHeaderBytes) {
      refuse_index(idx.path(), idx.size(),
                   fmt::format("the file ends inside its header of {} bytes", kIndexHeaderBytes),
                   kNoIndex);
    }
    if (std::memcmp(idx.data(), kIndexMagic.data(), kIndexMagic.size()) != 0) {
      refuse_index(idx.path(), 0, "it does not begin with MMIDIDX", kNoIndex);
    }
    const auto version = load<uint64_t>(idx.data() + 9);
    if (version != 1) {
      refuse_index(idx.path(), 9, fmt::format("version {}; mtl reads version 1", version),
                   "write it again with a current Megatron, or with mtl data tokenize");
    }
    const auto code = load<uint8_t>(idx.data() + 17);
    if (code == 6 || code == 7) {
      refuse_index(idx.path(), 17, "its tokens are floating point numbers",
                   "token ids are whole numbers: this corpus is of something else");
    }
    if (code < 1 || code > 8) {
      refuse_index(idx.path(), 17, fmt::format("type {} of a token; there are 1 to 8", code),
                   kNoIndex);
    }
    type = static_cast<TokenType>(code);
    const auto sequence_count = load<uint64_t>(idx.data() + 18);
    const auto document_count = load<uint64_t>(idx.data() + 26);
    const auto room = static_cast<uint64_t>(idx.size() - kIndexHeaderBytes);
    if (document_count == 0) {
      refuse_index(idx.path(), 26, "0 documents; the count includes one for the end", kNoIndex);
    }
    // In this order nothing overflows.
    const bool fits = sequence_count <= room / 12 && document_count <= room / 8 &&
                      sequence_count * 12 + document_count * 8 <= room;
    const uint64_t left = fits ? room - sequence_count * 12 - document_count * 8 : 0;
    if (!fits || (left != 0 && left != sequence_count)) {
      refuse_index(idx.path(), 18,
                   fmt::format("{} sequences and {} document begins do not make a file of {} bytes",
                               sequence_count, document_count, idx.size()),
                   "the file was cut off or added to: copy or make it again");
    }
    sequences = static_cast<int64_t>(sequence_count);
    documents = static_cast<int64_t>(document_count) - 1;
    modalities = left != 0;
  }

  void check_sequences() {
    constexpr const char* kMismatch =
        "the two files do not belong together, or one is damaged: copy or make both again";
    const int64_t size = bytes_of(type);
    int64_t end = 0;
    for (int64_t i = 0; i < sequences; ++i) {
      const int32_t tokens_here = length(i);
      if (tokens_here < 0) {
        refuse_index(idx.path(), kIndexHeaderBytes + i * 4,
                     fmt::format("sequence {} has {} tokens", i, tokens_here), kMismatch);
      }
      if (pointer(i) != end) {
        refuse_index(
            idx.path(), kIndexHeaderBytes + sequences * 4 + i * 8,
            fmt::format("sequence {} begins at byte {} of the .bin, and what is before it ends "
                        "at byte {}",
                        i, pointer(i), end),
            kMismatch);
      }
      end += tokens_here * size;
      if (end > bin.size()) {
        refuse_index(idx.path(), kIndexHeaderBytes + i * 4,
                     fmt::format("sequence {} ends at byte {} of {}, which has {}", i, end,
                                 bin.path().string(), bin.size()),
                     kMismatch);
      }
    }
    if (end != bin.size()) {
      refuse_index(
          bin.path(), end,
          fmt::format("the last sequence ends here, and the file goes on to byte {}", bin.size()),
          kMismatch);
    }
    tokens = end / size;
  }

  void check_documents() const {
    const auto wrong = [&](int64_t i, const std::string& what) {
      refuse_index(idx.path(), kIndexHeaderBytes + sequences * 12 + i * 8, what,
                   "the file is damaged: copy or make it again");
    };
    int64_t before = 0;
    for (int64_t i = 0; i <= documents; ++i) {
      const int64_t begin = document_begin(i);
      if (i == 0 && begin != 0) {
        wrong(i, fmt::format("the first document begins at sequence {}, not 0", begin));
      }
      if (begin < before || begin > sequences) {
        wrong(i, fmt::format("document {} begins at sequence {}; the one before at {}, and there "
                             "are {} sequences",
                             i, begin, before, sequences));
      }
      before = begin;
    }
    if (before != sequences) {
      wrong(documents, fmt::format("the documents end at sequence {} of {}", before, sequences));
    }
  }

  fs::path prefix;
  Mapping idx, bin;
  TokenType type = TokenType::u16;
  int64_t sequences = 0, documents = 0, tokens = 0;
  bool modalities = false;
  const std::byte* lengths = nullptr;
  const std::byte* pointers = nullptr;
  const std::byte* document_begins = nullptr;
};

IndexedDataset::IndexedDataset(const fs::path& prefix) : files_(std::make_unique<Files>(prefix)) {}
IndexedDataset::~IndexedDataset() = default;
const fs::path& IndexedDataset::prefix() const {
  return files_->prefix;
}
TokenType IndexedDataset::type() const {
  return files_->type;
}
int64_t IndexedDataset::sequences() const {
  return files_->sequences;
}
int64_t IndexedDataset::documents() const {
  return files_->documents;
}
int64_t IndexedDataset::tokens() const {
  return files_->tokens;
}
bool IndexedDataset::has_modalities() const {
  return files_->modalities;
}
int32_t IndexedDataset::length(int64_t sequence) const {
  return files_->length(sequence);
}
int64_t IndexedDataset::document_begin(int64_t document) const {
  return files_->document_begin(document);
}

std::span<const std::byte> IndexedDataset::bytes(int64_t first, int64_t count) const {
  const Files& files = *files_;
  // The index may have been written to since it was checked: what counts is the mapping.
  if (first < 0 || count < 0 || first > files.bin.size() || count > files.bin.size() - first) {
    refuse_index(
        files.idx.path(), -1, "has changed since it was opened",
        "something writes to the corpus while it is in use: let it finish and start again");
  }
  files.idx.check_size();
  files.bin.check_size();
  files.bin.populate(first, count);
  return {files.bin.data() + first, static_cast<size_t>(count)};
}

void IndexedDataset::check_unchanged() const {
  files_->idx.check_size();
  files_->bin.check_size();
}

void IndexedDataset::read(int64_t sequence, int64_t first, std::span<int32_t> out) const {
  if (out.empty()) return;
  const int64_t size = bytes_of(files_->type);
  const auto from =
      bytes(files_->pointer(sequence) + first * size, static_cast<int64_t>(out.size()) * size);
  const bool good = widen(files_->type, from.data(), out);
  // Zeros stand behind the new end of a file that was cut off meanwhile.
  check_unchanged();
  if (good) return;
  throw Error(Exit::data,
              {.code = "data.token",
               .what = fmt::format("{}: sequence {} has a token id that is negative or above {}, "
                                   "among its tokens {} to {}",
                                   bin_path(files_->prefix).string(), sequence,
                                   std::numeric_limits<int32_t>::max(), first,
                                   first + static_cast<int64_t>(out.size()) - 1),
               .help = "no vocabulary has it: the corpus is damaged, or was written with a "
                       "narrower type than its vocabulary needs"});
}

}  // namespace mtl
