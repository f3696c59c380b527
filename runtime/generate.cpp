#include "runtime/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <Random123/philox.h>
#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/data.h"
#include "runtime/model/transformer.h"
#include "runtime/run.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

fs::path checkpoint_of(const fs::path& run) {
  if (fs::exists(run / "manifest.json")) return run;
  Diagnostics passed_over;
  const fs::path newest =
      newest_intact_checkpoint(run / "checkpoints", Damaged::pass_over, passed_over);
  passed_over.throw_if_errors(Exit::data);
  for (const Diagnostic& warning : passed_over.all()) fmt::print(stderr, "{}", render(warning));
  if (newest.empty()) {
    throw Error(Exit::data,
                {.code = "ckpt.missing",
                 .what = run.string() + " has no complete checkpoint yet",
                 .help = "train it first: mtl launch " + (run / "train.yaml").string()});
  }
  return newest;
}

// Draws from softmax(logits / temperature) over the top_k largest, by a counter-based uniform
// number: the same (seed, index) gives the same draw.
int32_t sample(std::vector<float>& logits, const GenerateOptions& options, int64_t index) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  // Ties go to the smaller id, so that the order is the same everywhere.
  auto larger = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(ids.begin(), ids.end(), larger);
  const size_t kept = options.top_k > 0
                          ? std::min<size_t>(static_cast<size_t>(options.top_k), ids.size())
                          : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(kept), ids.end(), larger);
  ids.resize(kept);
  const double top = logits[static_cast<size_t>(ids.front())];
  std::vector<double> cumulative;
  double total = 0;
  for (int32_t id : ids) {
    total += std::exp((logits[static_cast<size_t>(id)] - top) / options.temperature);
    cumulative.push_back(total);
  }
  const auto words = r123::Philox4x32()(
      {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
      {{static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)}});
  const double target = (words[0] + 0.5) * 0x1p-32 * total;
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), target);
  return ids[std::min(static_cast<size_t>(at - cumulative.begin()), kept - 1)];
}

// A model for one sequence, f32, without gradients.
class Generator {
 public:
  explicit Generator(const fs::path& checkpoint) : reader_(checkpoint) {
    shape_ = model_shape_from_json(reader_.state().at("model"));
    tokenizer_ = tokenizer_from_json(reader_.state().at("tokenizer"));
    table_ = shard_table(shape_);
    layout_ = param_layout(table_, GridSizes{});
    memory_ = memory_plan(shape_, table_, layout_,
                          {.micro_batch = 1, .seq = shape_.max_seq, .tp = 1, .training = false},
                          DType::f32);
    device_ = make_cpu_device();
    world_ = make_self_world();
    const int self = 0;
    group_ = world_->group({&self, 1});
    base_ = device_->allocate(static_cast<size_t>(memory_.total_bytes));
    arena_ = std::make_unique<Arena>(memory_, base_);
    parameters_ = std::make_unique<Parameters>(table_, layout_, *arena_);
    load();
    context_ = std::make_unique<BlockContext>(
        BlockContext{*device_, *group_, shape_, *arena_, *parameters_, 0});
    model_ = std::make_unique<Transformer>(*context_);
  }
  ~Generator() { device_->free(base_); }
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // The logits after `ids`, which begin with the ids of the call before. Only new ids are computed:
  // the keys and values of the others are still there. When the context is full it starts anew with
  // its second half.
  std::vector<float> next_logits(const std::vector<int32_t>& ids) {
    const auto length = static_cast<int64_t>(ids.size());
    Pass pass;
    pass.sequences = 1;
    if (length - window_ > shape_.max_seq) {
      // A long prompt fills the context; later there has to be room to go on.
      const int64_t kept = known_ == 0 ? shape_.max_seq : shape_.max_seq / 2;
      window_ = length - std::max<int64_t>(1, kept);
      known_ = window_;
    }
    pass.past = known_ - window_;
    pass.seq = length - known_;
    device_->copy_from_host(arena_->get("tokens").slice(pass.past, pass.seq), ids.data() + known_);
    known_ = length;
    const Tensor logits = model_->next_logits(pass);
    std::vector<float> host(static_cast<size_t>(logits.numel()));
    device_->copy_to_host(host.data(), logits);
    return host;
  }

 private:
  void load() {
    const Tensor weights = arena_->get("weights");
    for (const ParamPlacement& placement : layout_.params) {
      const ParamRow& row = table_[placement.row];
      CheckpointTensor tensor;
      tensor.name = row.name;
      tensor.shape = row.shape;
      tensor.local_shape = placement.shape;
      tensor.rects = local_rects(row, GridSizes{}, Coord{});
      tensor.data = weights.slice(placement.offset, placement.numel).data;
      reader_.read(tensor);
    }
  }

  CheckpointReader reader_;
  ModelShape shape_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<ParamRow> table_;
  ParamLayout layout_;
  MemoryPlan memory_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<CommWorld> world_;
  std::unique_ptr<Communicator> group_;
  void* base_ = nullptr;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<BlockContext> context_;
  std::unique_ptr<Transformer> model_;
  int64_t window_ = 0;  // the id at which the context begins
  int64_t known_ = 0;   // ids before this one are in the buffers
};

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  Generator generator(checkpoint_of(find_run(options.run)));
  std::vector<int32_t> ids = generator.tokenizer().encode(options.prompt);
  if (ids.empty()) {
    throw Error(Exit::usage,
                {.code = "generate.prompt",
                 .what = "the prompt is empty",
                 .help = "give at least one character to begin with, e.g. a newline: $'\\n'"});
  }
  for (int64_t i = 0; i < options.tokens; ++i) {
    std::vector<float> logits = generator.next_logits(ids);
    const int32_t next = sample(logits, options, i);
    ids.push_back(next);
    emit(generator.tokenizer().decode({&next, 1}));
  }
}

}  // namespace mtl
