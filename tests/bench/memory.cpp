// Planned memory beside what a run has: every layout below trains for one step, each rank a
// process, and says what its stage's plan is and how much of it the rank has made resident.
//   build/bench/memory > table.md        (under 3 minutes on two cores, at most 6 GB)
//   build/bench/memory 'dp 4' > table.md     (the layouts whose names have this)
//
// The engine takes one arena of exactly the planned size, so what can differ is whether the run
// uses it: "resident" counts the arena's pages that are in memory after the step (mincore(2),
// which for memory shared between ranks counts each page once, whoever touched it). "process peak"
// is the rise of VmHWM over the process's resident memory before the arena was made, less the pages
// of the peers' arenas that are mapped here: the arena, and all that the plan does not know of (the
// transport's buffers, oneDNN's, the host's). Fails if a rank's resident pages are not within 2 %
// of the plan; where ranks divide experts, less: room for rows that none took is not made resident.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/shm/shm_world.h"
#include "runtime/engine/trainer.h"
#include "spread_tokens.h"
#include "support/specs.h"

using namespace mtl;

namespace {

constexpr double kBar = 0.02;

struct Case {
  std::string name;
  std::function<void(TrainSpec&)> change = [](TrainSpec&) {};
};
struct Model {
  std::string name;
  TrainSpec spec = {};
  int64_t vocab = 0;
  std::vector<Case> cases = {};
};

// What a rank found; trivial, for it goes through a pipe.
struct Measured {
  int64_t resident = 0;  // bytes of the arena
  int64_t peak = 0;      // of the process
};

// Of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  throw Error(Exit::environment, {.code = "bench.proc", .what = "/proc has no " + key});
}

// Resident pages of the peers' arenas in our address space.
int64_t peers_bytes(const char* own) {
  std::ifstream maps("/proc/self/smaps");
  bool peer = false;
  int64_t total = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:mtl-arena") != std::string::npos) {
      const uint64_t begin = std::stoull(line, nullptr, 16);
      peer = begin != reinterpret_cast<uint64_t>(own);
    } else if (line.starts_with("Rss:")) {
      if (peer) total += std::stoll(line.substr(4)) * 1024;
      peer = false;
    }
  }
  return total;
}

int64_t resident_bytes(char* begin, int64_t bytes) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages(static_cast<size_t>((bytes + page - 1) / page));
  if (::mincore(begin, static_cast<size_t>(bytes), pages.data()) != 0) {
    throw Error(Exit::environment,
                {.code = "bench.mincore", .what = std::string("mincore: ") + std::strerror(errno)});
  }
  return page * std::count_if(pages.begin(), pages.end(), [](auto p) { return (p & 1) != 0; });
}

Measured train(const Plan& plan, const TrainSpec& spec, CommWorld& world) {
  const int threads = std::max<int>(1, std::thread::hardware_concurrency()) / world.size();
  const auto device = make_cpu_device(std::max(1, threads));
  const SpreadTokens source(plan.model.vocab);
  const Sampler sampler(source.size(), plan.seq, SampleOrder::random, 1);
  const int64_t before = status_bytes("VmRSS");
  Trainer trainer(plan, spec, *device, world);
  trainer.initialise();
  trainer.step(0, source, sampler, {});
  const ParameterState first = trainer.state().front();  // and everything is gathered
  trainer.groups().world().barrier();
  const MemoryPlan& memory = plan.stage_of(world.rank()).memory;
  const BufferPlan* shards = memory.find("grad_shards");
  const BufferPlan* grads = shards != nullptr ? shards : memory.find("grads");
  char* arena = static_cast<char*>(first.grad.data) - first.part.gradient * 4 - grads->offset;
  const Measured measured = {.resident = resident_bytes(arena, memory.total_bytes),
                             .peak = status_bytes("VmHWM") - before - peers_bytes(arena)};
  trainer.groups().world().barrier();
  return measured;
}

