// A rank's shards: the rectangles of its tensors, gathered into one safetensors file for the model
// and one for the optimizer. Memory beside the tensors is one buffer; the hashes are computed on
// the way.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/elements.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/write_error.h"
#include "runtime/checkpoint/write_parts.h"

namespace mtl {

namespace {

constexpr size_t kWriteBytes = size_t{4} << 20;

// One file that is either complete and on the disk, or removed. Errors call it `named`.
class ShardFile {
 public:
  ShardFile(std::filesystem::path path, std::filesystem::path named, int64_t bytes)
      : path_(std::move(path)), named_(std::move(named)), bytes_(bytes) {
    // What an earlier attempt left is not written through: it may be linked or open elsewhere.
    if (::unlink(path_.c_str()) != 0 && errno != ENOENT) fail_write(named_, errno);
    fd_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd_) fail_write(named_, errno);
    reserve();
    buffer_.reserve(kWriteBytes);
  }
  ~ShardFile() {
    if (!finished_) ::unlink(path_.c_str());
  }
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  void append(std::string_view bytes) {
    if (buffer_.size() + bytes.size() > kWriteBytes) flush();
    // A long run goes from the tensor to the file without a copy.
    if (bytes.size() >= kWriteBytes / 4) {
      flush();
      write(bytes);
    } else {
      buffer_.append(bytes);
    }
  }

  void finish() {
    flush();
    if (::fsync(fd_.get()) != 0) fail_write(named_, errno, bytes_);
    // Network file systems tell some write errors only here.
    if (::close(fd_.release()) != 0 && errno != EINTR) fail_write(named_, errno, bytes_);
    finished_ = true;
  }

 private:
  // A disk that has no room says so now, and not when it is full for everybody else too.
  void reserve() {
    if (bytes_ <= 0 || ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes_) == 0) return;
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) return;
    const int why = errno;
    ::unlink(path_.c_str());
    fail_write(named_, why, bytes_);
  }

  void flush() {
    write(buffer_);
    buffer_.clear();
  }

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd_.get(), bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail_write(named_, errno, bytes_);
      bytes.remove_prefix(static_cast<size_t>(put));
      written_ += put;
    }
    // The disk works while the next bytes are hashed, and fsync has less to wait for.
    if (written_ - started_ >= kWritebackBytes) {
      ::sync_file_range(fd_.get(), started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
  }

  static constexpr int64_t kWritebackBytes = int64_t{16} << 20;
  std::filesystem::path path_, named_;
  const int64_t bytes_;  // of the whole
  int64_t written_ = 0, started_ = 0;
  Fd fd_;
  std::string buffer_;
  bool finished_ = false;
};

// One rectangle to write, as the manifest and as the file's header will show it.
struct TensorPiece {
  const CheckpointTensor* tensor;
  const ParamRect* rect;
  ChunkRecord chunk;
  std::string name;  // in the file
};

[[noreturn]] void fail_tensor(const CheckpointTensor& tensor, const std::string& what) {
  throw Error(Exit::data,
              Diagnostic{.code = "ckpt.tensor",
                         .what = fmt::format("'{}' cannot be saved: {}", tensor.name, what),
                         .help = "this is a fault in the program, not in your "
                                 "settings"});
}

// Which of a rank's files a tensor goes to.
constexpr std::string_view kKinds[] = {"model", "optim", "base"};
std::string_view kind_of(const CheckpointTensor& tensor) {
  return kKinds[tensor.optimizer ? 1 : tensor.frozen ? 2 : 0];
}

