// Going on from where an earlier pass ended gives what one pass over everything gives.
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/engine/init.h"
#include "runtime/model/transformer.h"

using namespace mtl;

namespace {

// A small model for generation with its own memory.
class Model {
 public:
  Model() {
    shape_.layers = 2;
    shape_.heads = shape_.kv_heads = 2;
    shape_.head_dim = 16;
    shape_.hidden = 32;
    shape_.ffn = 128;
    shape_.vocab = 50;
    shape_.vocab_pad_to = shape_.padded_vocab = 64;
    shape_.max_seq = 150;  // more than two blocks of queries
    shape_.init_std = 0.2;
    table_ = shard_table(shape_);
    layout_ = param_layout(table_, GridSizes{});
    memory_ = memory_plan(shape_, table_, layout_,
                          {.micro_batch = 1, .seq = shape_.max_seq, .training = false}, DType::f32);
    const int self = 0;
    group_ = world_->group({&self, 1});
    base_ = device_->allocate(static_cast<size_t>(memory_.total_bytes));
    arena_.emplace(memory_, base_);
    parameters_.emplace(table_, layout_, *arena_);
    const Tensor weights = arena_->get("weights");
    for (const ParamPlacement& p : layout_.params) {
      initialise(table_[p.row], GridSizes{}, Coord{}, 5, weights.as<float>() + p.offset);
    }
    context_.emplace(BlockContext{*device_, *group_, shape_, *arena_, *parameters_, 0});
    model_.emplace(*context_);
  }
  ~Model() { device_->free(base_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::vector<float> next_logits(const std::vector<int32_t>& ids, int64_t past) {
    Pass pass;
    pass.sequences = 1;
    pass.past = past;
    pass.seq = static_cast<int64_t>(ids.size()) - past;
    device_->copy_from_host(arena_->get("tokens").slice(past, pass.seq), ids.data() + past);
    const Tensor logits = model_->next_logits(pass);
    std::vector<float> host(static_cast<size_t>(logits.numel()));
    device_->copy_to_host(host.data(), logits);
    return host;
  }

 private:
  ModelShape shape_;
  std::vector<ParamRow> table_;
  ParamLayout layout_;
  MemoryPlan memory_;
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::unique_ptr<CommWorld> world_ = make_self_world();
  std::unique_ptr<Communicator> group_;
  void* base_ = nullptr;
  std::optional<Arena> arena_;
  std::optional<Parameters> parameters_;
  std::optional<BlockContext> context_;
  std::optional<Transformer> model_;
};

}  // namespace

TEST_CASE("passes that go on give the logits of one pass over everything") {
  std::vector<int32_t> ids(150);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i + 3 * i) % 50);
  Model piecewise;
  int64_t past = 0;
  for (const int64_t length : {1, 2, 3, 40, 63, 64, 65, 66, 128, 149, 150}) {
    const std::vector<int32_t> prefix(ids.begin(), ids.begin() + length);
    const std::vector<float> step = piecewise.next_logits(prefix, past);
    past = length;
    Model whole;
    const std::vector<float> expected = whole.next_logits(prefix, 0);
    REQUIRE(step.size() == 50);
    CAPTURE(length);
    for (size_t i = 0; i < step.size(); ++i) {
      CHECK(step[i] == doctest::Approx(expected[i]).epsilon(1e-4));
    }
  }
}

TEST_CASE("a pass larger than the plan is refused") {
  Model model;
  CHECK_THROWS_AS(model.next_logits(std::vector<int32_t>(151, 0), 0), std::logic_error);
}