// One process per rank. They are forked first, so that the store's thread is not copied into them.
std::vector<Measured> run(const Plan& plan, const TrainSpec& spec) {
  const int size = plan.grid.world();
  const std::string token = make_token();
  struct Child {
    pid_t pid;
    int to, from;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> down, up;
    if (::pipe(down.data()) != 0 || ::pipe(up.data()) != 0) std::exit(1);
    const pid_t pid = ::fork();
    if (pid == 0) {
      uint16_t port = 0;
      if (::read(down[0], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
      try {
        const auto store = connect_store({.address = "127.0.0.1", .port = port, .token = token});
        const auto world =
            size == 1
                ? make_self_world()
                : make_shm_world(*store,
                                 {.rank = rank, .size = size, .timeout = std::chrono::minutes(2)});
        const Measured measured = train(plan, spec, *world);
        ::_exit(::write(up[1], &measured, sizeof(measured)) == sizeof(measured) ? 0 : 1);
      } catch (const std::exception& error) {
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
        ::_exit(1);
      }
    }
    ::close(down[0]);
    ::close(up[1]);
    children.push_back({pid, down[1], up[0]});
  }
  const auto server = serve_store({.token = token});
  const uint16_t port = server->port();
  std::vector<Measured> all(children.size());
  bool good = true;
  for (const Child& child : children) good &= ::write(child.to, &port, sizeof(port)) > 0;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    const Child& child = children[rank];
    good &= ::read(child.from, &all[rank], sizeof(Measured)) == sizeof(Measured);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    ::close(child.to);
    ::close(child.from);
  }
  if (!good) std::exit(1);
  return all;
}

double mb(int64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}
double percent(int64_t measured, int64_t planned) {
  return 100 * (static_cast<double>(measured) / static_cast<double>(planned) - 1);
}

// One row per stage, with the rank of the stage that is farthest from the plan.
bool run_case(const Model& model, const Case& c) {
  ResolvedSpec resolved;
  resolved.spec = model.spec;
  c.change(resolved.spec);
  const TrainSpec::Parallel& parallel = resolved.spec.parallel;
  const int world =
      parallel.tp * parallel.cp * parallel.ep * parallel.pp * std::max(1, parallel.dp);
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = model.vocab}, world, diagnostics);
  diagnostics.throw_if_errors();
  const std::vector<Measured> measured = run(plan, resolved.spec);
  bool good = true;
  for (int stage = 0; stage < parallel.pp; ++stage) {
    const MemoryPlan& memory = plan.stages[static_cast<size_t>(stage)].memory;
    Measured worst{.resident = memory.total_bytes};
    for (int rank = 0; rank < world; ++rank) {
      if (plan.grid.coord(rank)[Axis::pp] != stage) continue;
      const Measured& own = measured[static_cast<size_t>(rank)];
      const auto distance = [&](int64_t resident) {
        return std::abs(resident - memory.total_bytes);
      };
      if (distance(own.resident) > distance(worst.resident)) worst.resident = own.resident;
      worst.peak = std::max(worst.peak, own.peak);
    }
    std::string row = fmt::format("| {} | {} |", c.name, stage);
    for (int category = 0; category < kMemoryCategories; ++category) {
      row += fmt::format(" {:.1f} |",
                         mb(memory.bytes_of_category(static_cast<MemoryCategory>(category))));
    }
    fmt::print("{} {:.1f} | {:.1f} | {:+.2f} % | {:.1f} | {:+.1f} % |\n", row,
               mb(memory.total_bytes), mb(worst.resident),
               percent(worst.resident, memory.total_bytes), mb(worst.peak),
               percent(worst.peak, memory.total_bytes));
    const double difference = percent(worst.resident, memory.total_bytes);
    good &= difference <= 100 * kBar && (difference >= -100 * kBar || parallel.ep > 1);
  }
  std::fflush(stdout);
  return good;
}

void zero_0(TrainSpec& spec) {
  spec.parallel.zero = 0;
}
void zero_2(TrainSpec& spec) {
  spec.parallel.zero = 2;
}
void zero_3(TrainSpec& spec) {
  spec.parallel.zero = 3;
}
void selective(TrainSpec& spec) {
  spec.recompute.mode = "selective";
}
void full(TrainSpec& spec) {
  spec.recompute.mode = "full";
}
void no_sp(TrainSpec& spec) {
  spec.parallel.sp = "false";
}
// A sequence per micro-batch, with as many tokens on each rank as elsewhere.
void context_2(TrainSpec& spec) {
  spec.parallel.cp = 2;
  spec.train.seq_len *= spec.train.micro_batch * spec.parallel.cp;
  spec.train.global_batch /= spec.train.micro_batch;
  spec.train.micro_batch = 1;
}
// As many replicas, which divide the experts.
void experts_4(TrainSpec& spec) {
  spec.parallel.ep = 4;
  spec.train.global_batch *= 4;
}
void experts_4_no_zero(TrainSpec& spec) {
  experts_4(spec);
  zero_0(spec);
}
void nothing(TrainSpec&) {}

// tp x pp x dp, and what else is different. Every replica runs enough micro-batches to
// fill its slots.
Case layout(std::string name, int tp, int pp, int dp, void (*change)(TrainSpec&) = nothing) {
  return {std::move(name), [=](TrainSpec& spec) {
            spec.parallel.tp = tp;
            spec.parallel.pp = pp;
            spec.parallel.dp = dp;
            spec.train.global_batch = std::max(2, pp) * spec.train.micro_batch * dp;
            change(spec);
          }};
}

