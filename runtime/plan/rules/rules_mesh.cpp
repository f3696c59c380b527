// Rules of the ranks: what tensor, context, pipeline and data parallelism divide, and what only
// means something with several ranks.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/rules/nearest.h"
#include "runtime/plan/rules/rule_book.h"

namespace mtl {

namespace {

std::string processes(int64_t count) {
  return fmt::format("{} process{}", count, count == 1 ? "" : "es");
}

// One mistake: the degree. Heads, KV heads and ffn each forbid some, and the help names those that
// none of them forbids.
bool check_tensor_degree(const RuleInput& input, RuleBook& book) {
  const ModelShape& model = input.model;
  const int64_t tp = input.spec.parallel.tp;
  const std::string help = fmt::format("use tp {}", nearest_of(tensor_degrees(model), tp));
  if (!book.layout_rule(
          "mesh.heads", "parallel.tp", model.heads % tp == 0,
          fmt::format("model.heads {} cannot be split over parallel.tp {}", model.heads, tp),
          help)) {
    return false;
  }
  if (!book.layout_rule(
          "mesh.kv_heads", "parallel.tp",
          model.kv_heads % tp == 0 || tp % model.kv_heads == 0 || model.heads % model.kv_heads != 0,
          fmt::format("model.kv_heads {} can be neither split nor copied over "
                      "parallel.tp {}",
                      model.kv_heads, tp),
          help)) {
    return false;
  }
  const auto divides = [&](const char* what, int64_t width) {
    return book.layout_rule(
        "mesh.ffn", "parallel.tp", width % tp == 0,
        fmt::format("{} {} cannot be split over parallel.tp {}", what, width, tp), help);
  };
  const bool own = input.spec.model.moe.ffn > 0 && model.experts > 0;
  return divides(own ? "model.moe.ffn" : "model.ffn", model.ffn) &&
         divides("model.ffn", model.dense_layer_ffn) &&
         divides("model.moe.shared_ffn", model.shared_ffn);
}

// What context parallelism divides: tokens, and for attention the heads that a TP rank has.
bool check_context_degree(const RuleInput& input, RuleBook& book) {
  const int64_t tp = input.spec.parallel.tp, cp = input.spec.parallel.cp;
  if (input.model.heads % input.model.kv_heads != 0) return true;  // no model at all: said already
  const int64_t seq = input.spec.train.seq_len;
  std::vector<int64_t> degrees = divisors(input.model.heads / tp);
  std::erase_if(degrees, [&](int64_t degree) {
    return seq % degree != 0 || !heads_divide(input.model, tp, degree);
  });
  const std::string help = fmt::format("use cp {}", nearest_of(degrees, cp));
  const std::string product = tp == 1 ? "" : fmt::format("parallel.tp {} x ", tp);
  return book.layout_rule(
             "mesh.cp", "parallel.cp", heads_divide(input.model, tp, cp),
             fmt::format("{} head{} and {} KV head{} cannot be split over {}parallel.cp {}: each "
                         "rank attends with heads of its own",
                         input.model.heads, input.model.heads == 1 ? "" : "s", input.model.kv_heads,
                         input.model.kv_heads == 1 ? "" : "s", product, cp),
             help) &&
         book.layout_rule(
             "mesh.cp", "parallel.cp", seq % cp == 0,
             fmt::format("train.seq_len {} cannot be divided over parallel.cp {}", seq, cp), help);
}

// What expert parallelism divides. Their ranks are replicas of all else.
bool check_expert_degree(const RuleInput& input, RuleBook& book) {
  const int64_t ep = input.spec.parallel.ep, experts = input.model.experts;
  const int64_t dp = input.spec.parallel.dp;
  const std::string without_experts =
      dp > 0 ? fmt::format("parallel.ep=1 with parallel.dp={}", dp * ep) : "parallel.ep=1";
  if (!book.rule("mesh.ep", "parallel.ep", ep == 1 || experts > 0,
                 fmt::format("parallel.ep {} divides experts, and model.moe.experts is 0", ep),
                 fmt::format("use {} (replicas are parallel.dp)", without_experts))) {
    return false;
  }
  return book.rule("mesh.ep", "parallel.ep", ep == 1 || experts % ep == 0,
                   fmt::format("{} experts cannot be divided over parallel.ep {}", experts, ep),
                   fmt::format("use ep {}", experts > 0 ? nearest_divisors(experts, ep) : "1"));
}

std::vector<int64_t> balanced(const RuleInput& input, int64_t stages) {
  return balanced_stages(input.model, input.spec.train.seq_len, static_cast<int>(stages));
}

// The layers of each virtual stage; none if the model cannot be cut like this.
std::optional<std::vector<int64_t>> layers_of_stages(const RuleInput& input, RuleBook& book) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const int64_t layers = input.model.layers, pp = parallel.pp, chunks = parallel.virtual_stages;
  if (!book.layout_rule("mesh.virtual", "parallel.virtual_stages", chunks == 1 || pp > 1,
                        fmt::format("parallel.virtual_stages {} divides the layers of a pipeline "
                                    "stage, and parallel.pp is 1",
                                    chunks),
                        "use parallel.pp >= 2, or virtual_stages 1")) {
    return std::nullopt;
  }
  const int64_t stages = pp * chunks;
  const std::string product =
      chunks == 1 ? fmt::format("parallel.pp {}", pp)
                  : fmt::format("{} stages (pp {} x virtual_stages {})", stages, pp, chunks);
  const std::vector<int64_t>& given = parallel.stage_layout;
  if (!given.empty()) {
    const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
    const std::string such_as =
        stages <= std::min<int64_t>(layers, 64)
            ? fmt::format(", such as [{}]", fmt::join(balanced(input, stages), ", "))
            : "";
    // With another number of stages the sum is not the mistake.
    if (!book.layout_rule("mesh.stage_layout", "parallel.stage_layout",
                          static_cast<int64_t>(given.size()) == stages,
                          fmt::format("parallel.stage_layout has {} {}, and there {} {} stage{} "
                                      "({})",
                                      given.size(), given.size() == 1 ? "entry" : "entries",
                                      stages == 1 ? "is" : "are", stages, stages == 1 ? "" : "s",
                                      chunks == 1 ? "parallel.pp" : "pp x virtual_stages"),
                          "give the layers of each stage" + such_as) ||
        !book.layout_rule("mesh.stage_layout", "parallel.stage_layout", sum == layers,
                          fmt::format("parallel.stage_layout adds up to {} layer{}, and "
                                      "model.layers is {}",
                                      sum, sum == 1 ? "" : "s", layers),
                          "every layer belongs to one stage" + such_as)) {
      return std::nullopt;
    }
    return given;  // with 0 where a stage is to hold the embedding or the head alone, or nothing
  }
  if (!book.layout_rule("mesh.layers", "parallel.pp", stages <= layers,
                        fmt::format("model.layers {} cannot be divided over {}: a stage has at "
                                    "least one layer",
                                    layers, product),
                        chunks == 1 ? fmt::format("use pp {}", nearest_divisors(layers, pp))
                                    : fmt::format("use pp x virtual_stages of {}",
                                                  nearest_divisors(layers, stages)))) {
    return std::nullopt;
  }
  if (parallel.stage_balance == "balanced") {
    return balanced(input, stages);
  }
  if (!book.layout_rule(
          "mesh.layers", "parallel.pp", layers % stages == 0,
          fmt::format("model.layers {} cannot be divided evenly over {}", layers, product),
          fmt::format("use {} {}, or parallel.stage_layout=balanced",
                      chunks == 1 ? "pp" : "pp x virtual_stages of",
                      nearest_divisors(layers, stages)))) {
    return std::nullopt;
  }
  return std::vector<int64_t>(static_cast<size_t>(stages), layers / stages);
}

// parallel.dp as `world` ranks give it, 0 if they are no whole number of them.
int64_t replicas(const RuleInput& input, RuleBook& book) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const int64_t tp = parallel.tp, cp = parallel.cp, ep = parallel.ep, pp = parallel.pp;
  const int64_t dp = parallel.dp, world = input.world;
  const int64_t replica = tp * cp * ep * pp;
  const auto unless_one = [](const char* name, int64_t degree) {
    return degree == 1 ? std::string() : fmt::format(" x {} {}", name, degree);
  };
  const std::string degrees =
      fmt::format("tp {}{}{} x pp {}", tp, unless_one("cp", cp), unless_one("ep", ep), pp);
  if (dp > 0) {
    const bool product = book.layout_rule(
        "mesh.product", "parallel.dp", replica * dp == world,
        fmt::format("{} x dp {} = {}, but {} {} requested", degrees, dp, replica * dp,
                    processes(world), world == 1 ? "is" : "are"),
        fmt::format("start {} (--num_processes {}){}", processes(replica * dp), replica * dp,
                    world % replica == 0 ? ", or leave parallel.dp out" : ""));
    return product ? dp : 0;
  }
  const std::pair<int64_t, const char*> axes[] = {
      {tp, "parallel.tp"}, {pp, "parallel.pp"}, {cp, "parallel.cp"}, {ep, "parallel.ep"}};
  const char* key =
      std::max_element(std::begin(axes), std::end(axes), [](const auto& a, const auto& b) {
        return a.first < b.first;
      })->second;
  const bool product = book.layout_rule(
      "mesh.product", key, world % replica == 0,
      fmt::format("{} = {} does not divide {}", degrees, replica, processes(world)),
      fmt::format("start a multiple of {} processes (--num_processes {})", replica,
                  (world / replica + 1) * replica));
  return product ? world / replica : 0;
}

