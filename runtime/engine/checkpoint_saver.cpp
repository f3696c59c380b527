#include "runtime/engine/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include <sys/mman.h>
#include <sys/resource.h>

#include <fmt/format.h>

#include "runtime/engine/checkpointing.h"
#include "runtime/plan/memory/saved_parts.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Every rank's text, in rank order.
std::vector<std::string> gather(const std::string& mine, Communicator& world) {
  auto length = static_cast<int32_t>(mine.size());
  world.all_reduce(Tensor(&length, DType::i32, {1}), Reduce::max);
  const auto slot = static_cast<size_t>(length);
  std::string all(slot * static_cast<size_t>(world.size()), ' ');  // JSON may end in spaces
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<ptrdiff_t>(slot) * world.rank());
  const Tensor whole(all.data(), DType::u8, {static_cast<int64_t>(all.size())});
  world.all_gather(whole.slice(world.rank() * int64_t{length}, length), whole);
  std::vector<std::string> parts;
  for (int rank = 0; rank < world.size(); ++rank) {
    parts.push_back(all.substr(slot * static_cast<size_t>(rank), slot));
  }
  return parts;
}

bool any_rank(bool here, Communicator& world) {
  int32_t flag = here ? 1 : 0;
  world.all_reduce(Tensor(&flag, DType::i32, {1}), Reduce::max);
  return flag != 0;
}

// What a disk, or somebody else who works in the same folder, does to a save. The rest is a fault
// of the program, or the end of this rank.
bool is_matter_of_the_disk(const Error& error) {
  const std::string& code = error.diagnostics().front().code;
  return code == "ckpt.write" || code == "ckpt.file" || code == "ckpt.format";
}

// Memory of the copy: kept from one save to the next, and not touched before it is needed.
class SnapshotMemory {
 public:
  ~SnapshotMemory() { release(); }
  SnapshotMemory() = default;
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  char* of(size_t bytes) {
    if (bytes <= bytes_) return base_;
    release();
    void* const base =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    // A copy of gigabytes spends most of its time on page faults otherwise.
    ::madvise(base, bytes, MADV_HUGEPAGE);
    base_ = static_cast<char*>(base);
    bytes_ = bytes;
    return base_;
  }

 private:
  void release() {
    if (base_ != nullptr) ::munmap(base_, bytes_);
    base_ = nullptr;
    bytes_ = 0;
  }
  char* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

struct CheckpointSaver::Work {
  SnapshotMemory memory;
  std::vector<CheckpointTensor> tensors;
  std::thread thread;
  std::atomic<bool> done{false};  // with what the thread was started for
  // What it leaves; read when it is done.
  std::vector<ChunkRecord> chunks;
  std::optional<Diagnostic> failure, frozen_failure;
  std::exception_ptr thrown;
  std::vector<Diagnostic> warnings;
  Clock::time_point begin;
  double copy_s = 0;
  double thread_s = 0;  // of what the thread was started for last
  double write_s = 0;   // of the slowest rank
  int64_t bytes = 0;

