#include "runtime/selftest_checks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <string_view>

#include <fmt/format.h>

#include "common/error.h"
#include "common/half.h"
#include "runtime/engine/trainer.h"

namespace mtl {

namespace {

using Clock = std::chrono::steady_clock;

// Small whole numbers, exact in every type and every sum.
int value_of(int rank, int64_t i) {
  return (rank % 2 == 0 ? 1 : -1) * (static_cast<int>((31 * rank + i) % 5) + 1);
}

void put(const Tensor& x, int64_t i, int value) {
  const auto f = static_cast<float>(value);
  switch (x.dtype) {
    case DType::f32:
      x.as<float>()[i] = f;
      break;
    case DType::f64:
      x.as<double>()[i] = f;
      break;
    case DType::i32:
      x.as<int32_t>()[i] = value;
      break;
    case DType::f16:
      x.as<uint16_t>()[i] = f32_to_f16(f);
      break;
    default:
      x.as<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
  }
}

double at(const Tensor& x, int64_t i) {
  switch (x.dtype) {
    case DType::f32:
      return x.as<float>()[i];
    case DType::f64:
      return x.as<double>()[i];
    case DType::i32:
      return x.as<int32_t>()[i];
    case DType::f16:
      return f16_to_f32(x.as<uint16_t>()[i]);
    default:
      return std::bit_cast<float>(static_cast<uint32_t>(x.as<uint16_t>()[i]) << 16);
  }
}

}  // namespace

void verify_operations(Communicator& group, DType dtype, bool spoil) {
  constexpr int64_t kPart = 240;  // elements per rank
  const int size = group.size(), rank = group.rank();
  const int64_t whole = kPart * size, first = kPart * rank;
  std::vector<double> memory_of_all(static_cast<size_t>(whole)), memory_of_mine(kPart);
  const Tensor all(memory_of_all.data(), dtype, {whole});
  const Tensor mine(memory_of_mine.data(), dtype, {kPart});
  const auto fill = [](const Tensor& x, int from, int64_t offset) {
    for (int64_t i = 0; i < x.numel(); ++i) put(x, i, value_of(from, offset + i));
  };
  const auto check = [&](const char* operation, const Tensor& x, const auto& right) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (at(x, i) == right(i)) continue;
      throw Error(
          Exit::run_failed,
          {.code = "selftest.collective",
           .what = fmt::format("{} of {} over {} ranks gave {} for element {} of {}, where {} is "
                               "right",
                               operation, safetensors_name(dtype), size, at(x, i), i, x.numel(),
                               right(i)),
           .help = "memory or a network device of one of these hosts corrupts data, or mtl has a "
                   "defect: test each host alone, then in pairs"});
    }
  };
  // The values repeat after 5 elements.
  std::array<int, 5> sums{}, largest{};
  for (int64_t i = 0; i < 5; ++i) {
    largest[static_cast<size_t>(i)] = value_of(0, i);
    for (int r = 0; r < size; ++r) {
      sums[static_cast<size_t>(i)] += value_of(r, i);
      largest[static_cast<size_t>(i)] = std::max(largest[static_cast<size_t>(i)], value_of(r, i));
    }
  }
  fill(all, rank, 0);
  group.all_reduce(all);
  if (spoil) put(all, 17, static_cast<int>(at(all, 17)) + 1);
  check("all_reduce (sum)", all, [&](int64_t i) { return sums[static_cast<size_t>(i % 5)]; });
  fill(all, rank, 0);
  group.all_reduce(all, Reduce::max);
  check("all_reduce (max)", all, [&](int64_t i) { return largest[static_cast<size_t>(i % 5)]; });
  fill(all, rank, 0);
  group.reduce_scatter(all, mine);
  check("reduce_scatter", mine,
        [&](int64_t i) { return sums[static_cast<size_t>((first + i) % 5)]; });
  fill(mine, rank, first);
  group.all_gather(mine, all);
  check("all_gather", all, [&](int64_t i) { return value_of(static_cast<int>(i / kPart), i); });
  fill(all, rank, 0);
  group.broadcast(all, size - 1);
  check("broadcast", all, [&](int64_t i) { return value_of(size - 1, i); });
  fill(all, rank, 0);
  std::vector<double> memory_of_pieces(static_cast<size_t>(whole));
  const Tensor pieces(memory_of_pieces.data(), dtype, {whole});
  group.all_to_all(all, pieces);
  check("all_to_all", pieces,
        [&](int64_t i) { return value_of(static_cast<int>(i / kPart), first + i % kPart); });
  const int previous = (rank + size - 1) % size;
  fill(mine, rank, 0);
  group.send(mine, (rank + 1) % size);
  group.recv(mine, previous);
  check("send and recv", mine, [&](int64_t i) { return value_of(previous, i); });
}

