// Positional reads of shard files (shard_files.h).
#include "runtime/checkpoint/shard_files.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/checkpoint/hash.h"

namespace mtl {

namespace {

[[noreturn]] void fail_file(const std::filesystem::path& path, const std::string& what) {
  throw Error(Exit::data, Diagnostic{.code = "ckpt.file",
                                     .what = fmt::format("{}: {}", path.string(), what),
                                     .help = "the checkpoint is damaged; use another one"});
}

// What the system says when a file is opened or read. Only some of it is about what the file holds:
// a checkpoint that this user may not read is as good as before.
[[noreturn]] void fail_read(const std::filesystem::path& path, int error) {
  for (const int damage : {ENOENT, ENOTDIR, EISDIR, EIO, ELOOP, ENXIO, EBADMSG, EUCLEAN}) {
    if (error == damage) fail_file(path, std::generic_category().message(error));
  }
  throw Error(Exit::environment,
              Diagnostic{.code = "ckpt.unreadable",
                         .what = fmt::format("cannot read {}: {}", path.string(),
                                             std::generic_category().message(error)),
                         .help = "make it readable for this user (permissions, limits); it may be "
                                 "as good as ever"});
}

}  // namespace

OpenShard open_shard(const std::filesystem::path& path, Links links) {
  OpenShard shard;
  const int no_links = links == Links::refuse ? O_NOFOLLOW : 0;
  shard.fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | no_links));
  if (!shard.fd && no_links != 0 && errno == ELOOP) {
    fail_file(path, "is a symbolic link, and a checkpoint's files lie in its own folder");
  }
  struct stat info = {};
  if (!shard.fd || ::fstat(shard.fd.get(), &info) != 0) {
    fail_read(path, errno);
  }
  if (!S_ISREG(info.st_mode)) fail_file(path, "not a regular file");
  shard.bytes = info.st_size;
  return shard;
}

void read_at(const OpenShard& shard, const std::filesystem::path& path, int64_t offset,
             std::span<char> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(shard.fd.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(path, errno);
    if (got == 0) fail_file(path, fmt::format("ends at byte {}", offset));
    out = out.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

std::string read_whole(const OpenShard& shard, const std::filesystem::path& path) {
  std::string content(static_cast<size_t>(shard.bytes), '\0');
  read_at(shard, path, 0, content);
  return content;
}

ShardStart read_shard_start(const std::filesystem::path& path) {
  const OpenShard shard = open_shard(path);
  std::string text(static_cast<size_t>(std::min<int64_t>(shard.bytes, 8)), '\0');
  read_at(shard, path, 0, text);
  const int64_t bytes = safetensors_header_bytes(text, shard.bytes, path.string());
  text.resize(static_cast<size_t>(bytes));
  read_at(shard, path, 0, text);
  return {.header = parse_safetensors_header(text, shard.bytes, path.string()),
          .file_bytes = shard.bytes,
          .header_xxh3 = Xxh3::of(text)};
}

}  // namespace mtl