std::vector<TensorPiece> pieces_of(const std::vector<CheckpointTensor>& tensors,
                                   std::string_view kind, const std::string& file) {
  std::vector<TensorPiece> pieces;
  std::set<std::string> names = {"__metadata__"};
  for (const CheckpointTensor& tensor : tensors) {
    if (kind_of(tensor) != kind) continue;
    const auto elements = volume(tensor.shape);
    if (!elements || *elements > (int64_t{1} << 62) / bytes_of(tensor.dtype)) {
      fail_tensor(tensor, "impossible shape " + to_string(tensor.shape));
    }
    for (const ParamRect& rect : tensor.rects) {
      if (!inside({rect.global_offset, rect.extent}, tensor.shape) ||
          !inside({rect.local_offset, rect.extent}, tensor.local_shape)) {
        fail_tensor(tensor, "a rectangle is not inside the tensor");
      }
      // Nothing is written of nothing, but a tensor without elements still has its entry.
      const int64_t rect_elements = *volume(rect.extent);
      if (rect_elements == 0 && *elements > 0) continue;
      ChunkRecord chunk{.tensor = tensor.name,
                        .dtype = std::string(safetensors_name(tensor.dtype)),
                        .shape = tensor.shape,
                        .offset = rect.global_offset,
                        .extent = rect.extent,
                        .file = file,
                        .byte_offset = 0,
                        .bytes = rect_elements * bytes_of(tensor.dtype),
                        .xxh3 = 0};
      std::string name = tensor.name;
      if (tensor.rects.size() > 1) {
        name += fmt::format("@{}", fmt::join(rect.global_offset, ","));
      }
      if (!names.insert(name).second) fail_tensor(tensor, "two parts are named " + name);
      pieces.push_back({&tensor, &rect, std::move(chunk), std::move(name)});
    }
  }
  return pieces;
}

uint64_t append_piece(ShardFile& file, const TensorPiece& piece) {
  const CheckpointTensor& tensor = *piece.tensor;
  ElementReader elements(tensor);
  Xxh3 hash;
  const Dims origin(piece.rect->extent.size(), 0);
  for (RunCursor run(tensor.local_shape, piece.rect->local_offset, piece.rect->extent, origin,
                     piece.rect->extent);
       !run.done(); run.next()) {
    elements.read(run.a() - tensor.first, run.length(), [&](std::string_view bytes) {
      hash.update(bytes.data(), bytes.size());
      file.append(bytes);
    });
  }
  return hash.digest();
}

void write_shard(const std::filesystem::path& path, const std::filesystem::path& named,
                 std::vector<TensorPiece>& pieces, const std::string& format) {
  std::vector<SafetensorsEntry> entries;
  int64_t end = 0;
  for (const TensorPiece& piece : pieces) {
    entries.push_back({.name = piece.name,
                       .dtype = piece.chunk.dtype,
                       .shape = piece.chunk.extent,
                       .begin = end,
                       .end = end + piece.chunk.bytes});
    end += piece.chunk.bytes;
  }
  const std::string header = safetensors_header(entries, {{"format", format}});
  ShardFile file(path, named, static_cast<int64_t>(header.size()) + end);
  file.append(header);
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].chunk.byte_offset = static_cast<int64_t>(header.size()) + entries[i].begin;
    pieces[i].chunk.xxh3 = append_piece(file, pieces[i]);
  }
  file.finish();
}

}  // namespace

std::vector<ChunkRecord> write_shards(const CheckpointAttempt& attempt, int rank,
                                      const std::vector<CheckpointTensor>& tensors) {
  // Not made here: a rank that comes too late finds nothing to write into.
  return write_shards_into(written_path(attempt), rank, tensors);
}

bool link_shards(const CheckpointAttempt& attempt, const std::filesystem::path& committed,
                 const std::vector<ChunkRecord>& chunks) {
  std::set<std::string> files;
  for (const ChunkRecord& chunk : chunks) files.insert(chunk.file);
  const std::filesystem::path dir = written_path(attempt);
  for (const std::string& file : files) {
    if (::link((committed / file).c_str(), (dir / file).c_str()) != 0) return false;
  }
  as_write_error(dir, [&] { sync_directory(dir); });
  return true;
}

void write_safetensors(const std::filesystem::path& path, const std::filesystem::path& named,
                       const std::vector<CheckpointTensor>& tensors) {
  std::vector<TensorPiece> pieces = pieces_of(tensors, kKinds[0], path.filename().string());
  // Others' readers look for this word.
  write_shard(path, named, pieces, "pt");
}

std::vector<ChunkRecord> write_shards_into(const std::filesystem::path& dir, int rank,
                                           const std::vector<CheckpointTensor>& tensors) {
  std::vector<ChunkRecord> chunks;
  for (const std::string_view kind : kKinds) {
    const std::string name = fmt::format("{}-r{:05d}.safetensors", kind, rank);
    std::vector<TensorPiece> pieces = pieces_of(tensors, kind, name);
    if (pieces.empty()) continue;
    write_shard(dir / name, dir / name, pieces, "mtl.checkpoint");
    for (TensorPiece& piece : pieces) chunks.push_back(std::move(piece.chunk));
  }
  as_write_error(dir, [&] { sync_directory(dir); });
  return chunks;
}

}  // namespace mtl