Model gpt2() {
  Model model{.name = "GPT-2 124M, bf16, micro-batches of 2 x 256 tokens", .vocab = 50257};
  TrainSpec& spec = model.spec;
  spec.model.layers = 12;
  spec.model.hidden = 768;
  spec.model.heads = 12;
  spec.model.max_seq = 1024;
  spec.precision.dtype = "bf16";
  spec.train.micro_batch = 2;
  spec.train.seq_len = 256;
  spec.train.steps = 100;
  model.cases = {
      layout("one rank", 1, 1, 1),
      layout("one rank, recompute selective", 1, 1, 1, selective),
      layout("one rank, recompute full", 1, 1, 1, full),
      layout("dp 2, ZeRO off", 1, 1, 2, zero_0),
      layout("dp 2, ZeRO-1", 1, 1, 2),
      layout("dp 4, ZeRO-1", 1, 1, 4),
      layout("dp 4, ZeRO-2", 1, 1, 4, zero_2),
      layout("dp 4, ZeRO-3", 1, 1, 4, zero_3),
      layout("cp 2, a sequence of 1,024", 1, 1, 1, context_2),
      layout("tp 2", 2, 1, 1, no_sp),
      layout("tp 2, sp", 2, 1, 1),
      layout("tp 2, sp, recompute full", 2, 1, 1, full),
      layout("pp 2", 1, 2, 1),
      layout("pp 4, recompute selective", 1, 4, 1, selective),
  };
  return model;
}

Model mixtral() {
  Model model{
      .name =
          "Mixtral, 4 layers of 512, 8 experts of 1,792, two of them for a token, 32,000 ids, "
          "bf16, micro-batches of 2 x 256 tokens",
      .vocab = 32000};
  TrainSpec& spec = model.spec;
  spec.model.layers = 4;
  spec.model.hidden = 512;
  spec.model.heads = 8;
  spec.model.kv_heads = 2;
  spec.model.ffn = 1792;
  test::use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  spec.model.moe = {.experts = 8, .topk = 2, .aux_loss = 0.01};
  spec.precision.dtype = "bf16";
  spec.train.micro_batch = 2;
  spec.train.seq_len = 256;
  spec.train.steps = 100;
  model.cases = {
      layout("experts: dp 4, ZeRO off", 1, 1, 4, zero_0),
      layout("experts: ep 4, ZeRO off", 1, 1, 1, experts_4_no_zero),
      layout("experts: dp 4, ZeRO-1", 1, 1, 4),
      layout("experts: ep 4, ZeRO-1", 1, 1, 1, experts_4),
      layout("experts: dp 4, ZeRO-3", 1, 1, 4, zero_3),
  };
  return model;
}

Model llama() {
  Model model{.name =
                  "LLaMA, 8 layers of 512, 8 heads, 2 KV heads, 32,000 ids, fp32, micro-batches "
                  "of 2 x 256 tokens",
              .vocab = 32000};
  TrainSpec& spec = model.spec;
  spec.model.layers = 8;
  spec.model.hidden = 512;
  spec.model.heads = 8;
  spec.model.kv_heads = 2;
  test::use_llama_blocks(spec);
  spec.model.tie_embeddings = false;
  spec.train.micro_batch = 2;
  spec.train.seq_len = 256;
  spec.train.steps = 100;
  model.cases = {
      layout("one rank", 1, 1, 1),
      layout("one rank, SGD", 1, 1, 1, [](TrainSpec& s) { s.optimizer.type = "sgd"; }),
      layout("one rank, recompute full", 1, 1, 1, full),
      layout("dp 4, ZeRO-1", 1, 1, 4),
      layout("dp 4, ZeRO-2", 1, 1, 4, zero_2),
      layout("dp 4, ZeRO-3", 1, 1, 4, zero_3),
      layout("cp 2, a sequence of 1,024", 1, 1, 1, context_2),
      layout("tp 2, sp, cp 2 (KV heads copied), a sequence of 1,024", 2, 1, 1, context_2),
      layout("tp 4 (KV heads copied), sp", 4, 1, 1),
      layout("tp 2, sp, dp 2, ZeRO-1, recompute full", 2, 1, 2, full),
      layout("pp 2, virtual 2, dp 2, ZeRO-1", 1, 2, 2,
             [](TrainSpec& s) { s.parallel.virtual_stages = 2; }),
  };
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  bool good = true;
  for (const Model& model : {gpt2(), llama(), mixtral()}) {
    fmt::print("\n{}; MB of a rank\n\n", model.name);
    fmt::print(
        "| layout | stage | weights | gradients | optimizer | activations | scratch | planned | "
        "resident | against the plan | process peak | against the plan |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const Case& c : model.cases) {
      if (c.name.find(wanted) != std::string::npos) good &= run_case(model, c);
    }
  }
  if (!good) fmt::print(stderr, "a rank is more than {:.0f} % off its plan\n", 100 * kBar);
  return good ? 0 : 1;
}
