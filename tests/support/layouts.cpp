#include "support/layouts.h"

#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "runtime/comm/shm/shm_world.h"
#include "support/hash.h"

namespace mtl::test {

std::unique_ptr<TokenSource> markov_tokens(int64_t size, int32_t vocab) {
  // Token i continues token i-1 by a fixed rule three times out of four, so that there is something
  // to learn.
  std::vector<int32_t> tokens(static_cast<size_t>(size));
  int32_t previous = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t random = splitmix64(i);
    const bool follow = random % 4 != 0;
    previous = follow ? (previous * 7 + 3) % vocab
                      : static_cast<int32_t>((random >> 8) % static_cast<uint64_t>(vocab));
    tokens[i] = previous;
  }
  return std::make_unique<SyntheticTokens>(
      size, [tokens = std::move(tokens)](int64_t i) { return tokens[static_cast<size_t>(i)]; });
}

void run_layout(TrainSpec spec, int64_t vocab, Layout layout,
                const std::function<void(RankContext&)>& body, int64_t epoch,
                const MakeWorld& make_world, const MakeDevice& make_device) {
  spec.parallel.tp = layout.tp;
  spec.parallel.dp = layout.dp;
  spec.parallel.pp = layout.pp;
  spec.parallel.cp = layout.cp;
  spec.parallel.ep = layout.ep;
  spec.parallel.zero_ranks = layout.zero_ranks;
  spec.parallel.virtual_stages = layout.virtual_stages;
  const int world_size = layout.world();
  ResolvedSpec resolved;
  resolved.spec = spec;
  Diagnostics diagnostics;
  const Plan plan =
      make_plan(resolved, {.vocab = vocab, .sequences = epoch}, world_size, diagnostics);
  diagnostics.throw_if_errors();

  const std::unique_ptr<Store> store = make_local_store();
  std::mutex mutex;
  std::exception_ptr first_failure;
  auto run_rank = [&](int rank) {
    try {
      const std::unique_ptr<Device> device = make_device ? make_device(rank) : make_cpu_device(1);
      const std::unique_ptr<CommWorld> world = [&]() -> std::unique_ptr<CommWorld> {
        if (world_size == 1) return make_self_world();
        if (make_world) return make_world(*store, rank, world_size);
        return make_shm_world(
            *store, {.rank = rank, .size = world_size, .timeout = std::chrono::minutes(5)});
      }();
      std::vector<int> everybody(static_cast<size_t>(world_size));
      std::iota(everybody.begin(), everybody.end(), 0);
      const std::unique_ptr<Communicator> all = world->group(everybody);
      Trainer trainer(plan, spec, *device, *world);
      RankContext context{trainer, plan, *all, rank};
      body(context);
      all->barrier();  // arenas of peers stay mapped until everybody is done
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first_failure) first_failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (first_failure) std::rethrow_exception(first_failure);
}

namespace {

// Calls visit(element of the global tensor, element of the rank's part, count) for every run of
// elements that lie together in both.
template <class Visit>
void for_each_run(const ParameterState& parameter, Visit visit) {
  const ParamRow& row = *parameter.row;
  const bool matrix = row.shape.size() == 2;
  const size_t column = matrix ? 1 : 0;
  for (const ParamRect& rect : parameter.rects) {
    for (int64_t r = 0; r < (matrix ? rect.extent[0] : 1); ++r) {
      const int64_t global_row = matrix ? rect.global_offset[0] + r : 0;
      const int64_t local_row = matrix ? rect.local_offset[0] + r : 0;
      visit(global_row * row.shape[column] + rect.global_offset[column],
            local_row * parameter.local_shape[column] + rect.local_offset[column] -
                parameter.part.first,
            rect.extent[column]);
    }
  }
}

std::mutex collecting;

// Copies a rank's part of a parameter, or of what belongs to it, to its place.
void gather_part(const ParameterState& parameter, Device& device, const Masters& part,
                 GlobalTensors& into) {
  std::vector<float>& global = into[parameter.row->name];
  global.resize(static_cast<size_t>(parameter.row->numel()));
  std::vector<float> values(static_cast<size_t>(part.numel()));
  part.read(device, 0, part.numel(), values.data());
  for_each_run(parameter, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(values.data() + from, count, global.data() + to);
  });
}

}  // namespace

void collect(Trainer& trainer, Which which, GlobalTensors& into) {
  const std::lock_guard lock(collecting);
  for (const ParameterState& parameter : trainer.state()) {
    if (!parameter.counts || (which == Which::grad && !parameter.grad)) continue;
    gather_part(parameter, trainer.device(),
                which == Which::master ? parameter.master : Masters{.whole = parameter.grad}, into);
  }
}

void collect_moments(Trainer& trainer, std::map<std::string, GlobalTensors>& into) {
  const std::lock_guard lock(collecting);
  for (const ParameterState& parameter : trainer.state()) {
    if (!parameter.counts) continue;
    for (const auto& [name, moment] : parameter.moments) {
      gather_part(parameter, trainer.device(), {.whole = moment}, into[name]);
    }
  }
}

void set_masters(Trainer& trainer,
                 const std::function<float(const ParamRow& row, int64_t element)>& value) {
  for (const ParameterState& parameter : trainer.state()) {
    std::vector<float> part(static_cast<size_t>(parameter.master.numel()));
    parameter.master.read(trainer.device(), 0, parameter.master.numel(), part.data());
    for_each_run(parameter, [&](int64_t at, int64_t to, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        part[static_cast<size_t>(to + i)] = value(*parameter.row, at + i);
      }
    });
    parameter.master.write(trainer.device(), 0, parameter.master.numel(), part.data());
  }
  trainer.weights_changed();
}

std::array<Traffic, kLinks> traffic_of(Trainer& trainer) {
  trainer.state();  // waits for the weights that are still being gathered
  std::array<Traffic, kLinks> traffic;
  for (int link = 0; link < kLinks; ++link) {
    traffic[static_cast<size_t>(link)] = trainer.groups()[static_cast<Link>(link)].traffic();
  }
  return traffic;
}

double norm_of(const std::vector<float>& x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) throw std::logic_error("tensors of different sizes");
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) square += std::pow(static_cast<double>(a[i]) - b[i], 2);
  const double norm = norm_of(b);
  return norm == 0 ? std::sqrt(square) : std::sqrt(square) / norm;
}

}  // namespace mtl::test
