#include "runtime/rank.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/catalog.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/step_dirs.h"
#include "runtime/comm/clocked.h"
#include "runtime/data/prefetch.h"
#include "runtime/engine/calibrate.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/engine/time_left.h"
#include "runtime/engine/time_limit.h"
#include "runtime/engine/trainer.h"
#include "runtime/engine/yardstick.h"
#include "runtime/interchange/init_from.h"
#include "runtime/metrics/reporter.h"
#include "runtime/model/blocks.h"
#include "runtime/rank_evaluation.h"
#include "runtime/rank_reports.h"
#include "runtime/rank_saves.h"
#include "runtime/start_block.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

bool is_due(int64_t every, int64_t step) {
  return every > 0 && step % every == 0;
}

class Rank {
 public:
  Rank(const RankJob& job, const MadeDevice& device, CommWorld& world)
      : run_dir_(job.run_dir),
        run_(job.run),
        spec_(run_.resolved.spec),
        plan_(run_.plan),
        world_(world),
        progress_fd_(job.progress_fd),
        fence_(job.fence),
        wishes_(job.wishes),
        made_(device),
        device_(made_.device.get()),
        time_limit_(std::chrono::seconds(spec_.health.max_time), job.began),
        time_left_(plan_, beside_steps(run_)) {
    std::vector<int> everybody(static_cast<size_t>(world_.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    all_ranks_ = world_.group(everybody);
    trainer_ = std::make_unique<Trainer>(plan_, spec_, *device_, world_);
    all_ranks_ = clocked(std::move(all_ranks_), &trainer_->clock());
  }

  Exit run() {
    try {
      start();
      wishes_.something_to_lose(true);
      return go_on();
    } catch (const Error& error) {
      failed(error);
      throw;
    } catch (...) {
      world_.leave();
      throw;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  void start() {
    resumed_ = newest_state();
    next_step_ = resumed_.step;
    fs::path checkpoint;
    if (next_step_ == 0) {
      trainer_->initialise();
      if (!spec_.init.from.empty()) load_initial_weights(spec_.init.from, *trainer_);
    } else {
      checkpoint = checkpoint_path(run_dir_ / kCheckpoints, next_step_);
      load_checkpoint(checkpoint, *trainer_);
    }
    nlohmann::json base;
    if (plan_.model.lora && world_.rank() == 0) {
      base = checkpoint.empty()
                 ? model_beside_adapters(spec_.init.from)
                 : CheckpointReader(checkpoint).state().value("base", nlohmann::json());
    }
    // All ranks at once: they share the machine, so the sum is what the machine gives to this job.
    all_ranks_->barrier();
    const Yardstick yardstick =
        agree_on_yardstick(*all_ranks_, measured_matmul_rate(*device_, plan_.compute, 0.02),
                           catalogue_peak(made_, plan_.compute));
    const std::string attention = choose_attention();
    if (world_.rank() == 0) {
      reporter_ =
          std::make_unique<Reporter>(ReporterOptions{.run_dir = run_dir_,
                                                     .progress_fd = progress_fd_,
                                                     .steps = plan_.steps,
                                                     .resume_step = next_step_,
                                                     .evaluates_again = is_left(Unevaluated::all),
                                                     .generates_again = is_left(),
                                                     .checkpoint = checkpoint,
                                                     .log_every = spec_.log.every,
                                                     .generates = !run_.prompts.texts.empty(),
                                                     .tensorboard = spec_.log.tensorboard});
    }
    reports_ = std::make_unique<RankReports>(run_, made_, yardstick, *trainer_, *all_ranks_,
                                             reporter_.get(), time_left_);
    evaluation_ = std::make_unique<RankEvaluation>(
        run_, [this] { return wishes_.stop() || outlasts_time(); }, *trainer_, reporter_.get(),
        time_left_);
    saves_ = std::make_unique<RankSaves>(run_dir_, fence_, next_step_, run_, *trainer_, *all_ranks_,
                                         reporter_.get(), time_limit_, time_left_, std::move(base));
    if (!reporter_) return;
    reporter_->start(
        start_block(run_, {.run_dir = run_dir_,
                           .device = device_line(),
                           .yardstick = yardstick,
                           .attention = attention,
                           .kernel_bytes = device_->scratch_for(plan_.stages.front().kernels),
                           .checkpoint = checkpoint,
                           .resume_step = next_step_}));
  }

  // What the checkpoint says that all ranks go on from, and of the evaluation after it.
  struct Resumed {
    int64_t step = 0;  // 0 = there is none
    Unevaluated rest = Unevaluated::nothing;
    double valid_loss = std::numeric_limits<double>::quiet_NaN();
  };
  // Rank 0 looks: a client of a network file system may show an older list of the folder to another
  // rank.
  Resumed newest_state() {
    Resumed said;
    if (world_.rank() == 0) {
      Diagnostics warnings;
      const fs::path newest = newest_checkpoint(run_dir_ / kCheckpoints, warnings);
      warnings.throw_if_errors(Exit::data);
      if (!newest.empty()) said = resumed_by(CheckpointReader(newest).state());
    }
    double numbers[] = {static_cast<double>(said.step), static_cast<double>(said.rest),
                        said.valid_loss};
    all_ranks_->broadcast(Tensor(numbers, DType::f64, {std::ssize(numbers)}), 0);
    return {.step = static_cast<int64_t>(numbers[0]),
            .rest = static_cast<Unevaluated>(numbers[1]),
            .valid_loss = numbers[2]};
  }
  static Resumed resumed_by(const nlohmann::json& state) {
    Resumed said{.step = state.at("step").get<int64_t>()};
    const std::string left = state.value(kEvaluationLeft, "");
    if (left == kNotEvaluated) said.rest = Unevaluated::all;
    if (left == kNotContinued) said.rest = Unevaluated::texts;
    said.valid_loss = metric_of(state, "valid_loss").value_or(said.valid_loss);
    return said;
  }

  // On every rank before the first step, which would do it else. With documents that do not see
  // each other there is no choice.
  std::string choose_attention() {
    if (made_.cuda == nullptr || made_.cuda->choose_attention == nullptr) return {};
    if (spec_.data.resets_attention()) return {};
    const GridSizes& sizes = plan_.grid.sizes();
    const auto chosen_for = [&](int64_t layer) {
      AttentionShape shape = attention_of(plan_.model, layer, sizes[Axis::tp] * sizes[Axis::cp]);
      shape.batch = plan_.micro_batch;
      shape.seq = plan_.seq;
      float sink = 0;  // that there are some is all that counts here
      if (plan_.model.attention_sinks) shape.sinks = Tensor(&sink, plan_.compute, {1});
      return made_.cuda->choose_attention(*device_, shape, plan_.compute);
    };
    const std::vector<int64_t>& full = plan_.model.full_layers;
    if (full.empty()) return chosen_for(0);
    int64_t with_window = 0;
    while (plan_.model.window_of(with_window) == 0) ++with_window;
    return fmt::format("{}; in layers with a window: {}", chosen_for(full.front()),
                       chosen_for(with_window));
  }

  std::string device_line() const {
    const std::string text = made_.description();
    return device_->replays() ? text + ", passes replayed as CUDA graphs" : text;
  }

  Exit go_on() {
    Prefetch samples(*run_.corpus.train, plan_.seq, static_cast<int>(spec_.data.workers),
                     spec_.data.resets_positions() || spec_.data.resets_attention());
    samples.announce(trainer_->sample_ranges(next_step_));
    if (is_left() && !evaluate_rest()) return stopped();
    return train(samples);
  }

  Exit train(Prefetch& samples) {
    const int64_t steps = plan_.steps;
    while (next_step_ < steps) {
      const auto begin = Clock::now();
      const bool checkpoint_now = wishes_.checkpoint() || save_is_due();
      samples.announce(trainer_->sample_ranges(next_step_ + 1));
      time_is_up_ = time_is_up_ || is_last_in_time(checkpoint_now, begin);
      const StepResult result = guarded_step(samples, {.stop = wishes_.stop() || time_is_up_,
                                                       .checkpoint = checkpoint_now,
                                                       .saving = saves_->writing()});
      ++next_step_;
      has_stepped_ = true;
      loss_ = result.loss;
      saves_->step_done(next_step_, result.requests.saving);
      reports_->step_done(next_step_, result, seconds_since(begin));
      const bool last = next_step_ == steps;
      bool left = is_due(spec_.train.eval.every, next_step_) && !evaluate();
      const bool due = is_due(spec_.checkpoint.every, next_step_) || result.requests.checkpoint;
      // A stop is not to wait for an evaluation that nobody has asked for.
      const bool compared = last || (due && compares_valid_loss());
      if (!left && compared && !evaluation_->is_of(next_step_)) left = !evaluate();
      const bool stop = left || (result.requests.stop && !last);
      if (last || stop) {
        saves_->save_and_wait(here());
      } else if (due) {
        const auto asked = Clock::now();
        saves_->save(here());
        time_left_.waited_for_save(seconds_since(asked));
      }
      if (stop) return stopped();
    }
    finish();
    return Exit::done;
  }

  bool compares_valid_loss() const {
    const TrainSpec::Checkpoint::KeepBest& best = spec_.checkpoint.keep_best;
    return best.k > 0 && best.metric == "valid_loss";
  }

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // False on all ranks: it was left, since some rank is asked to stop.
  bool evaluate() {
    const auto begin = Clock::now();
    if (!evaluation_->run(next_step_)) return false;
    time_limit_.evaluated(seconds_since(begin));
    return true;
  }

  // Whether those who saved what we go on from have left of its evaluation what the settings ask
  // for. For comparison too, whatever made the checkpoint due.
  bool is_left() const {
    const bool wanted = is_due(spec_.train.eval.every, next_step_) || next_step_ >= plan_.steps ||
                        compares_valid_loss();
    return wanted && resumed_.rest != Unevaluated::nothing;
  }
  bool is_left(Unevaluated rest) const { return is_left() && resumed_.rest == rest; }

  // The same, of what is left. The checkpoint becomes what it would have been.
  bool evaluate_rest() {
    const auto begin = Clock::now();
    std::optional<double> valid_loss;
    if (!std::isnan(resumed_.valid_loss)) valid_loss = resumed_.valid_loss;
    if (!evaluation_->go_on(next_step_, resumed_.rest, valid_loss)) return false;
    time_limit_.evaluated(seconds_since(begin));
    saves_->evaluated(here());
    return true;
  }

  RankSaves::Here here() const {
    RankSaves::Here here{.step = next_step_, .loss = loss_};
    if (evaluation_->is_of(next_step_)) here.valid_loss = evaluation_->valid_loss();
    if (evaluation_->rest() == Unevaluated::all) here.evaluation_left = kNotEvaluated;
    if (evaluation_->rest() == Unevaluated::texts) here.evaluation_left = kNotContinued;
    return here;
  }

  // For rank 0 to ask for; the others follow.
  bool save_is_due() const { return world_.rank() == 0 && saves_->is_due(next_step_); }

  // Whether the step that begins is the last one after which all ends in time. Likewise. `saves`: a
  // checkpoint is wanted after it, whatever its number.
  bool is_last_in_time(bool saves, Clock::time_point now) const {
    if (world_.rank() != 0) return false;
    TimeLimit::Ahead ahead;
    for (const int64_t step : {next_step_, next_step_ + 1}) {
      if (step == plan_.steps) return false;  // it ends anyway
      const auto sequences = static_cast<double>(plan_.batch.at(step).global_batch);
      ahead.steps_s += time_left_.sequence_s() * sequences;
      const bool saved = is_due(spec_.checkpoint.every, step + 1) || (saves && step == next_step_);
      const bool evaluated = is_due(spec_.train.eval.every, step + 1) || step + 1 == plan_.steps ||
                             (saved && compares_valid_loss());
      ahead.evaluations += evaluated ? 1 : 0;
      // The save of the end is the one of the second step.
      if (step == next_step_ && (saved || saves_->writing())) ++ahead.saves;
    }
    return time_limit_.is_over(ahead, now);
  }

  // Whether the save behind the evaluation that these ranks are at has to begin now to end in time,
  // for rank 0 to ask. An evaluation that they have begun with is not left: those that go on would
  // not get further.
  bool outlasts_time() {
    if (world_.rank() != 0 || !has_stepped_) return false;
    const TimeLimit::Ahead save{.saves = saves_->writing() ? 2 : 1};
    const bool over = time_limit_.is_over(save, Clock::now());
    time_is_up_ = time_is_up_ || over;
    return over;
  }

  // A step that diverges changes nothing. So what is there before it can be saved, and is worth it.
  StepResult guarded_step(const Samples& samples, const Requests& requests) {
    try {
      return trainer_->step(next_step_, samples, requests);
    } catch (const Error& error) {
      // All ranks throw this one together; of others nobody knows who is still there.
      if (error.diagnostics().front().code != "loss.nan") throw;
      std::vector<Diagnostic> diagnostics = error.diagnostics();
      diagnostics.front().notes.push_back(saves_->save_before_divergence(here()));
      throw Error(error.exit(), std::move(diagnostics));
    }
  }

  // Peers learn of it before the trainer is taken apart, which may wait for them.
  void failed(const Error& error) {
    world_.leave();
    // They may have been asked to stop a moment before us, and ended at once.
    if (is_collateral(error) && !has_stepped_) wishes_.something_to_lose(false);
    // What another rank's failure does to this one is not the reason of the end.
    std::vector<std::string> lines;
    if (!is_collateral(error)) {
      lines.push_back(fmt::format("failed   {}", error.diagnostics().front().what));
    }
    if (reporter_) reporter_->finish("failed", lines);
  }

  Exit stopped() {
    if (reporter_) {
      reporter_->finish("stopped",
                        {fmt::format("stopped {} after step {}; checkpoint {} is complete",
                                     time_is_up_ ? "by health.max_time" : "on request", next_step_,
                                     saves_->newest())});
    }
    return Exit::requeue;
  }

  void finish() {
    if (!reporter_) return;
    std::vector<std::string> lines = {fmt::format("done     {} steps", next_step_)};
    const int64_t skipped = reports_->skipped();
    if (skipped > 0) lines.push_back(fmt::format("skipped  {} of them: no update", skipped));
    if (evaluation_->valid_loss()) {
      std::string words = loss_words(*evaluation_->valid_loss());
      for (const SetLoss& set : evaluation_->valid_sets()) {
        words += "  " + set.name + " " + loss_words(set.loss);
      }
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
  const RankWishes& wishes_;
  const MadeDevice& made_;
  Device* const device_;
  TimeLimit time_limit_;
  TimeLeft time_left_;
  std::unique_ptr<Communicator> all_ranks_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Reporter> reporter_;  // of rank 0; elsewhere null
  // From start() on.
  std::unique_ptr<RankReports> reports_;
  std::unique_ptr<RankEvaluation> evaluation_;
  std::unique_ptr<RankSaves> saves_;
  Resumed resumed_;
  int64_t next_step_ = 0;
  bool has_stepped_ = false;  // these ranks, not those before them
  double loss_ = 0;
  bool time_is_up_ = false;  // known to rank 0
};

}  // namespace

Exit train_rank(const RankJob& job, const MadeDevice& device, CommWorld& world) {
  return Rank(job, device, world).run();
}

bool is_collateral(const Error& error) {
  return error.diagnostics().front().code == "comm.peer_lost";
}

}  // namespace mtl
