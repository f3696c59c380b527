// Checkpoints against the disk: write_shards() and CheckpointReader beside dd on the same disk in
// the same round, and what saving in the background adds to the steps that it overlaps.
//   build/bench/checkpoint [folder=.] [MiB=1024] [rounds=5] [what=disk,overlap] [threads=2]
// dd writes with oflag=direct conv=fsync, and with conv=fsync through the page cache as we do; it
// reads with iflag=direct, and we read files that the page cache has been told to forget.
#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/files.h"
#include "median.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/engine/checkpoint_saver.h"
#include "runtime/engine/trainer.h"
#include "spread_tokens.h"

using namespace mtl;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// So that the next read is of the disk.
void forget(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const Fd fd(::open(entry.path().c_str(), O_RDONLY));
    ::fsync(fd.get());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

double seconds_of(const std::string& command) {
  const auto begin = Clock::now();
  if (std::system((command + " 2> /dev/null").c_str()) != 0) {
    fmt::print(stderr, "failed: {}\n", command);
    std::exit(1);
  }
  return since(begin);
}

struct Weights {
  std::vector<std::vector<char>> memory;
  std::vector<CheckpointTensor> tensors;

  // Tensors of 64 MiB, as those of a large model are.
  explicit Weights(int64_t mib) {
    constexpr int64_t kRows = 4096, kColumns = 4096;
    std::mt19937_64 random(1);
    for (int64_t i = 0; i < std::max<int64_t>(1, mib / 64); ++i) {
      memory.emplace_back(static_cast<size_t>(kRows * kColumns * 4));
      auto* const words = reinterpret_cast<uint64_t*>(memory.back().data());
      std::generate(words, words + memory.back().size() / 8, [&] { return random(); });
      CheckpointTensor tensor;
      tensor.name = fmt::format("layer{}", i);
      tensor.shape = tensor.local_shape = {kRows, kColumns};
      tensor.rects = {{{0, 0}, {0, 0}, {kRows, kColumns}}};
      tensor.data = memory.back().data();
      tensor.count = kRows * kColumns;
      tensor.optimizer = i % 3 != 0;
      tensors.push_back(std::move(tensor));
    }
  }
  int64_t bytes() const { return static_cast<int64_t>(memory.size()) * (int64_t{64} << 20); }
};

void disk(const fs::path& folder, int64_t mib, int rounds) {
  Weights weights(mib);
  const int64_t megabytes = weights.bytes() >> 20;
  const std::string file = (folder / "dd.bin").string();
  const fs::path run = folder / "bench-checkpoints";
  std::vector<double> direct, cached, ours, whole, dd_read, our_read;
  for (int round = 0; round < rounds; ++round) {
    // From memory, as we do; zeros may be nothing to a disk that compresses.
    const fs::path source = fs::path("/dev/shm") / fmt::format("bench-{}.bin", ::getpid());
    if (round == 0) {
      std::FILE* out = std::fopen(source.c_str(), "wb");
      for (const auto& part : weights.memory) std::fwrite(part.data(), 1, part.size(), out);
      std::fclose(out);
    }
    fs::remove(file);
    direct.push_back(seconds_of(
        fmt::format("dd if={} of={} bs=4M oflag=direct conv=fsync", source.string(), file)));
    forget(folder);
    dd_read.push_back(seconds_of(fmt::format("dd if={} of=/dev/null bs=4M iflag=direct", file)));
    fs::remove(file);
    cached.push_back(
        seconds_of(fmt::format("dd if={} of={} bs=4M conv=fsync", source.string(), file)));
    fs::remove(file);
    fs::remove_all(run);
    const CheckpointAttempt attempt = {checkpoint_path(run / "checkpoints", 1)};
    auto begin = Clock::now();
    prepare_checkpoint(attempt);
    const auto chunks = write_shards(attempt, 0, weights.tensors);
    ours.push_back(since(begin));
    commit_checkpoint(attempt, chunks, {{"step", 1}}, {});
    whole.push_back(since(begin));
    forget(run);
    begin = Clock::now();
    CheckpointReader reader(attempt.dir);
    reader.read(weights.tensors);
    our_read.push_back(since(begin));
    if (round + 1 == rounds) fs::remove(source);
  }
  fs::remove_all(run);
  const auto rate = [&](const std::vector<double>& seconds) {
    return static_cast<double>(megabytes) / median_of(seconds);
  };
  const auto row = [&](const char* name, const std::vector<double>& seconds,
                       const std::vector<double>& peer) {
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(peer[i] / seconds[i]);
    fmt::print("| {} | {:.0f} | {:.2f} |\n", name, rate(seconds), median_of(ratios));
  };
  fmt::print(
      "\n{} MiB, {} rounds, medians; a ratio is taken within its round\n\n"
      "| | MiB/s | of dd |\n|---|---|---|\n",
      megabytes, rounds);
  row("dd oflag=direct conv=fsync", direct, direct);
  row("dd conv=fsync (page cache)", cached, direct);
  row("save: shards written, hashed and on the disk", ours, direct);
  row("save: and committed", whole, direct);
  row("dd iflag=direct", dd_read, dd_read);
  row("load: read, verified and in place", our_read, dd_read);
  std::fflush(stdout);  // the rest takes a while
}

// Steps of a model while its state is being saved all the time, and of the same without.
void overlap(const fs::path& folder, int rounds, int threads) {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 8;
  spec.model.hidden = 512;
  spec.model.heads = 8;
  spec.model.max_seq = 256;
  spec.train.global_batch = 8;
  spec.train.micro_batch = 8;
  spec.train.seq_len = 256;
  spec.train.steps = 100000;
  constexpr int64_t kVocab = 8192;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = kVocab}, 1, diagnostics);
  diagnostics.throw_if_errors();
  const auto device = make_cpu_device(threads);
  const auto world = make_self_world();
  const auto all = world->group(std::vector<int>{0});
  Trainer trainer(plan, spec, *device, *world);
  trainer.initialise();
  const SpreadTokens source(kVocab);
  const Sampler sampler(source.size(), spec.train.seq_len, SampleOrder::random, 1);
  const fs::path checkpoints = folder / "bench-overlap" / "checkpoints";
  CheckpointSaver saver(trainer, plan, *all, true, {});
  int64_t step = 0;
  for (; step < 3; ++step) trainer.step(step, source, sampler, {});
  std::vector<double> alone, overlapped, copies, totals, ratios, with_copy;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> quiet, busy;
    for (int i = 0; i < 8; ++i) {
      const auto begin = Clock::now();
      trainer.step(step++, source, sampler, {});
      quiet.push_back(since(begin));
    }
    const auto whole = Clock::now();
    saver.begin({.attempt = {checkpoint_path(checkpoints, step)},
                 .state = {{"step", step}},
                 .keep = {.last = 1}});
    std::optional<SaveOutcome> outcome;
    while (!outcome) {
      const auto begin = Clock::now();
      const StepResult result = trainer.step(step++, source, sampler, {.saving = saver.writing()});
      saver.step_done(result.requests.saving);
      outcome = saver.take_outcome();
      busy.push_back(since(begin));
    }
    const double steps_of_save = since(whole);
    saver.finish();
    if (outcome->failure) {
      fmt::print(stderr, "{}\n", outcome->failure->what);
      std::exit(1);
    }
    alone.push_back(median_of(quiet));
    overlapped.push_back(median_of(busy));
    copies.push_back(outcome->copy_s);
    totals.push_back(outcome->total_s);
    ratios.push_back(median_of(busy) / median_of(quiet));
    with_copy.push_back(steps_of_save / static_cast<double>(busy.size()) / median_of(quiet));
  }
  fs::remove_all(folder / "bench-overlap");
  fmt::print("\nbackground save of {:.0f} MB on {} threads, {} rounds, medians\n\n",
             static_cast<double>(plan.stages[0].snapshot_bytes) / 1e6, threads, rounds);
  fmt::print(
      "| step alone | step while saving | ratio | copy (training waits) | save in all | "
      "steps and copy, of as many alone |\n|---|---|---|---|---|---|\n");
  fmt::print("| {:.0f} ms | {:.0f} ms | {:.3f} | {:.0f} ms | {:.0f} ms | {:.3f} |\n",
             1e3 * median_of(alone), 1e3 * median_of(overlapped), median_of(ratios),
             1e3 * median_of(copies), 1e3 * median_of(totals), median_of(with_copy));
}

}  // namespace

int main(int argc, char** argv) {
  const auto word = [&](int i, const char* other) {
    return std::string(argc > i ? argv[i] : other);
  };
  const fs::path folder = fs::absolute(word(1, "."));
  const std::string what = word(4, "disk,overlap");
  try {
    if (what.find("disk") != std::string::npos) {
      disk(folder, std::atoll(word(2, "1024").c_str()), std::atoi(word(3, "5").c_str()));
    }
    if (what.find("overlap") != std::string::npos) {
      overlap(folder, std::atoi(word(3, "5").c_str()), std::atoi(word(5, "2").c_str()));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