// In how many copies there is what ZeRO divides over `ranks` of a stage, or those of each copy.
int shard_copies(const RuleInput& input, int64_t ranks, RuleBook& book) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const int64_t given = parallel.zero_ranks;
  const int64_t least = int64_t{parallel.tp} * parallel.cp * parallel.ep;
  // What one rank of each copy would have alone is not divided.
  const auto divides = [&](int64_t n) {
    return n % least == 0 && ranks % n == 0 && n > parallel.tp && n < ranks;
  };
  const bool possible = given > 0 && parallel.zero >= 1 && divides(given);
  if (possible) return static_cast<int>(ranks / given);
  // For whatever is launched: plan.cpp says what becomes of it.
  if (given == 0 || book.of_launch_file("parallel.zero_ranks")) return 1;
  if (!book.rule("mesh.zero_ranks", "parallel.zero_ranks", parallel.zero >= 1,
                 "parallel.zero_ranks are ranks that divide what ZeRO divides, and parallel.zero "
                 "is 0",
                 "set parallel.zero to 1, 2 or 3, or leave parallel.zero_ranks out") ||
      given >= ranks) {
    return 1;
  }
  std::string usable;
  for (const int64_t n : divisors(ranks)) {
    if (divides(n)) usable += fmt::format("{}, ", n);
  }
  book.rule("mesh.zero_ranks", "parallel.zero_ranks", false,
            given <= parallel.tp && given == least
                ? fmt::format("with parallel.zero_ranks {} every copy is on one replica, which "
                              "divides nothing",
                              given)
                : fmt::format("parallel.zero_ranks {} is no multiple of tp x cp x ep = {} that "
                              "divides the {} ranks of a stage",
                              given, least, ranks),
            usable.empty() ? "leave it out (all ranks)"
                           : fmt::format("use {}or auto (all ranks)", usable));
  return 1;
}

