// Any layout loads any checkpoint, bit for bit; and what is on the disk is plain safetensors.
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/files.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/problem.h"
#include "runtime/checkpoint/rectangles.h"
#include "support/no_threads.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;

TEST_CASE("layouts: saved in one random layout, loaded in another, bit-equal") {
  const auto model = small_model();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    TempDir dir;
    auto writers = random_layout(model, 1 + static_cast<int>(random() % 5), random);
    save(dir.path() / "checkpoints", 7, model, writers);
    const auto path = checkpoint_path(dir.path() / "checkpoints", 7);
    CHECK(intact(path, model));
    for (RankTensors& rank : random_layout(model, 1 + static_cast<int>(random() % 5), random)) {
      CheckpointReader reader(path);
      for (CheckpointTensor& tensor : rank.tensors) reader.read(tensor);
      CHECK(correct(rank, model, 7));
      // Again, now that the chunks are verified and only parts of them are read.
      for (auto& bytes : rank.storage) std::fill(bytes.begin(), bytes.end(), '\xEE');
      for (CheckpointTensor& tensor : rank.tensors) reader.read(tensor);
      CHECK(correct(rank, model, 7));
    }
  }
}

TEST_CASE("layouts: where no thread can be started the one there is reads everything") {
  const auto model = small_model();
  TempDir dir;
  std::mt19937_64 random(1);
  auto writers = random_layout(model, 2, random);
  save(dir.path() / "checkpoints", 7, model, writers);
  const NoThreads poor;
  CheckpointReader reader(checkpoint_path(dir.path() / "checkpoints", 7));
  reader.verify();
  RankTensors whole = whole_layout(model);
  reader.read(whole.tensors);
  CHECK(correct(whole, model, 7));
}

TEST_CASE("layouts: tensors larger than every buffer, split by rows and by columns") {
  const std::vector<GlobalTensor> model = {{"big", DType::f32, {1500, 2001}, false}};
  const auto split = [&](size_t axis, int parts) {
    std::vector<RankTensors> ranks;
    for (int i = 0; i < parts; ++i) {
      RankTensors rank = whole_layout(model);
      CheckpointTensor& tensor = rank.tensors[0];
      const int64_t begin = tensor.shape[axis] * i / parts;
      tensor.rects[0].global_offset[axis] = begin;
      tensor.rects[0].extent[axis] = tensor.shape[axis] * (i + 1) / parts - begin;
      tensor.local_shape = tensor.rects[0].extent;
      rank.storage[0].assign(*volume(tensor.local_shape) * 4, '\xEE');
      tensor.data = rank.storage[0].data();
      ranks.push_back(std::move(rank));
    }
    return ranks;
  };
  for (const auto& [from_axis, from, to_axis, to] :
       std::vector<std::tuple<size_t, int, size_t, int>>{
           {0, 1, 1, 2}, {1, 2, 0, 4}, {0, 4, 0, 1}, {1, 3, 1, 2}}) {
    TempDir dir;
    auto writers = split(from_axis, from);
    save(dir.path() / "checkpoints", 1, model, writers);
    for (RankTensors& rank : split(to_axis, to)) {
      CheckpointReader reader(checkpoint_path(dir.path() / "checkpoints", 1));
      reader.read(rank.tensors[0]);
      CHECK(correct(rank, model, 1));
    }
  }
}

TEST_CASE("rectangles: runs are what element by element gives, as long as possible") {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const size_t axes = random() % 5;
    Dims a_shape, a_offset, b_shape, b_offset, extent;
    for (size_t d = 0; d < axes; ++d) {
      const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
      extent.push_back(pick(4) + (seed % 10 ? 1 : 0));
      const bool tight = pick(2);
      a_offset.push_back(tight ? 0 : pick(3));
      b_offset.push_back(tight ? 0 : pick(3));
      a_shape.push_back(a_offset[d] + extent[d] + (tight ? 0 : pick(3)));
      b_shape.push_back(b_offset[d] + extent[d] + (tight ? 0 : pick(3)));
    }
    std::vector<std::pair<int64_t, int64_t>> expected, got;
    Dims index(axes, 0);
    for (int64_t left = *volume(extent); left > 0; --left) {
      int64_t a = 0, b = 0;
      for (size_t d = 0; d < axes; ++d) {
        a = a * a_shape[d] + a_offset[d] + index[d];
        b = b * b_shape[d] + b_offset[d] + index[d];
      }
      expected.emplace_back(a, b);
      for (size_t d = axes; d-- > 0;) {
        if (++index[d] < extent[d]) break;
        index[d] = 0;
      }
    }
    int runs = 0;
    for (RunCursor run(a_shape, a_offset, b_shape, b_offset, extent); !run.done(); run.next()) {
      ++runs;
      for (int64_t i = 0; i < run.length(); ++i) got.emplace_back(run.a() + i, run.b() + i);
    }
    CAPTURE(seed);
    REQUIRE(got == expected);
    if (a_shape == extent && b_shape == extent && !expected.empty()) CHECK(runs == 1);
  }
}

