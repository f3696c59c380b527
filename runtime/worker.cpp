#include "runtime/worker.h"

#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/version.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/comm/clocked.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/data/prefetch.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/calibrate.h"
#include "runtime/engine/checkpoint_saver.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/engine/gpu_watch.h"
#include "runtime/engine/save_times.h"
#include "runtime/engine/spikes.h"
#include "runtime/engine/straggler_watch.h"
#include "runtime/engine/time_limit.h"
#include "runtime/engine/trainer.h"
#include "runtime/engine/yardstick.h"
#include "runtime/interchange/init_from.h"
#include "runtime/metrics/reporter.h"
#include "runtime/model/blocks.h"
#include "runtime/rank_meeting.h"
#include "runtime/report/report.h"
#include "runtime/run.h"
#include "runtime/run_directory.h"
#include "runtime/start_block.h"
#include "runtime/worker_environment.h"
#include "runtime/worker_signals.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

// The store is there before the workers are started.
constexpr std::chrono::seconds kJoinPatience{30};

// What the failure of another rank does to this one.
bool is_collateral(const Error& error) {
  return error.diagnostics().front().code == "comm.peer_lost";
}

// The training loop of one rank, in the thread that makes it: OpenMP keeps its threads per thread.
class Rank {
 public:
  using Clock = std::chrono::steady_clock;

