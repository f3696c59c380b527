// Saving while training goes on. Between two steps each rank copies its part of the state; a thread
// of its own writes the files. When all ranks have written theirs, which they learn at the end of a
// step beside the requests that are exchanged anyway, they give what they wrote to rank 0, whose
// thread commits. So the training's communicator carries one flag per step and one gather per
// checkpoint, and nothing waits for a disk but the start of the next save and the end of the run.
//
// A rank that dies ends the job before the commit; one of an older fence is found out by rank 0
// before it commits, as when all is done at once (checkpoint.h). Nothing of this can commit a part
// twice or none: what is committed is what every rank has reported of this attempt.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/trainer.h"

namespace mtl {

struct SaveRequest {
  CheckpointAttempt attempt;
  nlohmann::json state = {};  // this and what follows matter on rank 0
  std::vector<ExtraFile> extras = {};
  KeepRules keep = {};
  // What `keep` keeps no longer goes before anything is written, beside this step (make_room()).
  std::optional<int64_t> newest = {};
};

// How a save ended.
struct SaveOutcome {
  CheckpointAttempt attempt;
  std::optional<Diagnostic> failure;  // there is no new checkpoint; else there is
  int failed_rank = 0;                // whose failure it is
  std::vector<Diagnostic> warnings;   // ckpt.tidy
  double copy_s = 0;                  // that training waited for the copy
  double total_s = 0;                 // until it was committed, or had failed
  double busy_s = 0;                  // of total_s: copy, slowest rank's write, commit; no waiting
  int64_t bytes = 0;                  // of this rank
};

class CheckpointSaver {
 public:
  // `still_ours` throws if the run has gone on without us. Rank 0 calls it before it changes
  // anything in the run's directory and before the commit, and any rank whose part fails: that may
  // be why. `in_background`: else begin() has done everything when it returns, and there is no
  // copy.
  CheckpointSaver(Trainer& trainer, const Plan& plan, Communicator& world, bool in_background,
                  std::function<void()> still_ours);
  // Waits for the thread.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // All ranks together, between steps; finish() has been called since the save before. A disk that
  // does not take it is an outcome; other errors are thrown.
  void begin(SaveRequest request);
  // Whether this rank's files are still being written: goes into the next step's requests.
  bool writing() const;
  // All ranks, after a step, with what they said together. Rank 0 throws what its thread has found
  // that is no matter of the disk.
  void step_done(bool anybody_writing);
  // All ranks together: waits until nothing is under way. On every rank: whether the last save has
  // become a checkpoint, or there was none; if not, failed_here() says on whom it is to tell.
  bool finish();
  bool failed_here() const { return failed_here_; }
  // Of a save that has ended since the last call, on rank 0; elsewhere only of failures.
  std::optional<SaveOutcome> take_outcome();

 private:
  enum class Phase { idle, writing, committing };
  void snapshot();
  void save_frozen();
  void require_all_parameters(const std::vector<ChunkRecord>& chunks) const;
  void write();
  void collect();
  void commit(std::vector<ChunkRecord> chunks);
  void end_commit();
  void failed(Diagnostic why, int rank);
  std::optional<Diagnostic> try_disk(const std::function<void()>& work);

  Trainer& trainer_;
  const Plan& plan_;
  Communicator& world_;
  const bool in_background_;
  const std::function<void()> still_ours_;
  struct Work;
  std::unique_ptr<Work> work_;
  Phase phase_ = Phase::idle;
  // What this rank writes of what is not trained, and the last save with it that has become a
  // checkpoint: later ones have the same file.
  std::vector<ChunkRecord> frozen_;
  std::filesystem::path committed_;
  bool open_ = false;  // begun and not finished; the same on all ranks
  bool failed_here_ = false;
  bool last_is_good_ = true;
  std::optional<SaveOutcome> outcome_;
  SaveRequest request_;
};

}  // namespace mtl
