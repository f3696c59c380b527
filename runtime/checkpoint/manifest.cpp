// Manifest text, its checks, and the commit marker (manifest.h).
#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/shard_files.h"
#include "runtime/checkpoint/strict_json.h"

namespace mtl {

namespace {

constexpr const char* kFormat = "mtl.checkpoint";

[[noreturn]] void fail_tiling(const std::string& tensor, const std::string& what) {
  fail_data(
      "ckpt.tiling", fmt::format("the parts of '{}' do not make one tensor: {}", tensor, what),
      "this is a fault in the plan's rectangles, not in your settings; the previous checkpoint is "
      "intact");
}

Rect rect_of(const ChunkRecord& chunk) {
  return {chunk.offset, chunk.extent};
}

// Of one tensor.
void check_tensor(std::vector<const ChunkRecord*>& chunks, bool complete) {
  const ChunkRecord& first = *chunks[0];
  const auto elements = volume(first.shape);
  if (!elements) fail_tiling(first.tensor, "impossible shape " + to_string(first.shape));
  int64_t covered = 0;
  for (const ChunkRecord* chunk : chunks) {
    if (chunk->dtype != first.dtype || chunk->shape != first.shape) {
      fail_tiling(first.tensor, fmt::format("{} says {} {}, {} says {} {}", first.file, first.dtype,
                                            to_string(first.shape), chunk->file, chunk->dtype,
                                            to_string(chunk->shape)));
    }
    if (!inside(rect_of(*chunk), first.shape)) {
      fail_tiling(first.tensor, fmt::format("{} has a part that is not inside {}", chunk->file,
                                            to_string(first.shape)));
    }
  }
  // Sorted by an axis, a part can only overlap those that begin before it ends there: the axis at
  // which most parts begin in different places, so that there are few.
  size_t axis = 0;
  size_t most = 0;
  for (size_t d = 0; d < first.shape.size(); ++d) {
    std::set<int64_t> begins;
    for (const ChunkRecord* chunk : chunks) begins.insert(chunk->offset[d]);
    if (begins.size() > most) axis = d;
    most = std::max(most, begins.size());
  }
  std::sort(chunks.begin(), chunks.end(), [&](const ChunkRecord* a, const ChunkRecord* b) {
    if (!a->offset.empty() && a->offset[axis] != b->offset[axis]) {
      return a->offset[axis] < b->offset[axis];
    }
    return a->offset < b->offset;
  });
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Rect rect = rect_of(*chunks[i]);
    const int64_t rect_volume = *volume(rect.extent);
    covered += rect_volume;
    if (rect_volume == 0) continue;
    for (size_t j = i + 1; j < chunks.size(); ++j) {
      if (!rect.offset.empty() &&
          chunks[j]->offset[axis] >= rect.offset[axis] + rect.extent[axis]) {
        break;
      }
      if (const auto common = intersection(rect, rect_of(*chunks[j]))) {
        fail_tiling(first.tensor, fmt::format("{} is in {} and in {}", to_string(*common),
                                              chunks[i]->file, chunks[j]->file));
      }
    }
  }
  if (complete && covered != *elements) {
    std::vector<Rect> rects;
    for (const ChunkRecord* chunk : chunks) rects.push_back(rect_of(*chunk));
    const auto hole = first_hole(first.shape, rects);
    fail_tiling(first.tensor,
                fmt::format("{} of {} elements are there; {} is missing", covered, *elements,
                            hole ? to_string(*hole) : std::string("a part")));
  }
}

bool plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

void check_files(const Manifest& manifest) {
  for (const ChunkRecord& chunk : manifest.chunks) {
    const auto file = manifest.files.find(chunk.file);
    if (file == manifest.files.end()) {
      throw JsonProblem(fmt::format("tensor '{}' is in '{}', which is not among the files",
                                    chunk.tensor, chunk.file));
    }
    if (chunk.byte_offset < file->second.header_bytes ||
        chunk.byte_offset > file->second.bytes - chunk.bytes) {
      throw JsonProblem(fmt::format("tensor '{}' has {} bytes at {} of '{}', which has {}",
                                    chunk.tensor, chunk.bytes, chunk.byte_offset, chunk.file,
                                    file->second.bytes));
    }
  }
}

void read_extras(const nlohmann::json& extras, Manifest& manifest) {
  if (!extras.is_object()) throw JsonProblem("'extras' is not an object");
  for (const auto& [name, file] : extras.items()) {
    if (!plain_name(name)) throw JsonProblem("'extras' has a name that is no plain file name");
    if (manifest.files.contains(name) || name == kManifestName || name == kMarkerName) {
      throw JsonProblem(fmt::format("'extras' has '{}', which is another kind of file", name));
    }
    manifest.extras[name] = {.bytes = json_size(file, "bytes"), .xxh3 = json_hash(file, "xxh3")};
  }
}

}  // namespace

