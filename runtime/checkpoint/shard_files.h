// Safetensors files on disk, read by position: several ranks read the same ones at once, and none
// is ever read whole into memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "common/files.h"
#include "runtime/checkpoint/safetensors.h"

namespace mtl {

// All throw Error that names the file: ckpt.file (Exit::data) where it is damaged or not there, and
// ckpt.unreadable (Exit::environment) where that cannot be known: no permission, no descriptors
// left.
struct OpenShard {
  Fd fd;
  int64_t bytes = 0;
};
enum class Links {
  follow,
  refuse,  // the file itself is no link: what it links to may be anywhere
};
OpenShard open_shard(const std::filesystem::path& path, Links links = Links::follow);
void read_at(const OpenShard& shard, const std::filesystem::path& path, int64_t offset,
             std::span<char> out);
std::string read_whole(const OpenShard& shard, const std::filesystem::path& path);

struct ShardStart {
  SafetensorsHeader header;
  int64_t file_bytes = 0;
  uint64_t header_xxh3 = 0;
};
// Also ckpt.format.
ShardStart read_shard_start(const std::filesystem::path& path);

}  // namespace mtl
