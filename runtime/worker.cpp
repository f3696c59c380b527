#include "runtime/worker.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "runtime/comm/rank_threads.h"
#include "runtime/device/make_device.h"
#include "runtime/metrics/reporter.h"
#include "runtime/rank.h"
#include "runtime/rank_meeting.h"
#include "runtime/report/report.h"
#include "runtime/run.h"
#include "runtime/run_directory.h"
#include "runtime/worker_environment.h"
#include "runtime/worker_signals.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

// The store is there before the workers are started.
constexpr std::chrono::seconds kJoinPatience{30};

void check_threads(const WorkerEnvironment& environment) {
  if (environment.rank_threads == environment.world && environment.rank == 0) return;
  throw Error(Exit::environment,
              {.code = "worker.environment",
               .what = fmt::format("MTL_RANK_THREADS={} needs WORLD_SIZE={} and RANK=0, not {} and "
                                   "{}: one process has all ranks",
                                   environment.rank_threads, environment.rank_threads,
                                   environment.world, environment.rank),
               .help = "start workers with `mtl launch`"});
}

Exit run_threads(const RankJob& job, int world_size) {
  Exit of_rank_0 = Exit::done;  // all agree: the ranks stop together
  run_rank_threads(world_size, [&](CommWorld& world) {
    const MadeDevice device =
        make_device({.local_rank = world.rank(), .world = world_size, .rank_threads = true});
    const Exit exit = train_rank(job, device, world);
    if (world.rank() == 0) of_rank_0 = exit;
  });
  return of_rank_0;
}

Exit run_process(const RankJob& job, const WorkerEnvironment& own, const RankMeeting& met) {
  const MadeDevice device = make_device({.local_rank = own.local_rank, .world = own.world});
  if (own.world == 1) return train_rank(job, device, *make_self_world());
  const std::string token = met.store ? met.token : read_token(own.token_fd);
  std::unique_ptr<Store> joined;
  std::unique_ptr<CommWorld> world;
  if (!met.store) joined = join_store(own, token, kJoinPatience);
  Store& store = met.store ? *met.store : *joined;
  const WorldOptions options = world_options(own, token);
  check_alike(
      store.exchange("device", options.rank, options.size, kind_of(device), options.timeout),
      options.rank, device);
  world = device.cuda != nullptr ? device.cuda->make_nccl_world(store, options, *device.device,
                                                                (job.run_dir / "crash").string())
                                 : make_cpu_world(store, options);
  return train_rank(job, device, *world);
}

RankWishes wishes_by_signals() {
  return {.stop = signals::stop_requested,
          .checkpoint = signals::take_checkpoint,
          .something_to_lose = [](bool anything) {
            signals::obey(anything ? signals::Obey::when_asked : signals::Obey::at_once);
          }};
}

// The process that dies first is the launcher's headline: that belongs to the rank whose failure we
// only felt. The launcher asks us to stop as soon as it has seen that.
void let_origin_end_first() {
  for (int i = 0; i < 20 && !signals::stop_requested(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// May come of a peer that was asked to stop, or failed, before us; also where ranks do not know
// each other yet.
bool may_be_collateral(const Error& error) {
  const std::string& code = error.diagnostics().front().code;
  return code.starts_with("comm.") || code.starts_with("rendezvous.");
}

// Machines that share the run, as far as who started the ranks has said: else this one has all.
int nodes_of(const WorkerEnvironment& own) {
  if (own.nodes > 0) return own.nodes;
  return own.local_world > 0 ? std::max(1, own.world / own.local_world) : 1;
}

// What mtl launch would do where ranks end before their first step.
void record_stop_of(const fs::path& run_dir) {
  signals::before_end([run_dir] {
    record_stop(run_dir);
    write_report_of(run_dir);
  });
}

}  // namespace

Exit run_worker(const WorkerStart& start) {
  const auto started = std::chrono::steady_clock::now();
  signals::receive();
  WorkerEnvironment environment = read_worker_environment();
  const auto began = started - std::chrono::seconds(environment.job_age_s);
  if (environment.rank_threads > 0) check_threads(environment);
  fs::path run_dir = start.run_dir;
  RankMeeting met;
  Fd lock;
  const auto open_here = [&]() -> MeetingWord {
    if (!start.open) {
      lock = lock_run(run_dir);  // mtl launch has it for its own workers
      record_stop_of(run_dir);
      return {.run_dir = run_dir.string()};
    }
    const std::optional<OpenedRun> opened = start.open(environment.world, nodes_of(environment));
    if (!opened) return {.run_dir = "", .complete = true};
    record_stop_of(opened->dir);
    return {.run_dir = opened->dir.string(), .fence = opened->fence};
  };
  if (environment.is_foreign()) {
    met = meet_ranks({.folder = start.open ? start.folder : run_dir,
                      .key = environment.start,
                      .rank = environment.rank,
                      .world = environment.world,
                      .one_host = environment.nodes == 1,
                      .generation = environment.generation,
                      .address = environment.foreign_address,
                      .open = open_here});
    if (environment.node_address.empty()) environment.node_address = met.own_address;
  } else if (start.open) {
    met.word = open_here();
  }
  if (met.word.complete) return Exit::done;
  if (!met.word.run_dir.empty()) run_dir = met.word.run_dir;
  if (met.word.fence > 0) environment.fence = static_cast<int>(met.word.fence);
  CheckedRun run = check_run({.sources = {.train_yaml = (run_dir / "resolved.yaml").string()},
                              .world = environment.world,
                              .run_dir = run_dir});
  // What is, whatever was asked for: other launchers may start a process per rank all the same.
  run.resolved.spec.launch.spawn = environment.rank_threads > 0 ? "threads" : "processes";
  const RankWishes wishes = wishes_by_signals();
  const RankJob job{.run_dir = run_dir,
                    .run = run,
                    .progress_fd = environment.progress_fd,
                    .fence = environment.fence,
                    .began = began,
                    .wishes = wishes};
  if (environment.rank_threads > 0) return run_threads(job, environment.world);
  // What mtl launch would do in the end.
  const auto write_report_here = [&] {
    if (environment.rank == 0 && environment.progress_fd < 0) write_report_of(run_dir);
  };
  try {
    const Exit exit = run_process(job, environment, met);
    write_report_here();
    return exit;
  } catch (const Error& error) {
    if (may_be_collateral(error)) let_origin_end_first();
    write_report_here();
    throw;
  }
}

}  // namespace mtl
