#include "runtime/plan/rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/nearest.h"

namespace mtl {

namespace {

class Rules {
 public:
  Rules(const ResolvedSpec& resolved, const ModelShape& model, int world, Diagnostics& diagnostics)
      : resolved_(resolved),
        spec_(resolved.spec),
        model_(model),
        world_(world),
        diagnostics_(diagnostics) {}

  Layout check(const DataFacts& data) {
    check_model();
    check_mesh();
    check_pipeline();
    check_batch(data);
    check_schedule();
    check_recompute();
    check_lr();
    return std::move(layout_);
  }

 private:
  // Returns `holds`; otherwise says what is wrong with the value of `key`.
  bool rule(bool holds, const char* code, const char* key, std::string what, std::string help) {
    if (!holds) diagnostics_.add(diagnostic(code, key, std::move(what), std::move(help)));
    return holds;
  }
  // The same for a rule that decides which ranks there can be: the first that does not hold names
  // layouts that are possible.
  void mesh_rule(bool holds, const char* code, const char* key, std::string what,
                 std::string help) {
    if (!holds) mesh_.push_back(diagnostic(code, key, std::move(what), std::move(help)));
  }
  Diagnostic diagnostic(const char* code, const char* key, std::string what,
                        std::string help) const {
    return {.code = code,
            .what = std::move(what),
            .place = resolved_.place_of(key),
            .help = std::move(help)};
  }

  void check_model() {
    const TrainSpec::Model& given = spec_.model;
    rule(given.head_dim > 0 || model_.heads == 0 || model_.hidden % model_.heads == 0,
         "model.head_dim", "model.heads",
         fmt::format("model.hidden {} cannot be divided into model.heads {}", model_.hidden,
                     model_.heads),
         fmt::format("use heads {}, or give model.head_dim",
                     nearest_divisors(model_.hidden, model_.heads)));
    rule(model_.kv_heads > 0 && model_.heads % model_.kv_heads == 0, "model.kv_heads",
         "model.kv_heads",
         fmt::format("model.kv_heads {} does not divide model.heads {}", model_.kv_heads,
                     model_.heads),
         fmt::format("use kv_heads {}", nearest_divisors(model_.heads, model_.kv_heads)));
    rule(model_.position != PositionType::rope || model_.head_dim % 2 == 0, "model.rope",
         "model.position.type",
         fmt::format("rotary positions turn pairs of elements, and a head has {} of them",
                     model_.head_dim),
         "use an even model.head_dim (model.hidden / model.heads)");
    const RopeScaling& scaling = model_.rope_scaling;
    rule(!scaling.llama3 || scaling.low_freq_factor < scaling.high_freq_factor, "model.rope",
         "model.position.scaling.low_freq_factor",
         fmt::format("model.position.scaling.low_freq_factor {} is not below high_freq_factor {}",
                     scaling.low_freq_factor, scaling.high_freq_factor),
         "Llama 3.1 has 1 and 4");
    rule(model_.max_seq >= spec_.train.seq_len, "model.max_seq", "model.max_seq",
         fmt::format("model.max_seq {} is shorter than train.seq_len {}", model_.max_seq,
                     spec_.train.seq_len),
         fmt::format("use max_seq >= {}, or leave it out", spec_.train.seq_len));
  }