  void start(bool in_background, std::function<void()> what) {
    done = false;
    failure.reset();
    thrown = nullptr;
    auto run = [this, what = std::move(what), start = Clock::now()] {
      try {
        what();
      } catch (...) {
        thrown = std::current_exception();
      }
      thread_s = seconds_since(start);
      done = true;
    };
    if (!in_background) return run();
    try {
      thread = std::thread([run] {
        // Where cores are scarce, training comes first.
        ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
        run();
      });
    } catch (const std::system_error&) {  // no thread is left: training waits
      run();
    }
  }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

CheckpointSaver::CheckpointSaver(Trainer& trainer, const Plan& plan, Communicator& world,
                                 bool in_background, std::function<void()> still_ours)
    : trainer_(trainer),
      plan_(plan),
      world_(world),
      in_background_(in_background),
      still_ours_(std::move(still_ours)),
      work_(std::make_unique<Work>()) {}

CheckpointSaver::~CheckpointSaver() {
  work_->join();
}

// An error of the disk comes back; but if the run has gone on without us, that is why.
std::optional<Diagnostic> CheckpointSaver::try_disk(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (still_ours_ && error.diagnostics().front().code.starts_with("ckpt.")) still_ours_();
    if (!is_matter_of_the_disk(error)) throw;
    return error.diagnostics().front();
  }
  return std::nullopt;
}

void CheckpointSaver::failed(Diagnostic why, int rank) {
  phase_ = Phase::idle;
  failed_here_ = rank == world_.rank();
  if (world_.size() > 1) why.notes.push_back(fmt::format("rank {}", rank));
  outcome_ = SaveOutcome{.attempt = request_.attempt,
                         .failure = std::move(why),
                         .failed_rank = rank,
                         .warnings = {},
                         .copy_s = work_->copy_s,
                         .total_s = seconds_since(work_->begin),
                         .busy_s = 0,
                         .bytes = work_->bytes};
  // All ranks have stopped writing. What is left would keep the next attempt from its space.
  if (world_.rank() == 0) abandon_checkpoint(request_.attempt);
}

void CheckpointSaver::begin(SaveRequest request) {
  request_ = std::move(request);
  open_ = true;
  failed_here_ = false;
  work_->begin = Clock::now();
  // Rank 0 makes the folder, before anybody writes.
  std::optional<Diagnostic> failure;
  if (world_.rank() == 0) {
    if (still_ours_) still_ours_();
    failure = try_disk([&] {
      prepare_checkpoint(request_.attempt);
      if (request_.newest) make_room(request_.attempt, *request_.newest, request_.keep);
    });
  }
  if (any_rank(failure.has_value(), world_)) {
    return failed(failure.value_or(Diagnostic{.code = "ckpt.write", .what = ""}), 0);
  }
  if (world_.rank() == 0) request_.state["engine"] = trainer_.progress();
  {
    const StepClock::Scope saving(&trainer_.clock(), mtl::Phase::save);
    // Not copied: where it has to be written, training waits for it.
    work_->frozen_failure = try_disk([&] { save_frozen(); });
    snapshot();
    phase_ = Phase::writing;
    work_->start(in_background_, [this] { write(); });
  }
  if (!in_background_) finish();
}

void CheckpointSaver::snapshot() {
  std::vector<CheckpointTensor>& mine = work_->tensors;
  mine = saved_tensors(trainer_, plan_);
  int64_t bytes = 0;
  std::vector<int64_t> at;
  for (const CheckpointTensor& tensor : mine) {
    at.push_back(bytes);
    const int64_t length = tensor.count * bytes_of(tensor.dtype);
    bytes += (length + kSnapshotAlign - 1) / kSnapshotAlign * kSnapshotAlign;
  }
  work_->bytes = bytes;
  if (in_background_) {
    char* const base = work_->memory.of(static_cast<size_t>(bytes));
    for (size_t i = 0; i < mine.size(); ++i) {
      CheckpointTensor& tensor = mine[i];
      char* const to = base + at[i];
      if (tensor.count == 0) {
        // A small tensor's last shards are empty, and may have no address.
      } else if (tensor.fetch) {
        tensor.fetch(0, tensor.count, to);
      } else {
        std::memcpy(to, tensor.data, static_cast<size_t>(tensor.count * bytes_of(tensor.dtype)));
      }
      tensor.data = to;
      tensor.fetch = nullptr;
      tensor.store = nullptr;
    }
  }
  work_->copy_s = seconds_since(work_->begin);
}

void CheckpointSaver::save_frozen() {
  if (!plan_.model.lora) return;
  if (!committed_.empty() && link_shards(request_.attempt, committed_, frozen_)) return;
  frozen_ = write_shards(request_.attempt, world_.rank(), frozen_tensors(trainer_, plan_));
}

void CheckpointSaver::write() {
  work_->chunks = frozen_;
  work_->failure = work_->frozen_failure;
  if (!work_->failure) {
    work_->failure = try_disk([&] {
      for (ChunkRecord& chunk : write_shards(request_.attempt, world_.rank(), work_->tensors)) {
        work_->chunks.push_back(std::move(chunk));
      }
    });
  }
  work_->tensors.clear();
}

bool CheckpointSaver::writing() const {
  return phase_ == Phase::writing && !work_->done;
}

void CheckpointSaver::step_done(bool anybody_writing) {
  if (phase_ == Phase::writing && !anybody_writing) return collect();
  if (phase_ == Phase::committing && world_.rank() == 0 && work_->done) end_commit();
}

void CheckpointSaver::collect() {
  {
    const StepClock::Scope saving(&trainer_.clock(), mtl::Phase::save);
    work_->join();
  }
  if (work_->thrown) std::rethrow_exception(work_->thrown);
  nlohmann::json mine;
  if (work_->failure) {
    const Diagnostic& why = *work_->failure;
    mine = {{"failure", {why.code, why.what, why.help}}, {"notes", why.notes}};
  } else {
    mine = {{"chunks", to_json(work_->chunks)}, {"seconds", work_->thread_s}};
  }
  const std::vector<std::string> parts =
      gather(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), world_);
  std::vector<ChunkRecord> chunks;
  work_->write_s = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    // Each rank looks for failures; only the first has use for the rest.
    if (world_.rank() != 0 && !parts[rank].starts_with("{\"failure\"")) continue;
    const nlohmann::json part = nlohmann::json::parse(parts[rank]);
    if (const auto found = part.find("failure"); found != part.end()) {
      return failed({.code = found->at(0),
                     .what = found->at(1),
                     .notes = part.at("notes").get<std::vector<std::string>>(),
                     .help = found->at(2)},
                    static_cast<int>(rank));
    }
    work_->write_s = std::max(work_->write_s, part.at("seconds").get<double>());
    for (ChunkRecord& chunk : chunks_from_json(part.at("chunks"))) {
      chunks.push_back(std::move(chunk));
    }
  }
  phase_ = Phase::committing;
  if (world_.rank() != 0) return;
  require_all_parameters(chunks);
  work_->start(in_background_,
               [this, chunks = std::move(chunks)]() mutable { commit(std::move(chunks)); });
}

