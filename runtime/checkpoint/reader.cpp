// Loading any layout from any layout: a rank's rectangles are cut out of whatever chunks hold them.
// A chunk is streamed through one buffer that is hashed and scattered from at once; the first time
// it is touched all of it is read, so that its hash can be checked, later only what is needed.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/error.h"
#include "common/half_types.h"
#include "common/threads.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/elements.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/rectangles.h"
#include "runtime/checkpoint/shard_files.h"
#include "runtime/checkpoint/strict_json.h"

namespace mtl {

namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;
// A checkpoint of a large job has more files than a process may have open.
constexpr size_t kMaxOpen = 64;

// What one rectangle of memory takes from one chunk: runs that are ascending in the chunk.
struct Scatter {
  RunCursor run;
  int64_t done = 0;  // elements of the current run
};

// Where the elements of a local tensor go: it begins `first` elements before what is held of it.
struct Target {
  ElementWriter* elements = nullptr;
  int64_t first = 0;
};

// Copies to the target what bytes [begin, begin + bytes.size()) of the chunk hold of it.
void scatter(Scatter& part, std::span<const char> bytes, int64_t begin, int64_t element,
             const Target& target) {
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  for (; !part.run.done(); part.run.next(), part.done = 0) {
    const int64_t from = (part.run.a() + part.done) * element;
    const int64_t run_end = (part.run.a() + part.run.length()) * element;
    if (from >= end) return;
    const int64_t to = std::min(run_end, end);
    target.elements->write(part.run.b() + part.done - target.first,
                           {bytes.data() + (from - begin), static_cast<size_t>(to - from)});
    part.done += (to - from) / element;
    if (to < run_end) return;
  }
}

}  // namespace

struct CheckpointReader::Files {
  std::filesystem::path dir;
  std::map<std::string, ShardFileRecord> records;
  std::map<std::string, ExtraFileRecord> extras;
  std::map<std::string, std::vector<size_t>, std::less<>> chunks_of;  // by tensor
  std::mutex mutex;  // of what follows; several threads read
  std::map<std::string, std::shared_ptr<const OpenShard>> open;
  std::set<std::string> verified_headers;
  std::set<size_t> verified_chunks;

  bool is_verified(size_t chunk) {
    const std::lock_guard lock(mutex);
    return verified_chunks.contains(chunk);
  }

  // Two threads may both open a file; one of them is kept.
  std::shared_ptr<const OpenShard> get(const std::string& name) {
    bool verified = false;
    {
      const std::lock_guard lock(mutex);
      if (const auto found = open.find(name); found != open.end()) return found->second;
      verified = verified_headers.contains(name);
    }
    const auto path = dir / name;
    auto shard = std::make_shared<const OpenShard>(open_shard(path, Links::refuse));
    const ShardFileRecord& record = records.at(name);
    if (shard->bytes != record.bytes) {
      fail_data(
          "ckpt.file",
          fmt::format("{} has {} bytes instead of {}", path.string(), shard->bytes, record.bytes),
          "the checkpoint is damaged; use another one");
    }
    if (!verified) {
      std::string header(static_cast<size_t>(record.header_bytes), '\0');
      read_at(*shard, path, 0, header);
      if (Xxh3::of(header) != record.header_xxh3) {
        fail_data("ckpt.checksum", fmt::format("{}: the header fails its checksum", path.string()),
                  "the file was damaged after it was written; use another checkpoint");
      }
    }
    const std::lock_guard lock(mutex);
    verified_headers.insert(name);
    if (open.size() >= kMaxOpen) open.clear();
    return open.emplace(name, std::move(shard)).first->second;
  }