  void check_mesh() {
    const TrainSpec::Parallel& parallel = spec_.parallel;
    const int tp = parallel.tp, pp = parallel.pp;
    mesh_rule(model_.heads % tp == 0, "mesh.heads", "parallel.tp",
              fmt::format("model.heads {} cannot be split over parallel.tp {}", model_.heads, tp),
              fmt::format("use tp {}", nearest_divisors(model_.heads, tp)));
    mesh_rule(model_.kv_heads == model_.heads || model_.kv_heads % tp == 0 ||
                  tp % std::max<int64_t>(1, model_.kv_heads) == 0,
              "mesh.kv_heads", "parallel.tp",
              fmt::format("model.kv_heads {} can be neither split nor copied over parallel.tp {}",
                          model_.kv_heads, tp),
              fmt::format("use tp {}, or a multiple of {}",
                          nearest_divisors(model_.kv_heads, std::min<int64_t>(tp, model_.kv_heads)),
                          model_.kv_heads));
    mesh_rule(model_.ffn % tp == 0, "mesh.ffn", "parallel.tp",
              fmt::format("model.ffn {} cannot be split over parallel.tp {}", model_.ffn, tp),
              fmt::format("use tp {}", nearest_divisors(model_.ffn, tp)));
    const int replica = tp * pp;
    int dp = parallel.dp;
    if (dp == 0) {
      mesh_rule(
          world_ % replica == 0, "mesh.product", "parallel.tp",
          fmt::format("tp {} x pp {} = {} does not divide {} processes", tp, pp, replica, world_),
          fmt::format("start a multiple of {} processes (--num_processes {})", replica,
                      (world_ / replica + 1) * replica));
      dp = std::max(1, world_ / replica);
    } else {
      mesh_rule(replica * dp == world_, "mesh.product", "parallel.dp",
                fmt::format("tp {} x pp {} x dp {} = {}, but {} process{} requested", tp, pp, dp,
                            replica * dp, world_, world_ == 1 ? " is" : "es are"),
                fmt::format("start {} processes (--num_processes {}), or leave parallel.dp out",
                            replica * dp, replica * dp));
    }
    layout_.sizes[Axis::tp] = tp;
    layout_.sizes[Axis::pp] = pp;
    layout_.sizes[Axis::dp] = dp;

    const bool divides = spec_.train.seq_len % tp == 0;
    if (parallel.sp == "true") {
      rule(tp > 1, "mesh.sp", "parallel.sp",
           "sequence parallelism divides tokens over TP ranks, and parallel.tp is 1",
           "use parallel.tp >= 2, or parallel.sp=auto");
      rule(divides, "mesh.sp", "parallel.sp",
           fmt::format("train.seq_len {} cannot be divided over parallel.tp {}",
                       spec_.train.seq_len, tp),
           fmt::format("use train.seq_len {}, or parallel.sp=false",
                       nearest_multiples(spec_.train.seq_len, tp)));
    }
    layout_.sequence_parallel = tp > 1 && divides && parallel.sp != "false";

    rule(parallel.overlap.param_gather != "true" ||
             (parallel.zero == 1 && parallel.overlap.grad_reduce),
         "mesh.overlap", "parallel.overlap.param_gather",
         "parallel.overlap.param_gather needs parallel.zero 1 and parallel.overlap.grad_reduce",
         "set parallel.zero=1 and parallel.overlap.grad_reduce=true, or leave param_gather out");
  }

  std::vector<int64_t> balanced(int64_t virtual_stages) const {
    const double head =
        flops_per_token_of_head(model_) / flops_per_token_of_layer(model_, spec_.train.seq_len);
    return balanced_layers(model_.layers, static_cast<int>(virtual_stages), head);
  }

  void check_pipeline() {
    const TrainSpec::Parallel& parallel = spec_.parallel;
    const int pp = parallel.pp, chunks = parallel.virtual_stages;
    const int64_t virtual_stages = static_cast<int64_t>(pp) * chunks;
    mesh_rule(chunks == 1 || pp > 1, "mesh.virtual", "parallel.virtual_stages",
              fmt::format("parallel.virtual_stages {} divides the layers of a pipeline stage, and "
                          "parallel.pp is 1",
                          chunks),
              "use parallel.pp >= 2, or virtual_stages 1");
    std::vector<int64_t> layers = parallel.stage_layout;
    if (!layers.empty()) {
      const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
      mesh_rule(static_cast<int64_t>(layers.size()) == virtual_stages, "mesh.stage_layout",
                "parallel.stage_layout",
                fmt::format("parallel.stage_layout has {} entries, and there are {} stages (pp {} "
                            "x virtual_stages {})",
                            layers.size(), virtual_stages, pp, chunks),
                fmt::format("give the layers of each, such as [{}]",
                            fmt::join(balanced(virtual_stages), ", ")));
      mesh_rule(sum == model_.layers, "mesh.stage_layout", "parallel.stage_layout",
                fmt::format("parallel.stage_layout adds up to {} layers, and model.layers is {}",
                            sum, model_.layers),
                "every layer belongs to one stage");
      layers.resize(static_cast<size_t>(virtual_stages));
    } else if (parallel.stage_balance == "balanced") {
      layers = balanced(virtual_stages);
    } else {
      mesh_rule(model_.layers % virtual_stages == 0, "mesh.layers", "parallel.pp",
                fmt::format("model.layers {} cannot be divided evenly over {} stages (pp {} x "
                            "virtual_stages {})",
                            model_.layers, virtual_stages, pp, chunks),
                fmt::format("use pp x virtual_stages of {}, or parallel.stage_layout=balanced, or "
                            "the layers of each stage",
                            nearest_divisors(model_.layers, virtual_stages)));
      layers.assign(static_cast<size_t>(virtual_stages), model_.layers / virtual_stages);
    }
    mesh_rule(model_.layers >= virtual_stages ||
                  std::all_of(layers.begin(), layers.end(), [](int64_t n) { return n > 0; }),
              "mesh.layers", "parallel.pp",
              fmt::format("{} stages have more members than model.layers {}", virtual_stages,
                          model_.layers),
              fmt::format("use pp x virtual_stages <= {}", model_.layers));
    layout_.layers_of_virtual = std::move(layers);
    if (mesh_.empty()) return;
    const std::vector<std::string> possible =
        nearest_layouts(model_, {.tp = parallel.tp, .pp = pp, .world = world_, .chunks = chunks});
    if (!possible.empty()) {
      mesh_.front().notes.push_back(fmt::format(
          "{} process{} can be {}", world_, world_ == 1 ? "" : "es", fmt::join(possible, ", or ")));
    }
    for (Diagnostic& problem : mesh_) diagnostics_.add(std::move(problem));
  }