nlohmann::json to_json(const std::vector<ChunkRecord>& chunks) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const ChunkRecord& chunk : chunks) {
    nlohmann::json& tensor = tensors[chunk.tensor];
    if (tensor.is_null()) {
      tensor = {
          {"dtype", chunk.dtype}, {"shape", chunk.shape}, {"chunks", nlohmann::json::array()}};
    } else if (tensor["dtype"] != chunk.dtype || tensor["shape"] != chunk.shape) {
      fail_tiling(chunk.tensor, "its parts differ in dtype or shape");
    }
    tensor["chunks"].push_back({{"offset", chunk.offset},
                                {"extent", chunk.extent},
                                {"file", chunk.file},
                                {"byte_offset", chunk.byte_offset},
                                {"bytes", chunk.bytes},
                                {"xxh3", hash_text(chunk.xxh3)}});
  }
  return tensors;
}

std::vector<ChunkRecord> chunks_from_json(const nlohmann::json& json) {
  std::vector<ChunkRecord> chunks;
  std::string at;
  try {
    if (!json.is_object()) throw JsonProblem("'tensors' is not an object");
    for (const auto& [name, tensor] : json.items()) {
      at = fmt::format("tensor '{}': ", name);
      const std::string& dtype = json_string(tensor, "dtype");
      const int64_t element = safetensors_element_bytes(dtype);
      if (element == 0) throw JsonProblem(fmt::format("unknown dtype '{}'", dtype));
      const Dims shape = json_sizes(tensor, "shape");
      const auto elements = volume(shape);
      if (!elements || *elements > (int64_t{1} << 62) / element) {
        throw JsonProblem("its shape is too large");
      }
      const nlohmann::json& list = json_member(tensor, "chunks");
      if (!list.is_array() || list.empty()) throw JsonProblem("'chunks' is not a list of chunks");
      for (const nlohmann::json& item : list) {
        ChunkRecord chunk{.tensor = name,
                          .dtype = dtype,
                          .shape = shape,
                          .offset = json_sizes(item, "offset"),
                          .extent = json_sizes(item, "extent"),
                          .file = json_string(item, "file"),
                          .byte_offset = json_size(item, "byte_offset"),
                          .bytes = json_size(item, "bytes"),
                          .xxh3 = json_hash(item, "xxh3")};
        if (!inside(rect_of(chunk), shape)) throw JsonProblem("a chunk is not inside its shape");
        if (chunk.bytes != *volume(chunk.extent) * element) {
          throw JsonProblem("'bytes' of a chunk is not the size of its extent");
        }
        if (!plain_name(chunk.file)) throw JsonProblem("'file' is not a plain file name");
        chunks.push_back(std::move(chunk));
      }
    }
  } catch (const JsonProblem& problem) {
    fail_data("ckpt.manifest", at + problem.what(), "use another checkpoint");
  }
  return chunks;
}