void CheckpointSaver::require_all_parameters(const std::vector<ChunkRecord>& chunks) const {
  std::set<std::string_view> saved;
  for (const ChunkRecord& chunk : chunks) saved.insert(chunk.tensor);
  for (const ParamRow& row : plan_.table) {
    if (saved.contains(row.name)) continue;
    throw std::logic_error("no rank has saved '" + row.name + "'");
  }
}

void CheckpointSaver::commit(std::vector<ChunkRecord> chunks) {
  // Again, now that the folder is there: from here on it goes when the fence does.
  if (still_ours_) still_ours_();
  work_->failure = try_disk([&] {
    work_->warnings =
        commit_checkpoint(request_.attempt, chunks, request_.state, request_.keep, request_.extras);
  });
}

void CheckpointSaver::end_commit() {
  work_->join();
  if (work_->thrown) std::rethrow_exception(work_->thrown);
  if (work_->failure) return failed(*work_->failure, 0);
  phase_ = Phase::idle;
  outcome_ = SaveOutcome{.attempt = request_.attempt,
                         .failure = {},
                         .failed_rank = 0,
                         .warnings = std::move(work_->warnings),
                         .copy_s = work_->copy_s,
                         .total_s = seconds_since(work_->begin),
                         .busy_s = work_->copy_s + work_->write_s + work_->thread_s,
                         .bytes = work_->bytes};
}

bool CheckpointSaver::finish() {
  if (!open_) return last_is_good_;
  if (phase_ == Phase::writing) collect();
  if (phase_ == Phase::committing && world_.rank() == 0) end_commit();
  phase_ = Phase::idle;
  // Rank 0 alone knows how its commit went; who failed before knows it too.
  last_is_good_ = !any_rank(failed_here_, world_);
  if (last_is_good_) committed_ = request_.attempt.dir;
  open_ = false;
  return last_is_good_;
}

std::optional<SaveOutcome> CheckpointSaver::take_outcome() {
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace mtl
