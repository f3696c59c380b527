// Checkpoints (design: global tensors under public names; any layout loads any checkpoint):
//   step-00000100/
//     manifest.json              tensor -> {dtype, shape, chunks [{offset, extent, file,
//                                byte_offset, bytes, xxh3}]}, files, extra files, trainer state
//     tokenizer.json             extra files: small, whole in one piece, hashed as a whole
//     model-r00000.safetensors, optim-r00000.safetensors ...   of each writing rank
//     base-r00000.safetensors    beside adapters, what is not trained: the same file (a hard link)
//                                in all checkpoints that a process has written
//     COMMITTED                  XXH3 of the manifest, written last; without it the checkpoint does
//                                not exist
// It is written as step-00000100.writing-F, where F is the fence of the ranks that write it, and
// gets its name when it is complete. Files, directory, marker and name are fsynced in that order,
// so a crash at any instant leaves the previous checkpoint intact.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/dtype.h"
#include "common/error.h"
#include "runtime/checkpoint/keep_rules.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

// A rank's part of one global tensor: in host memory, or where only `fetch` and `store` get at it.
struct CheckpointTensor {
  std::string
      name;  // "transformer.wte.weight", or + ".exp_avg" / ".exp_avg_sq" in the optimizer files
  DType dtype = DType::f32;
  std::vector<int64_t> shape;        // global
  std::vector<int64_t> local_shape;  // of `data`
  std::vector<ParamRect> rects;      // which parts of the global tensor `data` holds, and where
  int64_t first = 0;  // the element of the flattened local tensor that `data` begins with
  void* data = nullptr;
  // Where `data` is not in host memory: its number of elements, and how to copy `n` of them from
  // element `at` on.
  int64_t count = 0;
  std::function<void(int64_t at, int64_t n, void* to)> fetch = {};
  std::function<void(int64_t at, int64_t n, const void* from)> store = {};
  bool from_any_thread = false;  // these may be called
  bool optimizer = false;        // goes to the optim-* file
  bool frozen = false;           // is not trained: goes to the base-* file
};

// One rectangle as it lies on disk; the unit of verification.
struct ChunkRecord {
  std::string tensor;
  std::string dtype;  // safetensors spelling
  std::vector<int64_t> shape, offset, extent;
  std::string file;
  int64_t byte_offset = 0;  // from the start of the file
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};
// The manifest's "tensors". Back from JSON the chunks are ordered by tensor; JSON that does not fit
// together (sizes, bounds, names) is an Error (Exit::data) ckpt.manifest.
nlohmann::json to_json(const std::vector<ChunkRecord>& chunks);
std::vector<ChunkRecord> chunks_from_json(const nlohmann::json& json);

std::filesystem::path checkpoint_path(const std::filesystem::path& checkpoints_dir, int64_t step);

// Who writes which checkpoint. All ranks of an attempt give the same.
struct CheckpointAttempt {
  std::filesystem::path dir;  // step-*, where it will be
  int64_t fence = 0;          // of the ranks that write (run.h); 0 = of a job without fences
};
// Where its files lie until it is committed: in a folder of this attempt alone, so that no rank of
// another fence ever opens a file of it.
std::filesystem::path written_path(const CheckpointAttempt& attempt);

// One rank, before anybody writes: makes the attempt's folder, empty. What attempts of this fence
// and of older ones left is deleted; one of a newer fence is not touched. Throws Error ckpt.exists
// (Exit::data) if a committed checkpoint is there; ckpt.write (Exit::environment).
void prepare_checkpoint(const CheckpointAttempt& attempt);

// The same rank then, on a disk that may be full of them: deletes what `keep` keeps no longer,
// which the commit would do, where the rules have become stricter. `newest`: the step that the run
// has last saved, or goes on from. It stays, and nothing is deleted unless its checkpoint is
// complete, the newest, and what `latest` points at. What cannot be deleted is left to the commit.
void make_room(const CheckpointAttempt& attempt, int64_t newest, const KeepRules& keep);

// Each rank: writes its {model,optim,base}-rRRRRR.safetensors into the prepared folder and fsyncs
// them. Chunks inside a file are named
// "<tensor>" or "<tensor>@<offset>" when a rank holds several. Returns what it wrote. Throws Error
// (Exit::environment) ckpt.write with file and reason; the file that could not be completed is
// removed.
std::vector<ChunkRecord> write_shards(const CheckpointAttempt& attempt, int rank,
                                      const std::vector<CheckpointTensor>& tensors);
// The same of files that the rank has written into a checkpoint which is in `committed` now: they
// get a second name. False where that cannot be, and they are to be written anew.
bool link_shards(const CheckpointAttempt& attempt, const std::filesystem::path& committed,
                 const std::vector<ChunkRecord>& chunks);

// A file that belongs to a checkpoint beside the tensors, and is small: the tokenizer.
struct ExtraFile {
  std::string name;  // a plain file name, not one of those above
  std::string content;
};
inline constexpr const char* kTokenizerFile = "tokenizer.json";

