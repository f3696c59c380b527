#include "runtime/plan/plan.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mtl {

namespace {

// The divisors of `n` up to `limit`, for messages.
std::vector<int64_t> divisors(int64_t n, int64_t limit) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= limit; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

// The divisors of `n` nearest below and above `value`.
std::string nearest_divisors(int64_t n, int64_t value) {
  int64_t below = std::min(value, n), above = value;
  while (below > 1 && n % below != 0) --below;
  while (above < n && n % above != 0) ++above;
  if (above > n || n % above != 0 || above == below) return std::to_string(below);
  return fmt::format("{} or {}", below, above);
}

// The positive multiples of `n` next to `value`.
std::string nearest_multiples(int64_t value, int64_t n) {
  const int64_t below = value / n * n, above = below + n;
  return below == 0 ? std::to_string(above) : fmt::format("{} or {}", below, above);
}

// Every rule that ties values of the configuration together.
class Rules {
 public:
  Rules(const ResolvedSpec& resolved, Diagnostics& diagnostics)
      : resolved_(resolved), diagnostics_(diagnostics) {}

  void check(bool holds, const char* code, const char* key, std::string what, std::string help) {
    if (holds) return;
    ok_ = false;
    diagnostics_.add({.code = code,
                      .what = std::move(what),
                      .place = resolved_.place_of(key),
                      .help = std::move(help)});
  }
  bool ok() const { return ok_; }

 private:
  const ResolvedSpec& resolved_;
  Diagnostics& diagnostics_;
  bool ok_ = true;
};

}  // namespace

Plan make_plan(const ResolvedSpec& resolved, int64_t vocab, int world, Diagnostics& diagnostics) {
  const TrainSpec& spec = resolved.spec;
  const TrainSpec::Parallel& parallel = spec.parallel;
  Rules rules(resolved, diagnostics);
  Plan plan;

  plan.model = model_shape(spec, vocab);
  const ModelShape& model = plan.model;
  rules.check(model.heads == 0 || model.hidden % model.heads == 0, "model.head_dim", "model.heads",
              fmt::format("model.hidden {} cannot be divided into model.heads {}", model.hidden,
                          model.heads),
              fmt::format("use {} heads", nearest_divisors(model.hidden, model.heads)));
  rules.check(spec.train.seq_len <= model.max_seq, "model.positions", "train.seq_len",
              fmt::format("train.seq_len {} is longer than model.max_seq {} (learned positions)",
                          spec.train.seq_len, model.max_seq),
              fmt::format("use train.seq_len <= {}, or raise model.max_seq to {}", model.max_seq,
                          spec.train.seq_len));

  const int tp = parallel.tp, pp = parallel.pp;
  rules.check(pp == 1, "mesh.pp", "parallel.pp",
              fmt::format("parallel.pp {}: this version runs pipelines of one stage only", pp),
              "use parallel.pp=1");
  rules.check(tp == 0 || model.heads % tp == 0, "mesh.heads", "parallel.tp",
              fmt::format("model.heads {} cannot be split over parallel.tp {}", model.heads, tp),
              fmt::format("use tp {}", nearest_divisors(model.heads, tp)));
  rules.check(model.ffn % tp == 0, "mesh.ffn", "parallel.tp",
              fmt::format("model.ffn {} cannot be split over parallel.tp {}", model.ffn, tp),
              fmt::format("use tp {}", nearest_divisors(model.ffn, tp)));
  const int replica = tp * pp;
  int dp = parallel.dp;
  if (dp == 0) {
    rules.check(
        world % replica == 0, "mesh.product", "parallel.tp",
        fmt::format("tp {} x pp {} = {} does not divide {} processes", tp, pp, replica, world),
        fmt::format("start a multiple of {} processes (--num_processes {}), or use a tp of {}",
                    replica, (world / replica + 1) * replica,
                    fmt::join(divisors(world, world), ", ")));
    dp = std::max(1, world / replica);
  } else {
    rules.check(replica * dp == world, "mesh.product", "parallel.dp",
                fmt::format("tp {} x pp {} x dp {} = {}, but {} process{} requested", tp, pp, dp,
                            replica * dp, world, world == 1 ? " is" : "es are"),
                fmt::format("start {} processes (--num_processes {}), or leave parallel.dp out",
                            replica * dp, replica * dp));
  }

  plan.global_batch = spec.train.global_batch;
  plan.seq = spec.train.seq_len;
  rules.check(
      plan.global_batch % dp == 0, "batch.dp", "train.global_batch",
      fmt::format("train.global_batch {} cannot be divided over dp {}", plan.global_batch, dp),
      fmt::format("use a multiple of {}: {}", dp, nearest_multiples(plan.global_batch, dp)));
  const int64_t per_rank = std::max<int64_t>(1, plan.global_batch / dp);
  plan.micro_batch = spec.train.micro_batch > 0 ? spec.train.micro_batch : per_rank;
  if (plan.global_batch % dp == 0) {
    rules.check(per_rank % plan.micro_batch == 0, "batch.micro", "train.micro_batch",
                fmt::format("train.micro_batch {} does not divide the {} sequences of each replica "
                            "(global_batch {} / dp {})",
                            plan.micro_batch, per_rank, plan.global_batch, dp),
                fmt::format("use {}", nearest_divisors(per_rank, plan.micro_batch)));
  }
  plan.micro_batches = std::max<int64_t>(1, per_rank / plan.micro_batch);

  rules.check(spec.lr.min <= spec.lr.max, "lr.range", "lr.min",
              fmt::format("lr.min {} is above lr.max {}", spec.lr.min, spec.lr.max),
              "lower lr.min or raise lr.max");
  const int64_t decay = spec.lr.decay > 0 ? spec.lr.decay : spec.train.steps;
  rules.check(
      spec.lr.warmup < decay || spec.lr.schedule == "constant", "lr.warmup", "lr.warmup",
      fmt::format("lr.warmup {} leaves no step to decay: lr.decay is {}", spec.lr.warmup, decay),
      fmt::format("use lr.warmup < {}", decay));
  if (!rules.ok()) return plan;

  GridSizes sizes;
  sizes[Axis::tp] = tp;
  sizes[Axis::pp] = pp;
  sizes[Axis::dp] = dp;
  plan.grid = Grid(sizes);
  plan.compute = spec.precision.dtype == "bf16" ? DType::bf16 : DType::f32;
  plan.table = shard_table(model);
  plan.layout = param_layout(plan.table, sizes);
  plan.memory =
      memory_plan(model, plan.table, plan.layout,
                  {.micro_batch = plan.micro_batch, .seq = plan.seq, .tp = tp}, plan.compute);
  const ScheduleShape shape = {.stages = pp, .micro_batches = static_cast<int>(plan.micro_batches)};
  plan.schedule = make_schedule(shape);
  std::string problem;
  if (!simulate(plan.schedule, shape, problem)) {
    throw Error(Exit::run_failed,
                {.code = "internal.schedule",
                 .what = "the generated schedule is invalid: " + problem,
                 .help = "this is a bug in mtl: please report it with your train.yaml"});
  }
  plan.cost = cost(model, plan.table, sizes, plan.layout, plan.global_batch, plan.micro_batch,
                   plan.seq, plan.compute);
  return plan;
}

}  // namespace mtl
