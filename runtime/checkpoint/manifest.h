// manifest.json: where every part of every tensor lies, with its hash; and COMMITTED, the hash of
// the manifest, without which the checkpoint does not exist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"

namespace mtl {

struct ShardFileRecord {
  int64_t bytes = 0;
  int64_t header_bytes = 0;  // length and header: all that chunks do not hash
  uint64_t header_xxh3 = 0;
};

struct ExtraFileRecord {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

// Version 2 has the extra files; in version 1 the tokenizer stands in the state.
inline constexpr int64_t kManifestVersion = 2;
inline constexpr int64_t kOldestManifestVersion = 1;

struct Manifest {
  int64_t version = kManifestVersion;
  nlohmann::json state;
  std::map<std::string, ExtraFileRecord> extras = {};
  std::map<std::string, ShardFileRecord> files;
  std::vector<ChunkRecord> chunks;
};

std::string manifest_text(const Manifest& manifest);
// Refuses what does not fit together: wrong sizes, chunks outside their tensor or their file,
// overlaps, file names with a path. Throws Error (Exit::data) ckpt.manifest, ckpt.version.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

// Throws Error (Exit::data) ckpt.tiling unless the chunks of every tensor agree on dtype and shape,
// lie inside it and overlap nowhere; with `complete`, they also leave no hole.
void check_tiling(const std::vector<ChunkRecord>& chunks, bool complete);

enum class CommitState {
  missing,      // no such directory
  uncommitted,  // no COMMITTED
  damaged,      // COMMITTED or the manifest is damaged, or they do not belong together
  unreadable,   // whether it is any of these cannot be known: no permission, no descriptors left
  committed,
};
struct CommitCheck {
  CommitState state = CommitState::missing;
  std::string reason;    // of `damaged`
  std::string manifest;  // text, of `committed`
  std::optional<Diagnostic> unreadable = {};
};
CommitCheck check_commit(const std::filesystem::path& dir);

constexpr const char* kManifestName = "manifest.json";
constexpr const char* kEvaluatedName = "evaluated.json";  // complete_evaluation()
constexpr const char* kMarkerName = "COMMITTED";

}  // namespace mtl
