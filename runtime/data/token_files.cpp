#include "runtime/data/token_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <glob.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <xxhash.h>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeaderBytes = 256 * 4;
// So many files are kept open; with more, each read opens its own.
constexpr size_t kMostOpen = 256;

Fd open_file(const fs::path& path, int64_t& bytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    const int error = errno;
    const bool missing = error == ENOENT || error == ENOTDIR;
    fail_data(
        missing ? "data.missing" : "data.unreadable",
        fmt::format("cannot read '{}': {}", path.string(), std::generic_category().message(error)),
        missing ? "check the spelling; relative paths start at the directory where the command runs"
                : "make the file readable for this user on every node");
  }
  if (!S_ISREG(info.st_mode)) {
    fail_data("data.unreadable", fmt::format("'{}' is not a regular file", path.string()),
              "give files of token ids");
  }
  bytes = info.st_size;
  return fd;
}

void read_at(const fs::path& path, int fd, int64_t offset, void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, static_cast<char*>(to) + done, bytes - done,
                                static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fail_data("data.unreadable",
                got == 0 ? fmt::format("'{}' ends before byte {}: it has become shorter",
                                       path.string(), offset + static_cast<int64_t>(bytes))
                         : fmt::format("cannot read '{}': {}", path.string(),
                                       std::generic_category().message(errno)),
                "do not change a corpus while a run reads it");
    }
    done += static_cast<size_t>(got);
  }
}

struct Header {
  int32_t magic = 0, version = 0, tokens = 0;
};
Header header_of(const fs::path& path, int fd, int64_t bytes) {
  Header header;
  if (bytes < static_cast<int64_t>(sizeof(header))) return header;
  read_at(path, fd, 0, &header, sizeof(header));
  return header;
}
// Bytes of a token; 0: no header of llm.c.
int64_t token_bytes_of(const Header& header) {
  if (header.magic == 20240520 && header.version == 1) return 2;
  if (header.magic == 20240801 && header.version == 7) return 4;
  return 0;
}

class TokenFiles : public TokenSource {
 public:
  TokenFiles(const std::vector<fs::path>& paths, TokenFileFormat format, int64_t vocab)
      : vocab_(vocab) {
    for (const fs::path& path : paths) add(path, format, paths.size() <= kMostOpen);
  }
  int64_t size() const override { return size_; }
  void read(int64_t first, std::span<int32_t> out) const override {
    auto shard = std::upper_bound(shards_.begin(), shards_.end(), first,
                                  [](int64_t at, const Shard& s) { return at < s.begin; }) -
                 1;
    for (; !out.empty(); ++shard) {
      const int64_t from = first - shard->begin;
      const auto count = static_cast<size_t>(
          std::clamp<int64_t>(shard->tokens - from, 0, static_cast<int64_t>(out.size())));
      if (count > 0) read_shard(*shard, from, out.first(count));
      out = out.subspan(count);
      first += static_cast<int64_t>(count);
    }
  }
  uint64_t fingerprint() const override {
    uint64_t hash = 0;
    for (const Shard& shard : shards_) {
      const uint64_t pair[2] = {
          hash, content_hash(shard.path, kHashBudget / static_cast<int64_t>(shards_.size()))};
      hash = XXH3_64bits(pair, sizeof(pair));
    }
    return hash;
  }

 private:
  struct Shard {
    fs::path path;
    Fd fd;
    int64_t begin = 0, tokens = 0, offset = 0, token_bytes = 2;
  };

  void add(const fs::path& path, TokenFileFormat format, bool keep) {
    Shard shard;
    shard.path = path;
    int64_t bytes = 0;
    Fd fd = open_file(path, bytes);
    if (format == TokenFileFormat::llmc) {
      const Header header = header_of(path, fd.get(), bytes);
      shard.token_bytes = token_bytes_of(header);
      if (shard.token_bytes == 0) {
        fail_data(
            "data.shard",
            fmt::format("'{}' begins with {} and {}, which is no header of llm.c's token files",
                        path.string(), header.magic, header.version),
            "files of raw ids without a header are data.format: nanogpt");
      }
      shard.offset = kHeaderBytes;
      if (bytes < kHeaderBytes ||
          bytes - kHeaderBytes != int64_t{header.tokens} * shard.token_bytes) {
        fail_data(
            "data.shard",
            fmt::format("'{}' has {} bytes, and its header says {} tokens of {} bytes behind {} of "
                        "its own",
                        path.string(), bytes, header.tokens, shard.token_bytes, kHeaderBytes),
            "the file is not whole: make or fetch it again");
      }
    } else if (bytes % 2 != 0) {
      fail_data(
          "data.shard",
          fmt::format("'{}' has {} bytes, which is no whole number of 2-byte tokens", path.string(),
                      bytes),
          "the file is not whole, or not a file of token ids: a text has another name than *.bin");
    }
    shard.tokens = (bytes - shard.offset) / shard.token_bytes;
    shard.begin = size_;
    size_ += shard.tokens;
    if (keep) shard.fd = std::move(fd);
    shards_.push_back(std::move(shard));
  }

