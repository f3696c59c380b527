#include "runtime/rank_reports.h"

#include <chrono>

#include <fmt/format.h>

namespace mtl {

RankReports::RankReports(const CheckedRun& run, const MadeDevice& device,
                         const Yardstick& yardstick, Trainer& trainer, Communicator& all_ranks,
                         Reporter* reporter, TimeLeft& time_left)
    : run_(run),
      plan_(run.plan),
      yardstick_(yardstick),
      all_ranks_(all_ranks),
      reporter_(reporter),
      time_left_(time_left),
      gpu_watch_(watch_gpu(device)),
      spikes_(run.resolved.spec.health.spike_factor) {
  const double factor = run.resolved.spec.health.straggler_factor;
  if (factor > 0 && all_ranks.size() > 1) {
    stragglers_ = std::make_unique<StragglerWatch>(
        factor, plan_.grid, all_ranks, trainer.clock(),
        device.cuda != nullptr ? fmt::format("GPU {}", device.index) : "CPU");
  }
}

void RankReports::step_done(int64_t done, const StepResult& result, double seconds) {
  // What is said of a step costs a machine that is busy a time slice.
  time_left_.step_done(seconds + reporting_s_, plan_.batch.at(done - 1).global_batch);
  ++steps_seen_;
  const auto begin = std::chrono::steady_clock::now();
  tell(done, result, seconds);
  reporting_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void RankReports::tell(int64_t done, const StepResult& result, double seconds) {
  const std::vector<GpuReading> gpus = read_gpus(done);
  if (reporter_ != nullptr) {
    StepReport report = report_of(done, result, seconds);
    if (!gpus.empty()) report.gpus = summary_of(gpus);
    skipped_ = report.skipped;
    reporter_->step(report);
    for (const Diagnostic& news : slow_gpus_.news(gpus)) {
      reporter_->warning("gpu_slowed", done, news);
    }
    if (!result.skipped) {
      if (const auto spike = spikes_.news(done, result.loss, result.grad_norm)) {
        reporter_->warning("spike", done, *spike);
      }
    }
  }
  if (!stragglers_) return;
  const int64_t sequences = plan_.batch.at(done - 1).global_batch;
  for (const auto& news : stragglers_->step_done(done, sequences, seconds)) {
    reporter_->straggler(done, news.report, news.words, news.shown);
  }
}

StepReport RankReports::report_of(int64_t done, const StepResult& result, double seconds) const {
  StepReport report;
  report.step = done;
  report.steps = plan_.steps;
  report.loss = result.loss;
  report.lr = result.lr;
  report.grad_norm = result.grad_norm;
  report.step_time_s = seconds;
  const auto tokens = static_cast<double>(plan_.tokens_of_step(done - 1));
  report.tokens_per_s = tokens / seconds;
  report.learned_share = result.counted / tokens;
  // Nobody needs logits of what does not count.
  const double not_needed = flops_per_token_of_head(plan_.model) * (1 - report.learned_share);
  report.mfu = (plan_.cost.flops_per_token - not_needed) * tokens / seconds / yardstick_.flops;
  report.mfu_of = yardstick_.flops;
  report.mfu_of_peak = yardstick_.is_peak;
  report.memory_bytes = plan_.total_bytes();
  report.eta_s = time_left_.behind(done);
  report.step_skipped = result.skipped;
  report.skipped = result.skipped_so_far;
  if (plan_.model.experts > 0) {
    const auto layers = static_cast<double>(plan_.model.mixtures());
    report.moe_aux_loss = result.moe_aux_loss / layers;
    report.moe_z_loss = result.moe_z_loss / layers;
    report.moe_turns = result.moe_turns;
  }
  if (plan_.compute == DType::f16) report.loss_scale = result.loss_scale;
  return report;
}

// Of all ranks, for the steps that every run logs; empty for others, and on CPUs.
std::vector<GpuReading> RankReports::read_gpus(int64_t done) {
  const int64_t every = run_.resolved.spec.log.every;
  const bool logged = done % every == 0 || done == plan_.steps || steps_seen_ == 1;
  if (gpu_watch_ == nullptr || !logged) return {};
  return gather_readings(all_ranks_, gpu_watch_->latest());
}

}  // namespace mtl
