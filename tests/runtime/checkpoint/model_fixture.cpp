#include "model_fixture.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "runtime/checkpoint/hash.h"

namespace mtl::test {

namespace {

using Dims = std::vector<int64_t>;

int64_t count(const Dims& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

// Calls with (element in the global tensor, element in the local one), naively: an oracle.
void for_each_element(const CheckpointTensor& tensor, const ParamRect& rect,
                      const std::function<void(int64_t, int64_t)>& call) {
  Dims index(rect.extent.size(), 0);
  for (int64_t left = count(rect.extent); left > 0; --left) {
    int64_t global = 0, local = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      global = global * tensor.shape[d] + rect.global_offset[d] + index[d];
      local = local * tensor.local_shape[d] + rect.local_offset[d] + index[d];
    }
    call(global, local);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < rect.extent[d]) break;
      index[d] = 0;
    }
  }
}

void cut(const ParamRect& rect, int depth, std::mt19937_64& random, std::vector<ParamRect>& out) {
  const size_t axes = rect.extent.size();
  if (depth == 0 || axes == 0) return out.push_back(rect);
  const size_t axis = random() % axes;
  if (rect.extent[axis] < 2) return out.push_back(rect);
  const int64_t at = 1 + static_cast<int64_t>(random() % (rect.extent[axis] - 1));
  ParamRect low = rect, high = rect;
  low.extent[axis] = at;
  high.extent[axis] -= at;
  high.global_offset[axis] += at;
  cut(low, random() % 4 ? depth - 1 : 0, random, out);
  cut(high, random() % 4 ? depth - 1 : 0, random, out);
}

// Stacks the rectangles of one rank along the first axis of a local tensor with gaps.
void place(CheckpointTensor& tensor, std::mt19937_64& random) {
  tensor.local_shape.assign(tensor.shape.size(), 0);
  if (tensor.shape.empty()) return;
  int64_t next = static_cast<int64_t>(random() % 2);
  for (ParamRect& rect : tensor.rects) {
    rect.local_offset.assign(tensor.shape.size(), 0);
    rect.local_offset[0] = next;
    next += rect.extent[0] + static_cast<int64_t>(random() % 2);
    for (size_t d = 1; d < rect.extent.size(); ++d) {
      rect.local_offset[d] = static_cast<int64_t>(random() % 2);
      tensor.local_shape[d] =
          std::max(tensor.local_shape[d],
                   rect.local_offset[d] + rect.extent[d] + static_cast<int64_t>(random() % 2));
    }
  }
  tensor.local_shape[0] = next;
}

void allocate(RankTensors& rank) {
  for (CheckpointTensor& tensor : rank.tensors) {
    rank.storage.emplace_back(count(tensor.local_shape) * bytes_of(tensor.dtype), '\xEE');
    tensor.data = rank.storage.back().data();
  }
}

CheckpointTensor describe(const GlobalTensor& global) {
  return {.name = global.name,
          .dtype = global.dtype,
          .shape = global.shape,
          .local_shape = {},
          .rects = {},
          .data = nullptr,
          .optimizer = global.optimizer};
}

const GlobalTensor& named(const std::vector<GlobalTensor>& model, const std::string& name) {
  return *std::find_if(model.begin(), model.end(),
                       [&](const GlobalTensor& tensor) { return tensor.name == name; });
}

}  // namespace

std::vector<GlobalTensor> small_model() {
  return {{"wte.weight", DType::f32, {13, 8}, false},
          {"attn.qkv.weight", DType::bf16, {12, 6}, false},
          {"scale", DType::f32, {}, false},
          {"empty", DType::f32, {0, 4}, false},
          {"mask", DType::u8, {37}, false},
          {"conv", DType::f64, {3, 4, 2, 5}, false},
          {"wte.weight.exp_avg", DType::f32, {13, 8}, true},
          {"h.\"0\"\\\xC3\xA4.exp_avg_sq", DType::i32, {5, 7, 3}, true}};
}