  void read_shard(const Shard& shard, int64_t first, std::span<int32_t> out) const {
    int64_t ignored = 0;
    Fd own;
    if (!shard.fd) own = open_file(shard.path, ignored);
    const int fd = shard.fd ? shard.fd.get() : own.get();
    const int64_t offset = shard.offset + first * shard.token_bytes;
    const auto bytes = out.size() * static_cast<size_t>(shard.token_bytes);
    if (shard.token_bytes == 2) {
      // Into the upper half of the memory, widened from the front: no element is overwritten before
      // it is read.
      auto* const from = reinterpret_cast<char*>(out.data()) + bytes;
      read_at(shard.path, fd, offset, from, bytes);
      for (size_t i = 0; i < out.size(); ++i) {
        uint16_t id = 0;
        std::memcpy(&id, from + 2 * i, 2);
        out[i] = id;
      }
    } else {
      read_at(shard.path, fd, offset, out.data(), bytes);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0 && out[i] < vocab_) continue;
      fail_data(
          "data.token_range",
          fmt::format("'{}': token {} is {}, outside the vocabulary of {}", shard.path.string(),
                      first + static_cast<int64_t>(i), static_cast<uint32_t>(out[i]), vocab_),
          "the corpus was made with another tokenizer: give that one, or its data.vocab");
    }
  }

  int64_t vocab_, size_ = 0;
  std::vector<Shard> shards_;
};

}  // namespace

TokenFileFormat token_file_format(const fs::path& path) {
  int64_t bytes = 0;
  const Fd fd = open_file(path, bytes);
  const Header header = header_of(path, fd.get(), bytes);
  // With both numbers right by chance, an unlucky nanoGPT file still has another size.
  const bool llmc = header.magic == 20240520 || header.magic == 20240801;
  return llmc ? TokenFileFormat::llmc : TokenFileFormat::nanogpt;
}

std::vector<fs::path> shards_of(const std::string& path) {
  std::vector<fs::path> shards;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (fs::directory_iterator it(path, ignored), end; it != end; it.increment(ignored)) {
      if (it->path().extension() == ".bin") shards.push_back(it->path());
    }
  } else if (!fs::exists(path, ignored) && path.find_first_of("*?[") != std::string::npos) {
    glob_t found = {};
    if (::glob(path.c_str(), 0, nullptr, &found) == 0) {
      shards.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    ::globfree(&found);
  } else {
    shards.emplace_back(path);
  }
  std::sort(shards.begin(), shards.end());
  if (shards.empty()) {
    fail_data("data.missing", fmt::format("'{}' names no *.bin file", path),
              "give a file, a folder with *.bin files, or a pattern that names some; of several "
              "texts a corpus is made first: mtl data tokenize");
  }
  return shards;
}

std::shared_ptr<const TokenSource> open_token_files(const std::vector<fs::path>& paths,
                                                    TokenFileFormat format, int64_t vocab) {
  return std::make_shared<TokenFiles>(paths, format, vocab);
}

uint64_t content_hash(const fs::path& path, int64_t budget) {
  constexpr int64_t kPiece = int64_t{64} << 10;
  const int64_t pieces = std::max<int64_t>(budget / kPiece, 3);
  int64_t bytes = 0;
  const Fd fd = open_file(path, bytes);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), &bytes, sizeof(bytes));
  std::vector<char> piece(static_cast<size_t>(kPiece));
  const auto add = [&](int64_t offset, int64_t count) {
    read_at(path, fd.get(), offset, piece.data(), static_cast<size_t>(count));
    XXH3_64bits_update(state.get(), piece.data(), static_cast<size_t>(count));
  };
  if (bytes <= std::max(budget, pieces * kPiece)) {
    for (int64_t at = 0; at < bytes; at += kPiece) add(at, std::min(kPiece, bytes - at));
  } else {
    for (int64_t i = 0; i + 1 < pieces; ++i) {
      // The product would pass 2^63 from 8 PiB on.
      add((bytes - kPiece) / (pieces - 1) * i, kPiece);
    }
    add(bytes - kPiece, kPiece);
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace mtl