  void check_batch(const DataFacts& data) {
    const TrainSpec::Train& train = spec_.train;
    const int dp = layout_.sizes[Axis::dp];
    if (!train.accumulate.empty()) {
      layout_.micro_batch = std::max<int64_t>(1, train.micro_batch);
      rule(train.accumulate_by == "step" || train.accumulate.size() == 1 || data.sequences > 0,
           "batch.epoch", "train.accumulate",
           "train.accumulate counts epochs, and the text is too short for one sequence",
           "use a longer text, or train.accumulate_by=step");
      layout_.batch =
          train.accumulate_by == "step" || data.sequences == 0
              ? accumulate_by_step(train.accumulate, layout_.micro_batch, dp)
              : accumulate_by_epoch(train.accumulate, layout_.micro_batch, dp, data.sequences);
    } else {
      std::map<int64_t, int64_t> batches = train.batch_ramp;
      if (batches.empty()) batches = {{0, train.global_batch}};
      const char* key = train.batch_ramp.empty() ? "train.global_batch" : "train.batch_ramp";
      const int64_t smallest_share = std::max<int64_t>(1, batches.begin()->second / dp);
      layout_.micro_batch = train.micro_batch > 0 ? train.micro_batch : smallest_share;
      for (auto& [step, batch] : batches) {
        if (!rule(batch % dp == 0, "batch.dp", key,
                  fmt::format("{} {} cannot be divided over dp {}", key, batch, dp),
                  fmt::format("use a multiple of {}: {}", dp, nearest_multiples(batch, dp)))) {
          batch = dp * layout_.micro_batch;
          continue;
        }
        const int64_t share = batch / dp;
        if (!rule(share % layout_.micro_batch == 0, "batch.micro",
                  train.batch_ramp.empty() ? "train.micro_batch" : key,
                  fmt::format("train.micro_batch {} does not divide the {} sequences of each "
                              "replica (global_batch {} / dp {})",
                              layout_.micro_batch, share, batch, dp),
                  fmt::format("use {}", nearest_divisors(share, layout_.micro_batch)))) {
          batch = dp * layout_.micro_batch;
        }
      }
      layout_.batch = ramp_by_step(batches, layout_.micro_batch, dp);
    }
    layout_.steps = train.steps > 0 ? train.steps
                    : train.samples > 0
                        ? layout_.batch.steps_for_samples(train.samples)
                        : layout_.batch.steps_for_samples((train.tokens + train.seq_len - 1) /
                                                          std::max<int64_t>(1, train.seq_len));
  }

  void check_schedule() {
    const TrainSpec::Parallel& parallel = spec_.parallel;
    layout_.schedule.stages = parallel.pp;
    layout_.schedule.chunks = parallel.virtual_stages;
    layout_.schedule.group = static_cast<int>(parallel.virtual_group);
    const bool interleaved = parallel.virtual_stages > 1 && parallel.schedule != "gpipe";
    layout_.schedule.kind = parallel.schedule == "gpipe" ? ScheduleKind::gpipe
                            : interleaved                ? ScheduleKind::interleaved
                                                         : ScheduleKind::one_forward_one_backward;
    rule(parallel.virtual_group == 0 || interleaved, "schedule.group", "parallel.virtual_group",
         "parallel.virtual_group belongs to an interleaved schedule",
         "leave it out, or set parallel.virtual_stages >= 2 with schedule 1f1b");
    if (!interleaved) return;
    const int64_t group = parallel.virtual_group > 0 ? parallel.virtual_group : parallel.pp;
    for (const BatchPhase& phase : layout_.batch.phases()) {
      const int64_t m = phase.micro_batches;
      const bool range =
          rule(group >= parallel.pp && group <= m, "schedule.group", "parallel.virtual_stages",
               fmt::format("an interleaved schedule gives each chunk {} micro-batches in turn "
                           "(parallel.virtual_group): at least pp {} and at most the {} of a step",
                           group, parallel.pp, m),
               fmt::format("make a step of at least {} micro-batches (train.global_batch, "
                           "train.micro_batch), or use virtual_stages 1",
                           parallel.pp));
      if (!range) continue;
      rule(m % group == 0 || m % group >= parallel.pp, "schedule.group", "parallel.virtual_stages",
           fmt::format("{} micro-batches per step leave a last group of {}, fewer than pp {}", m,
                       m % group, parallel.pp),
           fmt::format("use {} micro-batches, or another parallel.virtual_group",
                       nearest_multiples(m, group)));
    }
  }