  // `began`: the job, of which other ranks may have run before.
  Rank(const fs::path& run_dir, const CheckedRun& run, MadeDevice& device, CommWorld& world,
       int progress_fd, int fence, Clock::time_point began)
      : run_dir_(run_dir),
        run_(run),
        spec_(run_.resolved.spec),
        plan_(run_.plan),
        world_(world),
        progress_fd_(progress_fd),
        fence_(fence),
        made_(device),
        device_(device.device.get()),
        save_times_(std::chrono::seconds(spec_.checkpoint.every_time), Clock::now()),
        time_limit_(std::chrono::seconds(spec_.health.max_time), began),
        spikes_(spec_.health.spike_factor) {
    std::vector<int> everybody(static_cast<size_t>(world_.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    all_ranks_ = world_.group(everybody);
    trainer_ = std::make_unique<Trainer>(plan_, spec_, *device_, world_);
    all_ranks_ = clocked(std::move(all_ranks_), &trainer_->clock());
    saver_ =
        std::make_unique<CheckpointSaver>(*trainer_, plan_, *all_ranks_, spec_.checkpoint.async,
                                          [this] { check_fence(run_dir_, fence_); });
  }

  Exit run() {
    try {
      start();
      return train();
    } catch (const Error& error) {
      failed(error);
      throw;
    } catch (...) {
      world_.leave();
      throw;
    }
  }

 private:
  Exit train() {
    Prefetch samples(*run_.corpus.train, plan_.seq, static_cast<int>(spec_.data.workers),
                     spec_.data.reset_positions_at_eod || spec_.data.reset_attention_at_eod);
    samples.announce(trainer_->sample_ranges(next_step_));
    const int64_t steps = plan_.steps;
    saved_at_ = next_step_;
    while (next_step_ < steps) {
      const auto begin = Clock::now();
      const bool checkpoint_now = signals::take_checkpoint() || save_is_due();
      samples.announce(trainer_->sample_ranges(next_step_ + 1));
      time_is_up_ = time_is_up_ || is_last_in_time(checkpoint_now, begin);
      const StepResult result =
          guarded_step(samples, {.stop = signals::stop_requested() || time_is_up_,
                                 .checkpoint = checkpoint_now,
                                 .saving = saver_->writing()});
      ++next_step_;
      loss_ = result.loss;
      saver_->step_done(result.requests.saving);
      report_saves();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      report(result, seconds);
      report_stragglers(seconds);
      const bool last = next_step_ == steps;
      const bool stop = result.requests.stop && !last;
      if (is_due(spec_.train.eval.every) || last) evaluate();
      const bool due = is_due(spec_.checkpoint.every) || result.requests.checkpoint;
      // A stop is not to wait for an evaluation that nobody has asked for.
      if (due && compares_valid_loss() && evaluated_at_ != next_step_) evaluate();
      if (last || stop) {
        save_and_wait();
      } else if (due) {
        save();
      }
      if (stop) return stopped();
    }
    finish();
    return Exit::done;
  }

  // Peers learn of it before the trainer is taken apart, which may wait for them.
  void failed(const Error& error) {
    world_.leave();
    // What another rank's failure does to this one is not the reason of the end.
    std::vector<std::string> lines;
    if (!is_collateral(error)) lines.push_back(error.diagnostics().front().what);
    if (reporter_) reporter_->finish("failed", lines);
  }

  bool is_due(int64_t every) const { return is_due(every, next_step_); }
  static bool is_due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

  bool compares_valid_loss() const {
    const TrainSpec::Checkpoint::KeepBest& best = spec_.checkpoint.keep_best;
    return best.k > 0 && best.metric == "valid_loss";
  }

  // Of the checkpoint that all ranks go on from; 0 = there is none. Rank 0 looks: a client of a
  // network file system may show an older list of the folder to another rank.
  int64_t newest_step() {
    double step = 0;
    if (world_.rank() == 0) {
      Diagnostics warnings;
      const fs::path newest = newest_checkpoint(run_dir_ / "checkpoints", warnings);
      warnings.throw_if_errors(Exit::data);
      if (!newest.empty()) step = CheckpointReader(newest).state().at("step").get<double>();
    }
    all_ranks_->broadcast(Tensor(&step, DType::f64, {1}), 0);
    return static_cast<int64_t>(step);
  }

  void start() {
    next_step_ = newest_step();
    fs::path checkpoint;
    if (next_step_ == 0) {
      trainer_->initialise();
      if (!spec_.init.from.empty()) load_initial_weights(spec_.init.from, *trainer_);
    } else {
      checkpoint = checkpoint_path(run_dir_ / "checkpoints", next_step_);
      load_checkpoint(checkpoint, *trainer_);
    }
    // All ranks at once: they share the machine, so the sum is what the machine gives to this job.
    all_ranks_->barrier();
    yardstick_ =
        agree_on_yardstick(*all_ranks_, measured_matmul_rate(*device_, plan_.compute, 0.02),
                           catalogue_peak(made_, plan_.compute));
    gpu_watch_ = watch_gpu(made_);
    const std::string attention = choose_attention();
    if (spec_.health.straggler_factor > 0 && world_.size() > 1) {
      stragglers_ = std::make_unique<StragglerWatch>(
          spec_.health.straggler_factor, plan_.grid, *all_ranks_, trainer_->clock(),
          made_.cuda != nullptr ? fmt::format("GPU {}", made_.index) : "CPU");
    }
    if (world_.rank() != 0) return;
    reporter_.emplace(ReporterOptions{.run_dir = run_dir_,
                                      .progress_fd = progress_fd_,
                                      .resume_step = next_step_,
                                      .log_every = spec_.log.every,
                                      .generates = !run_.prompts.texts.empty(),
                                      .tensorboard = spec_.log.tensorboard});
    reporter_->start(start_block(run_, {.run_dir = run_dir_,
                                        .device = device_line(),
                                        .yardstick = yardstick_,
                                        .attention = attention,
                                        .checkpoint = checkpoint,
                                        .resume_step = next_step_}));
  }

  // On every rank before the first step, which would do it else. With documents that do not see
  // each other there is no choice.
  std::string choose_attention() {
    if (made_.cuda == nullptr || made_.cuda->choose_attention == nullptr) return {};
    if (spec_.data.reset_attention_at_eod) return {};
    const GridSizes& sizes = plan_.grid.sizes();
    AttentionShape shape = attention_of(plan_.model, sizes[Axis::tp] * sizes[Axis::cp]);
    shape.batch = plan_.micro_batch;
    shape.seq = plan_.seq;
    return made_.cuda->choose_attention(*device_, shape, plan_.compute);
  }

  std::string device_line() const {
    const std::string text = made_.description();
    return device_->replays() ? text + ", passes replayed as CUDA graphs" : text;
  }

  void report(const StepResult& result, double seconds) {
    // The first step builds caches; it would spoil the estimate for a long time. By the sequence,
    // since not all steps are equally long.
    const int64_t sequences = plan_.batch.at(next_step_ - 1).global_batch;
    const double sequence_s = seconds / static_cast<double>(sequences);
    mean_sequence_s_ = steps_seen_ < 2 ? sequence_s : 0.95 * mean_sequence_s_ + 0.05 * sequence_s;
    ++steps_seen_;
    const std::vector<GpuReading> gpus = read_gpus();
    if (!reporter_) return;
    StepReport report;
    report.step = next_step_;
    report.steps = plan_.steps;
    report.loss = result.loss;
    report.lr = result.lr;
    report.grad_norm = result.grad_norm;
    report.step_time_s = seconds;
    const auto tokens = static_cast<double>(plan_.tokens_of_step(next_step_ - 1));
    report.tokens_per_s = tokens / seconds;
    report.mfu = plan_.cost.flops_per_token * tokens / seconds / yardstick_.flops;
    report.mfu_of = yardstick_.flops;
    report.mfu_of_peak = yardstick_.is_peak;
    report.memory_bytes = plan_.total_bytes();
    report.eta_s = mean_sequence_s_ * static_cast<double>(plan_.batch.first_sample(plan_.steps) -
                                                          plan_.batch.first_sample(next_step_));
    report.step_skipped = result.skipped;
    report.skipped = skipped_ = result.skipped_so_far;
    if (plan_.model.experts > 0) {
      const auto layers = static_cast<double>(plan_.model.layers);
      report.moe_aux_loss = result.moe_aux_loss / layers;
      report.moe_z_loss = result.moe_z_loss / layers;
      report.moe_turns = result.moe_turns;
    }
    if (plan_.compute == DType::f16) report.loss_scale = result.loss_scale;
    if (!gpus.empty()) report.gpus = summary_of(gpus);
    reporter_->step(report);
    for (const Diagnostic& news : slow_gpus_.news(gpus)) {
      reporter_->warning("gpu_slowed", next_step_, news);
    }
    if (result.skipped) return;
    if (const auto spike = spikes_.news(next_step_, result.loss, result.grad_norm)) {
      reporter_->warning("spike", next_step_, *spike);
    }
  }

  void report_stragglers(double step_s) {
    if (!stragglers_) return;
    const int64_t sequences = plan_.batch.at(next_step_ - 1).global_batch;
    for (const auto& news : stragglers_->step_done(next_step_, sequences, step_s)) {
      reporter_->straggler(next_step_, news.report, news.words, news.shown);
    }
  }

  // Of all ranks, for the steps that every run logs; empty for others, and on CPUs.
  std::vector<GpuReading> read_gpus() {
    const bool logged = is_due(spec_.log.every) || next_step_ == plan_.steps || steps_seen_ == 1;
    if (gpu_watch_ == nullptr || !logged) return {};
    return gather_readings(*all_ranks_, gpu_watch_->latest());
  }

  void evaluate() {
    const auto begin = Clock::now();
    evaluated_at_ = next_step_;
    if (run_.corpus.valid->size() > 0) measure_valid_loss();
    if (!run_.prompts.texts.empty()) generate();
    time_limit_.evaluated(std::chrono::duration<double>(Clock::now() - begin).count());
  }

  void measure_valid_loss() {
    // So that a batch that grows does not change what is compared.
    const int64_t batch = plan_.batch.largest();
    const int64_t wanted = spec_.train.eval.iters * batch;
    valid_sets_.clear();
    LossSum all;
    for (const RunData::ValidSet& set : run_.corpus.valid_sets) {
      const LossSum one = trainer_->losses(*set.samples, wanted);
      valid_sets_.push_back({set.name, one.mean()});
      all = {.loss = all.loss + one.loss, .tokens = all.tokens + one.tokens};
    }
    if (valid_sets_.empty()) all = trainer_->losses(*run_.corpus.valid, wanted);
    valid_loss_ = all.mean();
    if (reporter_) reporter_->eval(next_step_, *valid_loss_, valid_sets_);
  }

  void generate() {
    const auto begin = Clock::now();
    const std::vector<Continuation> all =
        continue_prompts(run_.prompts, *run_.corpus.tokenizer, *trainer_);
    if (!reporter_) return;
    GeneratedReport report{.step = next_step_, .texts = {}};
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    for (size_t i = 0; i < all.size(); ++i) {
      report.texts.push_back({.prompt = run_.prompts.texts[i],
                              .text = all[i].text,
                              .tokens = all[i].tokens,
                              .ended = all[i].ended});
    }
    reporter_->generated(report);
  }

  // Whether the step that begins is the last one after which all ends in time. For rank 0 to ask
  // for; the others follow. `saves`: a checkpoint is wanted after it, whatever its number.
  bool is_last_in_time(bool saves, Clock::time_point now) const {
    if (world_.rank() != 0) return false;
    TimeLimit::Ahead ahead;
    for (const int64_t step : {next_step_, next_step_ + 1}) {
      if (step == plan_.steps) return false;  // it ends anyway
      const auto sequences = static_cast<double>(plan_.batch.at(step).global_batch);
      ahead.steps_s += mean_sequence_s_ * sequences;
      const bool saved = is_due(spec_.checkpoint.every, step + 1) || (saves && step == next_step_);
      const bool evaluated = is_due(spec_.train.eval.every, step + 1) || step + 1 == plan_.steps ||
                             (saved && compares_valid_loss());
      ahead.evaluations += evaluated ? 1 : 0;
      // The save of the end is the one of the second step.
      if (step == next_step_ && (saved || saver_->writing())) ++ahead.saves;
    }
    return time_limit_.is_over(ahead, now);
  }

  // Likewise.
  bool save_is_due() const {
    return world_.rank() == 0 && save_times_.due(next_step_, Clock::now());
  }

  // A step that diverges changes nothing. So what is there before it can be saved, and is worth it.
  StepResult guarded_step(const Samples& samples, const Requests& requests) {
    try {
      return trainer_->step(next_step_, samples, requests);
    } catch (const Error& error) {
      // All ranks throw this one together; of others nobody knows who is still there.
      if (error.diagnostics().front().code != "loss.nan") throw;
      std::vector<Diagnostic> diagnostics = error.diagnostics();
      diagnostics.front().notes.push_back(save_before_divergence());
      throw Error(error.exit(), std::move(diagnostics));
    }
  }

  std::string save_before_divergence() {
    const bool written = saver_->finish();
    report_saves();
    if (written && saved_at_ == next_step_ && next_step_ > 0) {
      return fmt::format("the state before it is the checkpoint of step {}", next_step_);
    }
    if (next_step_ == 0) return "nothing is saved: it is the first step";
    if (!state_is_finite(*trainer_, *all_ranks_)) {
      return "the state before it is not saved: it has numbers that are not finite, from a step "
             "before";
    }
    begin_save();
    const bool saved = saver_->finish();
    report_saves();
    return saved ? fmt::format("the state before it is saved as the checkpoint of step {}",
                               next_step_)
                 : "the state before it could not be saved";
  }

  nlohmann::json state_of_run() {
    nlohmann::json metrics = {{"loss", loss_}};
    if (valid_loss_ && evaluated_at_ == next_step_) metrics["valid_loss"] = *valid_loss_;
    const GridSizes& sizes = plan_.grid.sizes();
    nlohmann::json layout = {{"world", plan_.grid.world()}, {"zero", spec_.parallel.zero}};
    for (int i = 0; i < kAxes; ++i) {
      layout[axis_name(static_cast<Axis>(i))] = sizes[static_cast<Axis>(i)];
    }
    return {{"step", next_step_},
            {"samples", trainer_->first_sample(next_step_)},
            {"tokens", trainer_->first_sample(next_step_) * plan_.seq},
            {"optimizer", spec_.optimizer.type},
            {"seed", spec_.train.seed},
            {"mtl", version()},
            {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
            {"layout", std::move(layout)},
            {"metrics", std::move(metrics)},
            {"model", to_json(plan_.model)},
            {"data", run_.corpus.identity()}};
  }

  void begin_save() {
    SaveRequest request;
    request.attempt = {checkpoint_path(run_dir_ / "checkpoints", next_step_), fence_};
    if (world_.rank() == 0) {
      request.state = state_of_run();
      request.extras = {{kTokenizerFile, run_.corpus.tokenizer->to_json().dump() + "\n"}};
    }
    request.keep = keep_rules(spec_.checkpoint);
    saved_at_ = next_step_;
    save_times_.began(Clock::now());
    saver_->begin(std::move(request));
  }

  // At most one at a time.
  void save() {
    saver_->finish();
    report_saves();
    begin_save();
    report_saves();
  }

  // What the run is to end with. A disk gets a second chance, then that is an error.
  void save_and_wait() {
    save();
    if (!saver_->finish()) {
      report_saves();
      begin_save();
    }
    const bool saved = saver_->finish();
    std::optional<SaveOutcome> outcome = report_saves();
    if (saved) return;
    if (saver_->failed_here() && outcome && outcome->failure) {
      throw Error(Exit::environment, *outcome->failure);
    }
    all_ranks_->barrier();  // until the rank that failed has left
  }

  // Of a save that has ended meanwhile. It is said once that a disk does not take checkpoints, and
  // once that it does again.
  std::optional<SaveOutcome> report_saves() {
    std::optional<SaveOutcome> outcome = saver_->take_outcome();
    if (!outcome || !reporter_) return outcome;
    const std::optional<StepName> name = parse_step_name(outcome->attempt.dir.filename().string());
    const int64_t step = name ? name->step : next_step_;
    if (outcome->failure) {
      Diagnostic warning = *outcome->failure;
      warning.what = fmt::format("checkpoint of step {} not written: {}", step, warning.what);
      warning.help =
          "free space or repair the file system; training goes on, and it is tried again";
      reporter_->warning("checkpoint_failed", step, warning, save_times_.failures() == 0);
      save_times_.failed(next_step_);
      return outcome;
    }
    save_times_.succeeded();
    time_limit_.saved(outcome->busy_s);
    for (const Diagnostic& warning : outcome->warnings) {
      reporter_->warning("checkpoint_untidy", step, warning);
    }
    reporter_->checkpoint(step, outcome->attempt.dir);
    return outcome;
  }

  Exit stopped() {
    if (reporter_) {
      reporter_->finish(
          "stopped",
          {fmt::format("stopped {} after step {}; checkpoint {} is complete",
                       time_is_up_ ? "by health.max_time" : "on request", next_step_, saved_at_)});
    }
    return Exit::requeue;
  }

  void finish() {
    if (!reporter_) return;
    std::vector<std::string> lines = {fmt::format("done     {} steps", next_step_)};
    if (skipped_ > 0) lines.push_back(fmt::format("skipped  {} of them: no update", skipped_));
    if (valid_loss_) {
      std::string words = loss_words(*valid_loss_);
      for (const SetLoss& set : valid_sets_) words += "  " + set.name + " " + loss_words(set.loss);
      lines.push_back("valid    loss " + words);
    }
    lines.push_back("latest   " + (run_dir_ / "latest").string());
    reporter_->finish("done", lines);
  }

  // The sign of a NaN says nothing.
  static std::string loss_words(double loss) {
    return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss);
  }

  const fs::path& run_dir_;
  const CheckedRun& run_;
  const TrainSpec& spec_;
  const Plan& plan_;
  CommWorld& world_;
  const int progress_fd_;
  const int fence_;
  const MadeDevice& made_;
  Device* const device_;
  bool time_is_up_ = false;  // known to rank 0
  std::unique_ptr<Communicator> all_ranks_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CheckpointSaver> saver_;
  SaveTimes save_times_;
  TimeLimit time_limit_;
  std::optional<Reporter> reporter_;
  std::optional<double> valid_loss_;
  std::vector<SetLoss> valid_sets_;
  std::unique_ptr<GpuWatch> gpu_watch_;  // null on a CPU
  SlowGpus slow_gpus_;
  StepSpikes spikes_;
  std::unique_ptr<StragglerWatch> stragglers_;  // null where nobody is to be compared
  Yardstick yardstick_;
  double mean_sequence_s_ = 0;
  int64_t next_step_ = 0;
  int64_t saved_at_ = 0;  // of the newest save begun
  int64_t evaluated_at_ = -1;
  double loss_ = 0;
  int64_t steps_seen_ = 0;
  int64_t skipped_ = 0;
};

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

Exit run_threads(const fs::path& run_dir, const CheckedRun& run, const WorkerEnvironment& own,
                 Rank::Clock::time_point began) {
  Exit of_rank_0 = Exit::done;  // all agree: the ranks stop together
  run_rank_threads(own.world, [&](CommWorld& world) {
    MadeDevice device =
        make_device({.local_rank = world.rank(), .world = own.world, .rank_threads = true});
    const Exit exit = Rank(run_dir, run, device, world, own.progress_fd, own.fence, began).run();
    if (world.rank() == 0) of_rank_0 = exit;
  });
  return of_rank_0;
}

Exit run_process(const fs::path& run_dir, const CheckedRun& run, const WorkerEnvironment& own,
                 const RankMeeting& met, Rank::Clock::time_point began) {
  MadeDevice device = make_device({.local_rank = own.local_rank, .world = own.world});
  if (own.world == 1) {
    const std::unique_ptr<CommWorld> world = make_self_world();
    return Rank(run_dir, run, device, *world, own.progress_fd, own.fence, began).run();
  }
  const std::string token = met.store ? met.token : read_token(own.token_fd);
  std::unique_ptr<Store> joined;
  std::unique_ptr<CommWorld> world;
  {
    const signals::WaitForRanks waiting;
    if (!met.store) joined = join_store(own, token, kJoinPatience);
    Store& store = met.store ? *met.store : *joined;
    const WorldOptions options = world_options(own, token);
    check_alike(
        store.exchange("device", options.rank, options.size, kind_of(device), options.timeout),
        options.rank, device);
    world = device.cuda != nullptr ? device.cuda->make_nccl_world(store, options, *device.device,
                                                                  (run_dir / "crash").string())
                                   : make_cpu_world(store, options);
  }
  return Rank(run_dir, run, device, *world, own.progress_fd, own.fence, began).run();
}

// The process that dies first is the launcher's headline: that belongs to the rank whose failure we
// only felt. The launcher asks us to stop as soon as it has seen that.
void let_origin_end_first() {
  for (int i = 0; i < 20 && !signals::stop_requested(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Machines that share the run, as far as who started the ranks has said: else this one has all.
int nodes_of(const WorkerEnvironment& own) {
  if (own.nodes > 0) return own.nodes;
  return own.local_world > 0 ? std::max(1, own.world / own.local_world) : 1;
}

}  // namespace

Exit run_worker(const WorkerStart& start) {
  const auto started = Rank::Clock::now();
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
      return {.run_dir = run_dir.string()};
    }
    const std::optional<OpenedRun> opened = start.open(environment.world, nodes_of(environment));
    if (!opened) return {.run_dir = "", .complete = true};
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
                      .give_up = signals::stop_requested,
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
  if (environment.rank_threads > 0) return run_threads(run_dir, run, environment, began);
  // What mtl launch would do in the end.
  const auto write_report_here = [&] {
    if (environment.rank == 0 && environment.progress_fd < 0) write_report_of(run_dir);
  };
  try {
    const Exit exit = run_process(run_dir, run, environment, met, began);
    write_report_here();
    return exit;
  } catch (const Error& error) {
    if (is_collateral(error)) let_origin_end_first();
    write_report_here();
    throw;
  }
}

}  // namespace mtl