TEST_CASE("rectangles: the first hole, and volumes that do not overflow") {
  CHECK(!first_hole({4, 4}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}}));
  const auto hole = first_hole({4, 4}, {{{0, 0}, {2, 4}}, {{2, 1}, {2, 3}}});
  REQUIRE(hole);
  CHECK(to_string(*hole) == "[2:4, 0:1]");
  CHECK(first_hole({}, {}));
  CHECK(!first_hole({}, {{{}, {}}}));
  CHECK(!first_hole({0, 3}, {}));
  CHECK(!volume({int64_t{1} << 40, int64_t{1} << 40}));
  CHECK(volume({int64_t{1} << 40, int64_t{1} << 40, 0}) == 0);
  CHECK(!volume({-1, 2}));
  CHECK(!volume({-1, -2}));
  CHECK(!inside({{INT64_MAX}, {2}}, {5}));
  CHECK(!inside({{1}, {INT64_MAX}}, {5}));
  CHECK(!inside({{-1}, {2}}, {5}));
}

TEST_CASE("commit: parts that do not tile are refused, and nothing is committed") {
  const auto model = small_model();
  TempDir dir;
  const auto path = checkpoint_path(dir.path() / "checkpoints", 1);
  RankTensors rank = whole_layout(model);
  fill(rank, model, 1);
  prepare_checkpoint({path});
  const auto good = write_shards({path}, 0, rank.tensors);
  const auto refused = [&](const std::vector<ChunkRecord>& chunks, const std::string& code) {
    CHECK(code_of([&] { commit_checkpoint({path}, chunks, {}, {}); }) == code);
    CHECK(check_commit(path).state == CommitState::missing);
    CHECK(check_commit(written_path({path})).state == CommitState::uncommitted);
  };
  auto bad = good;
  bad[0].extent[0] -= 1;  // a hole
  refused(bad, "ckpt.tiling");
  bad = good;
  bad[0].extent[0] += 1;  // beyond the end
  refused(bad, "ckpt.tiling");
  bad = good;
  bad.push_back(good[0]);  // twice
  refused(bad, "ckpt.tiling");
  bad = good;
  bad.push_back(good[2]);  // a scalar twice
  refused(bad, "ckpt.tiling");
  bad = good;
  bad.push_back(good[0]);
  bad.back().shape[0] += 1;
  refused(bad, "ckpt.tiling");
  bad = good;
  bad[0].offset.pop_back();
  refused(bad, "ckpt.tiling");
  bad = good;
  bad[0].byte_offset += 64;
  refused(bad, "ckpt.file");
  bad = good;
  bad.pop_back();  // the file has more than was reported
  refused(bad, "ckpt.file");
  bad = good;
  bad[0].file = "model-r00009.safetensors";
  refused(bad, "ckpt.file");
  CHECK(commit_checkpoint({path, 0}, good, {{"step", 1}}, {}).empty());
  CHECK(CheckpointReader(path).state() == nlohmann::json{{"step", 1}, {"fence", 0}});
  CHECK(intact(path, model));
  // Once committed it stays as it is.
  CHECK(code_of([&] { commit_checkpoint({path}, good, {}, {}); }) == "ckpt.exists");
  CHECK(code_of([&] { prepare_checkpoint({path}); }) == "ckpt.exists");
  CHECK(code_of([&] { prepare_checkpoint({path, 1}); }) == "ckpt.exists");
  CHECK(intact(path, model));
}