  // Reads the bytes of `chunk` that `parts` need, all of them if it was not verified yet.
  void stream(const ChunkRecord& chunk, size_t index, std::vector<Scatter>& parts, int64_t element,
              const Target& target) {
    const std::shared_ptr<const OpenShard> shard = get(chunk.file);
    const auto path = dir / chunk.file;
    const bool verify = !is_verified(index);
    int64_t begin = verify ? 0 : chunk.bytes;
    int64_t end = verify ? chunk.bytes : 0;
    if (!verify) {
      for (const Scatter& part : parts) {
        begin = std::min(begin, part.run.a() * element);
        RunCursor last = part.run;
        for (; !last.done(); last.next()) {
          end = std::max(end, (last.a() + last.length()) * element);
        }
      }
    }
    // Whole elements, so that no element straddles two fillings.
    std::vector<char> buffer(
        static_cast<size_t>(std::max<int64_t>(0, std::min(kBufferBytes, end - begin))));
    Xxh3 hash;
    while (begin < end) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(buffer.size(), end - begin));
      const std::span<char> filled(buffer.data(), bytes);
      read_at(*shard, path, chunk.byte_offset + begin, filled);
      if (verify) hash.update(filled.data(), filled.size());
      for (Scatter& part : parts) scatter(part, filled, begin, element, target);
      begin += static_cast<int64_t>(bytes);
    }
    if (!verify) return;
    if (hash.digest() != chunk.xxh3) {
      fail_data("ckpt.checksum",
                fmt::format("{}: tensor '{}' at {} fails its checksum", path.string(), chunk.tensor,
                            to_string(Rect{chunk.offset, chunk.extent})),
                "the file was damaged after it was written; use another checkpoint");
    }
    const std::lock_guard lock(mutex);
    verified_chunks.insert(index);
  }
};

namespace {

// More than a disk needs to be busy, and few enough for a machine with many ranks.
constexpr size_t kThreads = 4;

// Calls work(i) for each i < count, by a few threads, as many as can be started, in ascending order
// as far as that goes. After an exception no more are begun, and that of the smallest i is thrown.
void in_parallel(size_t count, const std::function<void(size_t)>& work) {
  const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
  const size_t threads = std::min({kThreads, cores, count});
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t first = SIZE_MAX;
  std::exception_ptr thrown;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i >= first) return;
        first = i;
        thrown = std::current_exception();
      }
    }
  };
  // What those that cannot be started would have done this one does.
  std::vector<std::thread> others;
  if (threads > 1) start_threads(others, threads - 1, run);
  run();
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& dir) : dir_(dir) {
  CommitCheck check = check_commit(dir);
  switch (check.state) {
    case CommitState::missing:
      fail_data("ckpt.missing", dir.string() + " does not exist or is not a directory",
                "give a directory checkpoints/step-*, or a run that has one");
    case CommitState::uncommitted:
      fail_data("ckpt.incomplete",
                fmt::format("{} has no {}: it was never complete", dir.string(), kMarkerName),
                "use the checkpoint before it");
    case CommitState::unreadable:
      throw Error(Exit::environment, *check.unreadable);
    case CommitState::damaged:
      fail_data("ckpt.manifest", fmt::format("{}: {}", dir.string(), check.reason),
                "use the checkpoint before it");
    case CommitState::committed:
      break;
  }
  Manifest manifest = parse_manifest(check.manifest, dir / kManifestName);
  state_ = std::move(manifest.state);
  add_evaluation(dir, state_);
  chunks_ = std::move(manifest.chunks);
  files_ = std::make_unique<Files>();
  files_->dir = dir;
  files_->records = std::move(manifest.files);
  files_->extras = std::move(manifest.extras);
  for (size_t i = 0; i < chunks_.size(); ++i) files_->chunks_of[chunks_[i].tensor].push_back(i);
}

CheckpointReader::~CheckpointReader() = default;

std::vector<std::string> CheckpointReader::extras() const {
  std::vector<std::string> names;
  for (const auto& [name, ignored] : files_->extras) names.push_back(name);
  return names;
}