  void check_recompute() {
    const TrainSpec::Recompute& recompute = spec_.recompute;
    const bool full = recompute.mode == "full", selective = recompute.mode == "selective";
    rule(full || recompute.method.empty(), "recompute.method", "recompute.method",
         fmt::format("recompute.method {} belongs to recompute.mode full, and the mode is {}",
                     recompute.method, recompute.mode),
         "leave recompute.method out, or set recompute.mode=full");
    rule(full || recompute.layers == 0, "recompute.layers", "recompute.layers",
         fmt::format("recompute.layers belongs to recompute.mode full, and the mode is {}",
                     recompute.mode),
         "leave recompute.layers out, or set recompute.mode=full");
    rule(selective || recompute.modules == TrainSpec::Recompute{}.modules, "recompute.modules",
         "recompute.modules",
         fmt::format("recompute.modules belongs to recompute.mode selective, and the mode is {}",
                     recompute.mode),
         "leave recompute.modules out, or set recompute.mode=selective");
    const int64_t most =
        layout_.layers_of_virtual.empty()
            ? model_.layers
            : *std::max_element(layout_.layers_of_virtual.begin(), layout_.layers_of_virtual.end());
    rule(recompute.layers <= most, "recompute.layers", "recompute.layers",
         fmt::format("recompute.layers {} is more than the {} layers of a stage", recompute.layers,
                     most),
         fmt::format("use at most {}", most));
    if (!recompute.distribute) return;
    rule(full, "recompute.distribute", "recompute.distribute",
         fmt::format("recompute.distribute divides what recompute.mode full keeps, and the mode "
                     "is {}",
                     recompute.mode),
         "set recompute.mode=full, or leave recompute.distribute out");
    rule(spec_.parallel.tp > 1, "recompute.distribute", "recompute.distribute",
         "recompute.distribute divides kept inputs over TP ranks, and parallel.tp is 1",
         "use parallel.tp >= 2, or leave recompute.distribute out");
    rule(!layout_.sequence_parallel || spec_.parallel.tp == 1, "recompute.distribute",
         "recompute.distribute", "with sequence parallelism the kept inputs are divided already",
         "leave recompute.distribute out, or set parallel.sp=false");
    rule(layout_.sequence_parallel || spec_.train.seq_len % spec_.parallel.tp == 0,
         "recompute.distribute", "recompute.distribute",
         fmt::format("train.seq_len {} cannot be divided over parallel.tp {}", spec_.train.seq_len,
                     spec_.parallel.tp),
         fmt::format("use train.seq_len {}",
                     nearest_multiples(spec_.train.seq_len, spec_.parallel.tp)));
  }

  void check_lr() {
    const TrainSpec::Lr& lr = spec_.lr;
    rule(lr.min <= lr.max, "lr.range", "lr.min",
         fmt::format("lr.min {} is above lr.max {}", lr.min, lr.max),
         "lower lr.min or raise lr.max");
    const int64_t decay = lr.decay > 0 ? lr.decay : layout_.steps;
    const bool falls = lr.schedule != "constant" && lr.schedule != "inverse_sqrt";
    const bool warm =
        rule(lr.warmup < decay || !falls, "lr.warmup", "lr.warmup",
             fmt::format("lr.warmup {} leaves no step to decay: lr.decay is {}", lr.warmup, decay),
             fmt::format("use lr.warmup < {}", decay));
    if (!warm || lr.schedule != "wsd") return;
    rule(lr.wsd_decay <= decay - lr.warmup, "lr.wsd_decay", "lr.wsd_decay",
         fmt::format("lr.wsd_decay {} does not fit between lr.warmup {} and lr.decay {}",
                     lr.wsd_decay, lr.warmup, decay),
         fmt::format("use at most {}", decay - lr.warmup));
  }

  const ResolvedSpec& resolved_;
  const TrainSpec& spec_;
  const ModelShape& model_;
  const int world_;
  Diagnostics& diagnostics_;
  Layout layout_;
  std::vector<Diagnostic> mesh_;
};

}  // namespace

Layout check_rules(const ResolvedSpec& resolved, const ModelShape& model, const DataFacts& data,
                   int world, Diagnostics& diagnostics) {
  return Rules(resolved, model, world, diagnostics).check(data);
}

}  // namespace mtl
