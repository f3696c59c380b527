#include "runtime/start_block.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/metrics/format.h"

namespace mtl {

namespace {

std::string model_line(const ModelShape& model, const Cost& cost) {
  std::string heads = fmt::format("{} heads", model.heads);
  if (model.kv_heads != model.heads) heads += fmt::format(" ({} of keys)", model.kv_heads);
  if (model.has_latents()) heads += fmt::format(" of {} latents", model.latent.kv_rank);
  std::string parameters = compact_count(static_cast<double>(cost.parameters)) + " parameters";
  std::string experts;
  if (model.lora) {
    parameters +=
        fmt::format(" ({} of adapters trained)", compact_count(static_cast<double>(cost.trained)));
  }
  if (model.experts > 0) {
    parameters +=
        fmt::format(" ({} active)", compact_count(static_cast<double>(cost.active_parameters)));
    experts = fmt::format(", {} of {} experts", model.experts_per_token, model.experts);
    if (!model.dense_layers.empty()) experts += fmt::format(" in {} of them", model.mixtures());
  }
  return fmt::format("{}: {} layers, hidden {}, {}{}, vocabulary {}", parameters, model.layers,
                     model.hidden, heads, experts, model.vocab);
}

std::string layout_line(const Plan& plan, bool threads) {
  const GridSizes& sizes = plan.grid.sizes();
  const ScheduleShape& schedule = plan.largest().shape;
  const bool one = plan.grid.world() == 1;
  const char* ranks =
      threads ? (one ? "thread" : "threads of one process") : (one ? "process" : "processes");
  std::string text = fmt::format("{} {} = {} data x {} tensor parallel", plan.grid.world(), ranks,
                                 sizes[Axis::dp], sizes[Axis::tp]);
  if (sizes[Axis::ep] > 1) text += fmt::format(" x {} expert parallel", sizes[Axis::ep]);
  if (sizes[Axis::cp] > 1) text += fmt::format(" x {} context parallel", sizes[Axis::cp]);
  if (schedule.stages > 1) {
    text += fmt::format(" x {} pipeline stages", schedule.stages);
    if (schedule.chunks > 1) text += fmt::format(" of {} chunks", schedule.chunks);
    text += fmt::format(", bubble {:.1f} %", 100 * plan.largest().facts.bubble);
  }
  if (plan.sequence_parallel) text += ", sequence parallel";
  const ParamLayout& layout = plan.stages.front().layout;
  if (layout.zero > 0) text += fmt::format(", ZeRO-{}", layout.zero);
  return text;
}

std::string memory_line(const Plan& plan, int64_t kernel_bytes) {
  const auto largest = std::max_element(plan.stages.begin(), plan.stages.end(),
                                        [](const StagePlan& a, const StagePlan& b) {
                                          return a.memory.total_bytes < b.memory.total_bytes;
                                        });
  std::string text =
      fmt::format("{} per rank", human_bytes(static_cast<double>(plan.peak_bytes())));
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const int64_t bytes = largest->memory.bytes_of_category(category);
    text += fmt::format("{} {} {}", i == 0 ? ":" : ",", category_name(category),
                        human_bytes(static_cast<double>(bytes)));
  }
  if (kernel_bytes > 0) {
    text +=
        fmt::format("; beside it for kernels {}", human_bytes(static_cast<double>(kernel_bytes)));
  }
  if (largest->memory.host_bytes > 0) {
    text += fmt::format("; on the host the optimizer's {}",
                        human_bytes(static_cast<double>(largest->memory.host_bytes)));
  }
  return text;
}

std::string start_line(const StartFacts& facts, const TrainSpec& spec) {
  if (!facts.checkpoint.empty()) {
    return fmt::format("resume   after step {} ({})", facts.resume_step,
                       facts.checkpoint.filename().string());
  }
  if (spec.init.from.empty()) return fmt::format("start    from scratch, seed {}", spec.train.seed);
  return fmt::format("start    from the weights of {}, with a fresh optimizer", spec.init.from);
}

std::string batch_line(const Plan& plan) {
  const std::vector<BatchPhase>& phases = plan.batch.phases();
  const BatchPhase& first = phases.front();
  std::string text =
      fmt::format("{} sequences of {} = {} tokens per step, {} micro-batch{} of {} per rank",
                  first.global_batch, plan.seq, first.global_batch * plan.seq, first.micro_batches,
                  first.micro_batches == 1 ? "" : "es", plan.micro_batch);
  for (size_t i = 1; i < phases.size(); ++i) {
    text += fmt::format("; {} from step {}", phases[i].global_batch, phases[i].first_step);
  }
  return text;
}

std::string yardstick_words(const Yardstick& yardstick) {
  const std::string measured = compact_flops(yardstick.measured) + " measured over all ranks";
  if (!yardstick.is_peak) return measured + ", what mfu is of";
  return fmt::format("mfu is of the dense peak, {}; {}", compact_flops(yardstick.flops), measured);
}

std::string data_name(const TrainSpec& spec) {
  const auto& list = spec.data.train_list;
  if (list.empty()) return spec.data.train;
  return list.size() == 1 ? list.front().path
                          : fmt::format("{} and {} more", list.front().path, list.size() - 1);
}

}  // namespace

std::vector<std::string> start_block(const CheckedRun& run, const StartFacts& facts) {
  const Plan& plan = run.plan;
  const TrainSpec& spec = run.resolved.spec;
  const auto train_tokens = static_cast<double>(run.corpus.train_tokens);
  const auto samples = static_cast<double>(plan.batch.first_sample(plan.steps));
  const double epochs = spec.data.whole_documents()
                            ? samples / static_cast<double>(run.corpus.train_sequences)
                            : samples * static_cast<double>(plan.seq) / train_tokens;
  std::vector<std::string> lines = {
      "run      " + facts.run_dir.string(),
      "model    " + model_line(plan.model, plan.cost),
      "layout   " + layout_line(plan, spec.launch.spawn == "threads"),
      fmt::format("device   {}, {}; {}", facts.device,
                  plan.float8.on ? "fp8 in the linears, else bf16" : compute_name(plan.compute),
                  yardstick_words(facts.yardstick)),
      "memory   " + memory_line(plan, facts.kernel_bytes),
      fmt::format("data     {}: {} tokens to train on, {} to validate; {:.1f} epochs",
                  data_name(spec), compact_count(train_tokens),
                  compact_count(static_cast<double>(run.corpus.valid_tokens)), epochs),
      "batch    " + batch_line(plan),
      start_line(facts, spec),
  };
  if (!run.prompts.texts.empty()) {
    const size_t prompts = run.prompts.texts.size();
    lines.push_back(
        fmt::format("generate {} prompt{} at every evaluation, {} forward passes of {} "
                    "tokens a prompt",
                    prompts, prompts == 1 ? "" : "s", run.prompts.tokens,
                    plan.tokens_of_pass(run.prompts.room())));
  }
  if (!facts.attention.empty()) lines.insert(lines.begin() + 4, "kernel   " + facts.attention);
  return lines;
}

}  // namespace mtl