namespace {

// Seconds of one of `times` actions in a row, the best of three rounds that all ranks begin
// together.
double fastest(Communicator& group, int times, const std::function<void()>& action) {
  double best = INFINITY;
  for (int round = 0; round < 3; ++round) {
    group.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) action();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / times);
  }
  return best;
}

constexpr int64_t kLarge = 8 << 20, kLink = 4 << 20;  // bytes

}  // namespace

LinkSpeed measure_group(Communicator& group, bool links) {
  std::vector<float> memory(kLarge / sizeof(float)), other(kLink / sizeof(float));
  const Tensor large(memory.data(), DType::f32, {static_cast<int64_t>(memory.size())});
  const Tensor arriving(other.data(), DType::f32, {static_cast<int64_t>(other.size())});
  LinkSpeed found;
  found.latency_s = fastest(group, 20, [&] { group.all_reduce(large.slice(0, 1)); });
  found.bytes_per_s = kLarge / fastest(group, 1, [&] { group.all_reduce(large); });
  if (!links) return found;
  const int size = group.size(), rank = group.rank();
  found.link_s = fastest(group, 1, [&] {
    group.send(large.slice(0, arriving.numel()), (rank + 1) % size);
    group.recv(arriving, (rank + size - 1) % size);
  });
  return found;
}

namespace {
class BuiltInText final : public TokenSource {
 public:
  int64_t size() const override { return 4096; }
  void read(int64_t first, std::span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<unsigned char>(kText[(static_cast<size_t>(first) + i) % kText.size()]);
    }
  }
  uint64_t fingerprint() const override { return 0; }

 private:
  static constexpr std::string_view kText =
      "Many hands make light work, said the first rank, and the second one checked the sum. ";
};

}  // namespace

std::vector<double> tiny_losses(CommWorld& world, int batch, int tp) {
  TrainSpec spec;
  spec.model.layers = 2;
  spec.model.hidden = 64;
  spec.model.heads = 4;
  spec.parallel.tp = tp;
  spec.train.seq_len = 32;
  spec.train.global_batch = batch;
  spec.train.micro_batch = 1;
  spec.train.steps = std::clamp(512 / batch, 2, 8);
  spec.lr.max = 1e-2;
  spec.lr.schedule = "constant";
  Diagnostics diagnostics;
  ResolvedSpec resolved;
  resolved.spec = spec;
  const Plan plan = make_plan(resolved, {.vocab = 256, .sequences = 0}, world.size(), diagnostics);
  diagnostics.throw_if_errors();
  const std::unique_ptr<Device> device = make_cpu_device();
  Trainer trainer(plan, spec, *device, world);
  trainer.initialise();
  const BuiltInText text;
  const Sampler sampler(text.size(), spec.train.seq_len, SampleOrder::random, spec.train.seed);
  std::vector<double> losses;
  for (int64_t step = 0; step < spec.train.steps; ++step) {
    losses.push_back(trainer.step(step, text, sampler, {}).loss);
  }
  return losses;
}

}  // namespace mtl