std::string seq_over_tp(const RuleInput& input) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  return fmt::format(
      "train.seq_len {} cannot be divided over {}parallel.tp {}", input.spec.train.seq_len,
      parallel.cp == 1 ? "" : fmt::format("parallel.cp {} x ", parallel.cp), parallel.tp);
}

void check_sequence_parallel(const RuleInput& input, Layout& layout, bool mesh, RuleBook& book) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const int64_t tp = parallel.tp, seq = input.spec.train.seq_len / parallel.cp;
  const bool divides = seq % tp == 0;
  if (parallel.sp == "true") {
    book.layout_rule("mesh.sp", "parallel.sp", tp > 1,
                     "sequence parallelism divides tokens over TP ranks, and parallel.tp is 1",
                     "use parallel.tp >= 2, or parallel.sp=auto");
    book.layout_rule("mesh.sp", "parallel.sp", !mesh || divides, seq_over_tp(input),
                     fmt::format("use train.seq_len {}, or parallel.sp=auto",
                                 nearest_multiples(input.spec.train.seq_len, tp * parallel.cp)));
  }
  layout.sequence_parallel = tp > 1 && divides && parallel.sp != "false";
}

}  // namespace

bool check_mesh(const RuleInput& input, Layout& layout, RuleBook& book) {
  const TrainSpec::Parallel& parallel = input.spec.parallel;
  const bool tensor = check_tensor_degree(input, book) && check_context_degree(input, book) &&
                      check_expert_degree(input, book);
  const auto layers = layers_of_stages(input, book);
  // Degrees that are impossible by themselves are not multiplied.
  const int64_t dp = tensor && layers ? replicas(input, book) : 0;
  const bool mesh = dp > 0;
  check_sequence_parallel(input, layout, mesh, book);
  const TrainSpec::Parallel::Overlap& overlap = parallel.overlap;
  if (overlap.param_gather == "true") {
    book.rule("mesh.overlap", "parallel.overlap.param_gather",
              parallel.zero >= 1 && overlap.grad_reduce,
              fmt::format("parallel.overlap.param_gather belongs to ZeRO with overlapped "
                          "reductions, and {} is {}",
                          parallel.zero == 0 ? "parallel.zero" : "parallel.overlap.grad_reduce",
                          parallel.zero == 0 ? "0" : "false"),
              fmt::format("set {}, or parallel.overlap.param_gather=auto",
                          parallel.zero == 0 && !overlap.grad_reduce
                              ? "parallel.zero=1 and parallel.overlap.grad_reduce=true"
                          : parallel.zero == 0 ? "parallel.zero=1"
                                               : "parallel.overlap.grad_reduce=true"));
  }
  book.rule("mesh.grad_reduce", "precision.grad_reduce",
            parallel.zero >= 1 || input.spec.precision.grad_reduce == "fp32",
            "gradients in bf16 are added by the rank that keeps their shard, and parallel.zero 0 "
            "keeps everything on every rank",
            "set parallel.zero=1, or precision.grad_reduce=fp32");
  // Each micro-batch of each stage would gather its weights, or scatter its gradients, anew.
  book.rule("mesh.zero", "parallel.zero",
            parallel.zero < 2 || parallel.pp == 1 || dp * parallel.cp * parallel.ep == 1,
            fmt::format("parallel.zero {} keeps {} in shards, which a pipeline (parallel.pp "
                        "{}) would bring together for every micro-batch",
                        parallel.zero, parallel.zero == 2 ? "gradients" : "gradients and weights",
                        parallel.pp),
            "use parallel.zero=1, or parallel.pp=1 (with parallel.tp where the activations "
            "of a layer are too large)");
  if (!mesh) return false;
  layout.sizes.copies = shard_copies(input, parallel.tp * parallel.cp * parallel.ep * dp, book);
  layout.sizes[Axis::tp] = parallel.tp;
  layout.sizes[Axis::cp] = parallel.cp;
  layout.sizes[Axis::ep] = parallel.ep;
  layout.sizes[Axis::pp] = parallel.pp;
  layout.sizes[Axis::dp] = static_cast<int>(dp);
  layout.layers_of_virtual = *layers;
  return true;
}