std::string CheckpointReader::extra(const std::string& name) const {
  const auto path = dir_ / name;
  const auto found = files_->extras.find(name);
  if (found == files_->extras.end()) {
    fail_data("ckpt.file", fmt::format("{} has no file '{}'", dir_.string(), name),
              "the checkpoint is of another program or version; use another one");
  }
  const OpenShard file = open_shard(path, Links::refuse);
  if (file.bytes != found->second.bytes) {
    fail_data("ckpt.file",
              fmt::format("{} has {} bytes instead of {}", path.string(), file.bytes,
                          found->second.bytes),
              "the checkpoint is damaged; use another one");
  }
  const std::string content = read_whole(file, path);
  if (Xxh3::of(content) != found->second.xxh3) {
    fail_data("ckpt.checksum", fmt::format("{} fails its checksum", path.string()),
              "the file was damaged after it was written; use another checkpoint");
  }
  return content;
}

nlohmann::json CheckpointReader::tokenizer() const {
  if (files_->extras.contains(kTokenizerFile)) {
    try {
      return parse_strict_json(extra(kTokenizerFile));
    } catch (const JsonProblem& problem) {
      fail_data("ckpt.manifest",
                fmt::format("{}: {}", (dir_ / kTokenizerFile).string(), problem.what()),
                "use another checkpoint");
    }
  }
  const auto found = state_.find("tokenizer");
  if (found == state_.end()) {
    fail_data("ckpt.manifest", dir_.string() + " has no tokenizer", "use another checkpoint");
  }
  return *found;
}

namespace {

// As `tensor`, of elements of 16 bits, which are made f32 on the way.
CheckpointTensor widened(CheckpointTensor& tensor, DType stored) {
  CheckpointTensor narrow = tensor;
  narrow.dtype = stored;
  narrow.data = nullptr;
  narrow.fetch = nullptr;
  narrow.store = [&tensor, stored](int64_t at, int64_t n, const void* from) {
    std::vector<float> wide(static_cast<size_t>(n));
    widen(stored, static_cast<const uint16_t*>(from), n, wide.data());
    if (tensor.store) return tensor.store(at, n, wide.data());
    std::memcpy(static_cast<float*>(tensor.data) + at, wide.data(), wide.size() * sizeof(float));
  };
  return narrow;
}

}  // namespace

void CheckpointReader::read(CheckpointTensor& tensor) {
  const auto found = files_->chunks_of.find(tensor.name);
  if (found == files_->chunks_of.end()) {
    std::vector<std::string> names;
    for (const auto& [name, ignored] : files_->chunks_of) names.push_back(name);
    const auto near = did_you_mean(tensor.name, names);
    fail_data("ckpt.tensor", fmt::format("{} has no tensor '{}'", dir_.string(), tensor.name),
              near ? fmt::format("the nearest name in it is '{}'", *near)
                   : "the checkpoint is of another model");
  }
  const ChunkRecord& first = chunks_[found->second[0]];
  const bool narrow = tensor.dtype == DType::f32 && (first.dtype == safetensors_name(DType::bf16) ||
                                                     first.dtype == safetensors_name(DType::f16));
  if (first.shape != tensor.shape || (first.dtype != safetensors_name(tensor.dtype) && !narrow)) {
    fail_data("ckpt.shape",
              fmt::format("{}: tensor '{}' is {} {}, and this model has {} {}", dir_.string(),
                          tensor.name, first.dtype, to_string(first.shape),
                          safetensors_name(tensor.dtype), to_string(tensor.shape)),
              "the checkpoint is of another model");
  }
  if (narrow) {
    const bool bf16 = first.dtype == safetensors_name(DType::bf16);
    CheckpointTensor stored = widened(tensor, bf16 ? DType::bf16 : DType::f16);
    return read(stored);
  }
  std::map<size_t, std::vector<Scatter>> needed;  // by chunk
  for (const ParamRect& rect : tensor.rects) {
    const Rect wanted{rect.global_offset, rect.extent};
    if (!inside(wanted, tensor.shape) ||
        !inside({rect.local_offset, rect.extent}, tensor.local_shape)) {
      fail_data("ckpt.shape",
                fmt::format("tensor '{}': a rectangle to read is outside it", tensor.name),
                "this is a fault in the program, not in your settings");
    }
    if (*volume(wanted.extent) == 0) continue;
    int64_t covered = 0;
    std::vector<Rect> rects;
    for (const size_t index : found->second) {
      const ChunkRecord& chunk = chunks_[index];
      rects.push_back({chunk.offset, chunk.extent});
      const auto common = intersection(wanted, rects.back());
      if (!common) continue;
      covered += *volume(common->extent);
      Dims in_chunk = common->offset;
      Dims in_local = common->offset;
      for (size_t d = 0; d < in_chunk.size(); ++d) {
        in_chunk[d] -= chunk.offset[d];
        in_local[d] += rect.local_offset[d] - rect.global_offset[d];
      }
      needed[index].push_back(
          {RunCursor(chunk.extent, in_chunk, tensor.local_shape, in_local, common->extent)});
    }
    // Chunks overlap nowhere (checked when the manifest was read), so the sum is the cover.
    if (covered != *volume(wanted.extent)) {
      fail_data("ckpt.hole",
                fmt::format(
                    "{}: {} of tensor '{}' is needed, and only {} of its {} elements are there",
                    dir_.string(), to_string(wanted), tensor.name, covered, *volume(wanted.extent)),
                "use another checkpoint");
    }
  }
  ElementWriter elements(tensor);
  for (auto& [index, parts] : needed) {
    files_->stream(chunks_[index], index, parts, bytes_of(tensor.dtype), {&elements, tensor.first});
  }
  elements.flush();
}