std::string manifest_text(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes},
                   {"header_bytes", file.header_bytes},
                   {"header_xxh3", hash_text(file.header_xxh3)}};
  }
  nlohmann::json extras = nlohmann::json::object();
  for (const auto& [name, file] : manifest.extras) {
    extras[name] = {{"bytes", file.bytes}, {"xxh3", hash_text(file.xxh3)}};
  }
  const nlohmann::json json = {{"format", kFormat},         {"version", kManifestVersion},
                               {"state", manifest.state},   {"extras", std::move(extras)},
                               {"files", std::move(files)}, {"tensors", to_json(manifest.chunks)}};
  try {
    return json.dump(1) + "\n";
  } catch (const nlohmann::json::exception& error) {
    fail_data("ckpt.manifest", fmt::format("the state cannot be written as JSON: {}", error.what()),
              "names and texts in the state have to be UTF-8");
  }
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  Manifest manifest;
  try {
    const nlohmann::json json = parse_strict_json(text);
    if (json_string(json, "format") != kFormat) {
      throw JsonProblem(fmt::format("'format' is not \"{}\"", kFormat));
    }
    manifest.version = json_size(json, "version");
    if (manifest.version > kManifestVersion || manifest.version < kOldestManifestVersion) {
      fail_data(
          "ckpt.version",
          fmt::format("{}: checkpoint version {}; this mtl reads versions {} to {}", path.string(),
                      manifest.version, kOldestManifestVersion, kManifestVersion),
          manifest.version > kManifestVersion ? "use the mtl that wrote it, or a newer one"
                                              : "use another checkpoint");
    }
    manifest.state = json_member(json, "state");
    const nlohmann::json& files = json_member(json, "files");
    if (!files.is_object()) throw JsonProblem("'files' is not an object");
    for (const auto& [name, file] : files.items()) {
      if (!plain_name(name)) throw JsonProblem("'files' has a name that is no plain file name");
      ShardFileRecord& record = manifest.files[name];
      record.bytes = json_size(file, "bytes");
      record.header_bytes = json_size(file, "header_bytes");
      record.header_xxh3 = json_hash(file, "header_xxh3");
      if (record.header_bytes > record.bytes) {
        throw JsonProblem(fmt::format("'{}' has a header longer than itself", name));
      }
    }
    if (manifest.version > 1) read_extras(json_member(json, "extras"), manifest);
    manifest.chunks = chunks_from_json(json_member(json, "tensors"));
    check_files(manifest);
    check_tiling(manifest.chunks, false);
  } catch (const JsonProblem& problem) {
    fail_data("ckpt.manifest", fmt::format("{}: {}", path.string(), problem.what()),
              "use another checkpoint");
  } catch (const Error& error) {
    const Diagnostic& cause = error.diagnostics()[0];
    if (cause.code == "ckpt.version") throw;
    fail_data("ckpt.manifest", fmt::format("{}: {}", path.string(), cause.what),
              "use another checkpoint");
  }
  return manifest;
}

void check_tiling(const std::vector<ChunkRecord>& chunks, bool complete) {
  std::map<std::string_view, std::vector<const ChunkRecord*>> tensors;
  for (const ChunkRecord& chunk : chunks) tensors[chunk.tensor].push_back(&chunk);
  for (auto& [name, parts] : tensors) check_tensor(parts, complete);
}

CommitCheck check_commit(const std::filesystem::path& dir) {
  CommitCheck check;
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(dir, error);
  if (!is_folder && error != std::errc::permission_denied) return check;
  const auto marker_path = dir / kMarkerName;
  if (is_folder && std::filesystem::symlink_status(marker_path, error).type() ==
                       std::filesystem::file_type::not_found) {
    check.state = CommitState::uncommitted;
    return check;
  }
  check.state = CommitState::damaged;
  try {
    const std::string marker = read_whole(open_shard(marker_path), marker_path);
    const auto manifest_path = dir / kManifestName;
    std::string text = read_whole(open_shard(manifest_path), manifest_path);
    if (marker != hash_text(Xxh3::of(text)) + "\n") {
      check.reason = fmt::format("{} does not hold the XXH3 of {}: one of them is damaged",
                                 kMarkerName, kManifestName);
      return check;
    }
    check.state = CommitState::committed;
    check.manifest = std::move(text);
  } catch (const Error& failed) {
    check.reason = failed.diagnostics().front().what;
    if (failed.exit() != Exit::environment) return check;
    check.state = CommitState::unreadable;
    check.unreadable = failed.diagnostics().front();
  }
  return check;
}

}  // namespace mtl
