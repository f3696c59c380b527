// Files of raw token ids: nanoGPT's .bin (u16, no header) and llm.c's .bin (a header of 256 i32:
// magic, version, tokens; then u16 with 20240520/1, u32 with 20240801/7; llm.c's dataloader.h).
// Several shards are one row, in the order of their names.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/data.h"

namespace mtl {

enum class TokenFileFormat { nanogpt, llmc };

// By the header: llmc if it has one of the magic numbers, else nanogpt.
TokenFileFormat token_file_format(const std::filesystem::path& path);
// `path` itself, the *.bin files of a folder, or the files that a pattern like shards/train_*.bin
// names; sorted. Throws Error data.missing if there are none.
std::vector<std::filesystem::path> shards_of(const std::string& path);
// Throws Error (Exit::data): data.missing, data.unreadable, data.shard (names the file and what is
// wrong with it). Reading throws data.token_range (names file and position) and data.unreadable.
std::shared_ptr<const TokenSource> open_token_files(const std::vector<std::filesystem::path>& paths,
                                                    TokenFileFormat format, int64_t vocab);

// What is read at most to tell one corpus from another.
inline constexpr int64_t kHashBudget = int64_t{64} << 20;
// XXH3 of what a file holds: all of it up to `budget` bytes; of a larger one the size and pieces of
// 64 KiB at even distances, the first and the last among them.
uint64_t content_hash(const std::filesystem::path& path, int64_t budget = kHashBudget);

}  // namespace mtl