TEST_CASE("writing: tensors that make no sense are refused before a file exists") {
  const std::vector<GlobalTensor> model = {{"w", DType::f32, {4, 4}, false}};
  TempDir dir;
  const CheckpointAttempt attempt = {checkpoint_path(dir.path(), 1), 2};
  prepare_checkpoint(attempt);
  const auto refused = [&](const std::function<void(CheckpointTensor&)>& spoil) {
    RankTensors rank = whole_layout(model);
    spoil(rank.tensors[0]);
    CHECK(code_of([&] { write_shards(attempt, 0, rank.tensors); }) == "ckpt.tensor");
    CHECK(std::filesystem::is_empty(written_path(attempt)));
  };
  refused([](CheckpointTensor& t) { t.rects[0].extent[0] = 5; });
  refused([](CheckpointTensor& t) { t.rects[0].local_offset[1] = 1; });
  refused([](CheckpointTensor& t) { t.local_shape = {4}; });
  refused([](CheckpointTensor& t) { t.rects.push_back(t.rects[0]); });
  refused([](CheckpointTensor& t) { t.shape = {int64_t{1} << 40, int64_t{1} << 40}; });
}

TEST_CASE("reading: names, shapes and types have to be those of the checkpoint") {
  const auto model = small_model();
  TempDir dir;
  std::vector<RankTensors> ranks;
  ranks.push_back(whole_layout(model));
  save(dir.path() / "checkpoints", 1, model, ranks);
  CheckpointReader reader(checkpoint_path(dir.path() / "checkpoints", 1));
  const auto code = [&](const std::function<void(CheckpointTensor&)>& spoil) {
    RankTensors rank = whole_layout(model);
    spoil(rank.tensors[0]);
    return code_of([&] { reader.read(rank.tensors[0]); });
  };
  CHECK(code([](CheckpointTensor&) {}).empty());
  CHECK(code([](CheckpointTensor& t) { t.name = "wte.weigth"; }) == "ckpt.tensor");
  CHECK(code([](CheckpointTensor& t) { t.dtype = DType::i32; }) == "ckpt.shape");
  CHECK(code([](CheckpointTensor& t) { t.shape = {12, 8}; }) == "ckpt.shape");
  CHECK(code([](CheckpointTensor& t) { t.shape = {8, 13}; }) == "ckpt.shape");
  CHECK(code([](CheckpointTensor& t) { t.rects[0].global_offset[0] = 1; }) == "ckpt.shape");
  CHECK(code([](CheckpointTensor& t) { t.local_shape[0] = 12; }) == "ckpt.shape");
  CHECK(code([](CheckpointTensor& t) { t.rects[0].extent = {0, 8}; }).empty());
}

TEST_CASE("files: plain safetensors, data aligned to 64, read by hand") {
  const auto model = small_model();
  TempDir dir;
  std::vector<RankTensors> ranks;
  ranks.push_back(whole_layout(model));
  save(dir.path() / "checkpoints", 3, model, ranks);
  size_t found = 0;
  for (const std::string name : {"model-r00000.safetensors", "optim-r00000.safetensors"}) {
    const std::string file = read_file(checkpoint_path(dir.path() / "checkpoints", 3) / name);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    REQUIRE(8 + length <= file.size());
    CHECK((8 + length) % 64 == 0);
    CHECK(file[8] == '{');
    const auto header = nlohmann::json::parse(file.substr(8, length));
    size_t end = 0;
    for (const auto& [tensor_name, entry] : header.items()) {
      if (tensor_name == "__metadata__") {
        for (const auto& value : entry) CHECK(value.is_string());
        continue;
      }
      const auto tensor = std::find_if(model.begin(), model.end(),
                                       [&](const auto& t) { return t.name == tensor_name; });
      REQUIRE(tensor != model.end());
      ++found;
      CHECK(entry["dtype"] == std::string(safetensors_name(tensor->dtype)));
      CHECK(entry["shape"] == tensor->shape);
      const size_t from = entry["data_offsets"][0], to = entry["data_offsets"][1];
      const auto bytes = true_bytes(*tensor, 3);
      REQUIRE(to - from == bytes.size());
      CHECK(file.substr(8 + length + from, to - from) == std::string(bytes.begin(), bytes.end()));
      end = std::max(end, to);
    }
    CHECK(8 + length + end == file.size());
  }
  CHECK(found == model.size());
}

}  // namespace
}  // namespace mtl