std::vector<char> true_bytes(const GlobalTensor& tensor, uint64_t salt) {
  std::vector<char> bytes(count(tensor.shape) * bytes_of(tensor.dtype));
  std::mt19937_64 random(Xxh3::of(tensor.name) ^ salt * 0x9E3779B97F4A7C15);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

std::vector<RankTensors> random_layout(const std::vector<GlobalTensor>& model, int ranks,
                                       std::mt19937_64& random) {
  std::vector<RankTensors> layout(ranks);
  for (const GlobalTensor& global : model) {
    std::vector<ParamRect> pieces;
    const Dims zero(global.shape.size(), 0);
    cut({zero, zero, global.shape}, 1 + static_cast<int>(random() % 4), random, pieces);
    for (RankTensors& rank : layout) rank.tensors.push_back(describe(global));
    for (const ParamRect& piece : pieces) {
      layout[random() % ranks].tensors.back().rects.push_back(piece);
    }
    for (RankTensors& rank : layout) place(rank.tensors.back(), random);
  }
  for (RankTensors& rank : layout) allocate(rank);
  return layout;
}

RankTensors whole_layout(const std::vector<GlobalTensor>& model) {
  RankTensors rank;
  for (const GlobalTensor& global : model) {
    const Dims zero(global.shape.size(), 0);
    rank.tensors.push_back(describe(global));
    rank.tensors.back().local_shape = global.shape;
    rank.tensors.back().rects = {{zero, zero, global.shape}};
  }
  allocate(rank);
  return rank;
}

void fill(RankTensors& rank, const std::vector<GlobalTensor>& model, uint64_t salt) {
  for (CheckpointTensor& tensor : rank.tensors) {
    const auto bytes = true_bytes(named(model, tensor.name), salt);
    const int64_t size = bytes_of(tensor.dtype);
    for (const ParamRect& rect : tensor.rects) {
      for_each_element(tensor, rect, [&](int64_t global, int64_t local) {
        std::memcpy(static_cast<char*>(tensor.data) + local * size, bytes.data() + global * size,
                    size);
      });
    }
  }
}

bool correct(const RankTensors& rank, const std::vector<GlobalTensor>& model, uint64_t salt) {
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    const CheckpointTensor& tensor = rank.tensors[i];
    const auto bytes = true_bytes(named(model, tensor.name), salt);
    const int64_t size = bytes_of(tensor.dtype);
    std::vector<char> expected(rank.storage[i].size(), '\xEE');
    for (const ParamRect& rect : tensor.rects) {
      for_each_element(tensor, rect, [&](int64_t global, int64_t local) {
        std::memcpy(expected.data() + local * size, bytes.data() + global * size, size);
      });
    }
    if (expected != rank.storage[i]) return false;
  }
  return true;
}

namespace {

uint64_t salt_of(int64_t step, int64_t fence) {
  return static_cast<uint64_t>(step + 1'000'000 * fence);
}

}  // namespace

void save(const std::filesystem::path& checkpoints_dir, int64_t step,
          const std::vector<GlobalTensor>& model, std::vector<RankTensors>& ranks,
          int64_t keep_last, int64_t fence, const std::function<void()>& still_ours) {
  const CheckpointAttempt attempt = {checkpoint_path(checkpoints_dir, step), fence};
  if (still_ours) still_ours();
  prepare_checkpoint(attempt);
  std::vector<ChunkRecord> chunks;
  for (size_t r = 0; r < ranks.size(); ++r) {
    fill(ranks[r], model, salt_of(step, fence));
    const auto written = write_shards(attempt, static_cast<int>(r), ranks[r].tensors);
    // As it travels between ranks.
    const auto received = chunks_from_json(nlohmann::json::parse(to_json(written).dump()));
    chunks.insert(chunks.end(), received.begin(), received.end());
  }
  if (still_ours) still_ours();
  commit_checkpoint(attempt, chunks, {{"step", step}}, {.last = keep_last});
}

bool intact(const std::filesystem::path& dir, const std::vector<GlobalTensor>& model) {
  CheckpointReader reader(dir);
  const auto step = reader.state().at("step").get<int64_t>();
  const auto fence = reader.state().at("fence").get<int64_t>();
  RankTensors whole = whole_layout(model);
  for (CheckpointTensor& tensor : whole.tensors) reader.read(tensor);
  return dir == checkpoint_path(dir.parent_path(), step) &&
         correct(whole, model, salt_of(step, fence));
}

std::set<std::string> names_in(const std::filesystem::path& dir) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    found.insert(entry.path().filename().string());
  }
  return found;
}

}  // namespace mtl::test