void check_recompute(const RuleInput& input, const Layout& layout, bool mesh, RuleBook& book) {
  const TrainSpec::Recompute& recompute = input.spec.recompute;
  const bool full = recompute.mode == "full", selective = recompute.mode == "selective";
  const auto belongs = [&](const char* code, const char* key, const char* mode, bool holds) {
    book.rule(code, key, holds,
              fmt::format("{} belongs to recompute.mode {}, and the mode is {}", key, mode,
                          recompute.mode),
              fmt::format("leave {} out, or set recompute.mode={}", key, mode));
  };
  belongs("recompute.method", "recompute.method", "full", full || recompute.method.empty());
  belongs("recompute.layers", "recompute.layers", "full", full || recompute.layers == 0);
  const TrainSpec::Recompute built_in;
  belongs("recompute.modules", "recompute.modules", "selective",
          selective || (recompute.modules == built_in.modules && recompute.module_layers.empty()));
  belongs("recompute.distribute", "recompute.distribute", "full", full || !recompute.distribute);
  const int64_t most =
      mesh ? *std::max_element(layout.layers_of_virtual.begin(), layout.layers_of_virtual.end())
           : input.model.layers;
  const auto at_most = [&](const char* key, const std::string& what, int64_t layers) {
    book.layout_rule(key, key, layers <= most,
                     fmt::format("{} {} is more than the {} layer{} of {}", what, layers, most,
                                 most == 1 ? "" : "s",
                                 layout.layers_of_virtual.size() > 1 ? "a stage" : "the model"),
                     fmt::format("use at most {}", most));
  };
  if (full) at_most("recompute.layers", "recompute.layers", recompute.layers);
  if (selective) {
    for (const auto& [module, layers] : recompute.module_layers) {
      at_most("recompute.modules", fmt::format("recompute.modules: {}:", module), layers);
    }
  }
  if (!full || !recompute.distribute) return;
  const int64_t tp = input.spec.parallel.tp, cp = input.spec.parallel.cp;
  const int64_t seq = input.spec.train.seq_len;
  if (!book.layout_rule("recompute.distribute", "recompute.distribute", tp > 1,
                        "recompute.distribute divides kept inputs over TP ranks, and parallel.tp "
                        "is 1",
                        "use parallel.tp >= 2, or leave recompute.distribute out")) {
    return;
  }
  book.rule("recompute.distribute", "recompute.distribute", !mesh || !layout.sequence_parallel,
            "with sequence parallelism the kept inputs are divided already",
            "leave recompute.distribute out, or set parallel.sp=false");
  book.layout_rule("recompute.distribute", "recompute.distribute",
                   !mesh || input.spec.parallel.sp == "true" || seq % (tp * cp) == 0,
                   seq_over_tp(input),
                   fmt::format("use train.seq_len {}, or leave recompute.distribute out",
                               nearest_multiples(seq, tp * cp)));
}

}  // namespace mtl