// One rank, after all shards are written: checks that the chunks tile every tensor exactly
// (ckpt.tiling) and that the files are as their ranks reported (ckpt.file), writes the extra files,
// manifest.json and COMMITTED, renames the whole to `dir`, points `<parent>/../latest` (and `best`,
// if that is a rule) at it, and deletes the committed checkpoints that `keep` does not keep (the
// new one always stays) and older uncommitted ones. `state` is stored under "state" in the manifest
// (step, consumed samples, model, metrics, data fingerprint ...), and the fence with it. An Error
// means that there is no new checkpoint; what fails after the renaming (`latest`, deleting) is
// returned as warnings ckpt.tidy. Between prepare_checkpoint() and this the caller has read the
// run's fence, and it was its own.
std::vector<Diagnostic> commit_checkpoint(const CheckpointAttempt& attempt,
                                          const std::vector<ChunkRecord>& chunks,
                                          const nlohmann::json& state, const KeepRules& keep,
                                          const std::vector<ExtraFile>& extras = {});
// In a checkpoint's state: what is still to be done of the evaluation after its step, which was
// left because somebody asked for a stop. kNotEvaluated: all of it; kNotContinued: the texts behind
// it.
inline constexpr const char* kEvaluationLeft = "evaluation_left";
inline constexpr const char* kNotEvaluated = "all";
inline constexpr const char* kNotContinued = "texts";
// One rank, when that is done: from then on the state that is read does not have it, and has
// `metrics` beside its own; `best` follows. What was committed stays as it is: a file beside it
// says so. Fenced as a commit is. Throws Error (Exit::environment) ckpt.write.
void complete_evaluation(const CheckpointAttempt& attempt, const nlohmann::json& metrics,
                         const KeepRules& keep);
// What that file says of the checkpoint in `dir`, added to the state of its manifest. One that
// cannot be read says nothing: the evaluation is done again.
void add_evaluation(const std::filesystem::path& dir, nlohmann::json& state);

// One rank, once nobody writes into the attempt's folder any more: deletes what is in it. What
// cannot be deleted is left to the next attempt.
void abandon_checkpoint(const CheckpointAttempt& attempt);
// What `keep` says of the committed checkpoints in `checkpoints_dir`, by their manifests. Throws
// filesystem_error.
std::vector<SavedStep> saved_steps(const std::filesystem::path& checkpoints_dir,
                                   const KeepRules& keep);

// When the run's fence has become `fence`, and before ranks of that fence look for a checkpoint: no
// attempt of an older one changes a checkpoint or `latest` any more, however late a frozen rank
// wakes up, and wherever it was. A commit cannot read the fence and rename in one instant. But all
// that it does to checkpoints and `latest` (put in place, replace, take away) is a rename out of
// its attempt's folder or into it, and here those folders are taken away: a later rename finds
// nothing. A folder made after this has been made by a rank that reads the new fence before it
// commits. A lock would not do: a frozen rank keeps it. Throws Error ckpt.write.
void fence_off_attempts(const std::filesystem::path& checkpoints_dir, int64_t fence);

class CheckpointReader {
 public:
  // Throws Error (Exit::data) ckpt.missing, ckpt.incomplete, ckpt.manifest, ckpt.version.
  explicit CheckpointReader(const std::filesystem::path& dir);
  const nlohmann::json& state() const { return state_; }
  // The names of the extra files, and what is in one. Throws ckpt.file, ckpt.checksum.
  std::vector<std::string> extras() const;
  std::string extra(const std::string& name) const;
  // As tokenizer_from_json() reads it: the file kTokenizerFile; of a checkpoint of version 1 what
  // stands in the state.
  nlohmann::json tokenizer() const;
  const std::vector<ChunkRecord>& chunks() const { return chunks_; }
  // Fills the tensor from whatever chunks intersect its rectangles; verifies the XXH3 of every
  // chunk it touches once (ckpt.checksum names file and tensor). ckpt.tensor when the name is
  // absent, ckpt.shape when the global shape or dtype differs (but f32 is made of 16 bits),
  // ckpt.hole when a part is not covered, ckpt.file when a file is missing or has another size.
  void read(CheckpointTensor& tensor);
  // The same of several at once, by a few threads; those with `store` one after the other.
  void read(std::vector<CheckpointTensor>& tensors);
  // All that is wrong with it, at most `most`: every byte that has not been verified yet is read,
  // by a few threads. Each names the file, and the tensor where it is one (ckpt.checksum,
  // ckpt.file).
  Diagnostics find_damage(size_t most = SIZE_MAX);
  // Checks every chunk that read() has not touched yet, and the extra files. Throws ckpt.checksum,
  // ckpt.file.
  void verify();
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

 private:
  struct Files;
  std::filesystem::path dir_;
  nlohmann::json state_;
  std::vector<ChunkRecord> chunks_;
  std::unique_ptr<Files> files_;
};

// The newest committed checkpoint under `checkpoints_dir` ("" if there is none). Uncommitted and
// damaged ones and attempts at newer ones that were passed over are named in `diagnostics` as
// warnings (ckpt.incomplete); a directory that cannot be listed and a checkpoint that cannot be
// read (no permission, no descriptors left) are errors (ckpt.unreadable).
std::filesystem::path newest_checkpoint(const std::filesystem::path& checkpoints_dir,
                                        Diagnostics& diagnostics);

enum class Damaged {
  pass_over,  // leave it where it is
  set_aside,  // rename it to `<name>.damaged`, so that a new checkpoint of that step can be written
};
// As newest_checkpoint, but every byte is verified: a damaged checkpoint is named in a warning, and
// the one before it is tried. When there are complete ones and none is intact, that is an error
// (ckpt.none_intact) and nothing is renamed. One that cannot be read is not damaged: Error
// (Exit::environment) ckpt.unreadable.
std::filesystem::path newest_intact_checkpoint(const std::filesystem::path& checkpoints_dir,
                                               Damaged damaged, Diagnostics& diagnostics);

}  // namespace mtl