void CheckpointReader::read(std::vector<CheckpointTensor>& tensors) {
  const bool one_by_one =
      std::any_of(tensors.begin(), tensors.end(),
                  [](const CheckpointTensor& t) { return t.store && !t.from_any_thread; });
  if (one_by_one) {
    for (CheckpointTensor& tensor : tensors) read(tensor);
    return;
  }
  in_parallel(tensors.size(), [&](size_t i) { read(tensors[i]); });
}

Diagnostics CheckpointReader::find_damage(size_t most) {
  // In the order of the disk.
  std::vector<size_t> left;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!files_->is_verified(i)) left.push_back(i);
  }
  std::sort(left.begin(), left.end(), [&](size_t a, size_t b) {
    return std::tie(chunks_[a].file, chunks_[a].byte_offset) <
           std::tie(chunks_[b].file, chunks_[b].byte_offset);
  });
  std::map<size_t, Diagnostic> found;  // by place in `left`
  std::set<std::string> unusable;      // files of which one thing is said once
  std::mutex mutex;
  in_parallel(left.size(), [&](size_t i) {
    const ChunkRecord& chunk = chunks_[left[i]];
    {
      const std::lock_guard lock(mutex);
      if (found.size() >= most || unusable.contains(chunk.file)) return;
    }
    std::vector<Scatter> nowhere;
    try {
      files_->get(chunk.file);
    } catch (const Error& error) {
      if (error.exit() == Exit::environment) throw;
      const std::lock_guard lock(mutex);
      if (unusable.insert(chunk.file).second) found.emplace(i, error.diagnostics().front());
      return;
    }
    try {
      files_->stream(chunk, left[i], nowhere, 1, {});
    } catch (const Error& error) {
      if (error.exit() == Exit::environment) throw;
      const std::lock_guard lock(mutex);
      found.emplace(i, error.diagnostics().front());
    }
  });
  Diagnostics damage;
  size_t count = 0;
  for (auto& [place, diagnostic] : found) {
    if (count++ < most) damage.add(std::move(diagnostic));
  }
  for (const std::string& name : extras()) {
    try {
      extra(name);
    } catch (const Error& error) {
      if (error.exit() == Exit::environment) throw;
      if (count++ < most) damage.add(error.diagnostics().front());
    }
  }
  return damage;
}

void CheckpointReader::verify() {
  find_damage(1).throw_if_errors(Exit::data);
}

}  // namespace mtl
