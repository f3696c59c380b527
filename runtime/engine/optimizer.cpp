#include "runtime/engine/optimizer.h"

#include <algorithm>
#include <cmath>

namespace mtl {

static_assert(Device::kNormChunk == kSquaresChunk, "the plan has room for the device's chunks");

Optimizer::Optimizer(const Plan& plan, const StagePlan& stage, const TrainSpec::Optimizer& settings,
                     Device& device, const Arena& arena, const RankGroups& groups, CommQueue& data,
                     const Coord& coord)
    : plan_(plan),
      stage_(stage),
      settings_(settings),
      device_(device),
      groups_(groups),
      data_(data),
      coord_(coord),
      shard_(stage.layout.shards > 1 ? coord[Axis::dp] : 0),
      weights_(arena.tensor("weights")),
      grads_(arena.tensor("grads")),
      master_(arena.find_tensor("master")),
      squares_(arena.tensor("squares")),
      row_squares_(arena.tensor("row_squares")),
      gathers_(stage.layout.buckets.size(), 0) {
  for (const char* name : moment_names()) moments_.push_back(arena.tensor(name));
}

std::vector<const char*> Optimizer::moment_names() const {
  if (plan_.optimizer == OptimizerKind::sgd) return {"momentum_buffer"};
  return {"exp_avg", "exp_avg_sq"};
}

Optimizer::State Optimizer::state(size_t param) const {
  State state;
  state.part = owned_part(stage_.layout, stage_.layout.params[param], shard_);
  // With f32 compute the weights are their own master copy.
  state.master =
      master_ ? master_.slice(state.part.state, state.part.count) : weights_of(state.part);
  for (const Tensor& moment : moments_) {
    state.moments.push_back(moment.slice(state.part.state, state.part.count));
  }
  return state;
}

void Optimizer::clear_moments() {
  for (const Tensor& moment : moments_) device_.fill(moment, 0.0f);
}

bool Optimizer::counts(const ParamPlacement& param) const {
  const int copies = tp_copies(plan_.table[param.row], plan_.grid.sizes()[Axis::tp]);
  return coord_[Axis::tp] % copies == 0 && !param.tied_copy;
}

double Optimizer::gradient_norm(std::span<double> extra) {
  const std::vector<ParamPlacement>& params = stage_.layout.params;
  std::vector<double> partials(static_cast<size_t>(squares_.numel()), 0.0);
  const bool divided = stage_.layout.shards > 1;
  if (divided) device_.copy_from_host(squares_, partials.data());
  int64_t base = 0;
  for (const ParamPlacement& param : params) {
    const OwnedPart part = owned_part(stage_.layout, param, shard_);
    int64_t at = base + part.offset / kSquaresChunk - param.offset / kSquaresChunk;
    base += squares_count(param.offset, param.numel);
    // The device counts chunks from where a tensor begins, the plan from the buffer's beginning.
    const int64_t to_border = kSquaresChunk - part.offset % kSquaresChunk;
    const int64_t head = to_border == kSquaresChunk ? 0 : std::min(to_border, part.count);
    if (head > 0) {
      device_.sum_squares(grads_.slice(part.offset, head), squares_.slice(at, 1));
      ++at;
    }
    const int64_t rest = part.count - head;
    if (rest == 0) continue;
    device_.sum_squares(grads_.slice(part.offset + head, rest),
                        squares_.slice(at, squares_count(part.offset + head, rest)));
  }
  if (divided) groups_[Link::data].all_reduce(squares_);
  device_.copy_to_host(partials.data(), squares_);

  const size_t table = plan_.table.size();
  std::vector<double> rows(table + extra.size(), 0.0);
  auto next = partials.cbegin();
  for (const ParamPlacement& param : params) {
    const bool counted = counts(param);
    for (int64_t i = squares_count(param.offset, param.numel); i > 0; --i, ++next) {
      if (counted) rows[param.row] += *next;
    }
  }
  std::copy(extra.begin(), extra.end(), rows.begin() + static_cast<ptrdiff_t>(table));
  if (groups_[Link::norm].size() > 1) {
    device_.copy_from_host(row_squares_, rows.data());
    groups_[Link::norm].all_reduce(row_squares_);
    device_.copy_to_host(rows.data(), row_squares_);
    std::copy(rows.begin() + static_cast<ptrdiff_t>(table), rows.end(), extra.begin());
  }
  double total = 0;
  for (size_t i = 0; i < table; ++i) total += rows[i];
  return std::sqrt(total);
}

void Optimizer::update(const UpdateSettings& settings) {
  const std::vector<ParamPlacement>& params = stage_.layout.params;
  for (const Bucket& bucket : stage_.layout.buckets) {
    for (size_t i = bucket.first_param; i < bucket.end_param; ++i) {
      const State own = state(i);
      if (own.part.count == 0) continue;
      const bool decays = plan_.table[params[i].row].decays;
      const auto weight_decay = decays ? static_cast<float>(settings.weight_decay) : 0.0f;
      const Tensor grad = grads_.slice(own.part.offset, own.part.count);
      const Tensor weights = master_ ? weights_of(own.part) : Tensor{};
      if (plan_.optimizer == OptimizerKind::sgd) {
        device_.sgd({.master = own.master,
                     .momentum_buffer = own.moments[0],
                     .grad = grad,
                     .weights = weights,
                     .lr = static_cast<float>(settings.lr),
                     .momentum = static_cast<float>(settings_.momentum),
                     .weight_decay = weight_decay,
                     .grad_scale = static_cast<float>(settings.grad_scale)});
        continue;
      }
      AdamW args;
      args.master = own.master;
      args.exp_avg = own.moments[0];
      args.exp_avg_sq = own.moments[1];
      args.grad = grad;
      args.weights = weights;
      args.lr = static_cast<float>(settings.lr);
      args.beta1 = static_cast<float>(settings_.beta1);
      args.beta2 = static_cast<float>(settings_.beta2);
      args.eps = static_cast<float>(settings_.eps);
      args.weight_decay = weight_decay;
      args.grad_scale = static_cast<float>(settings.grad_scale);
      args.step = settings.step;
      args.decoupled = plan_.optimizer == OptimizerKind::adamw;
      device_.adamw(args);
    }
    // From the front, as the next forward needs them.
    start_gather(bucket);
  }
}

void Optimizer::start_gather(const Bucket& bucket) {
  if (stage_.layout.shards == 1) return;
  const Tensor all = weights_.slice(bucket.offset, bucket.numel);
  const int64_t length = bucket.numel / stage_.layout.shards;
  const Tensor mine = all.slice(shard_ * length, length);
  Communicator& group = groups_[Link::data];
  const auto index = static_cast<size_t>(&bucket - stage_.layout.buckets.data());
  gathers_[index] = data_.start(all.bytes(), [&group, mine, all] { group.all_gather(mine, all); });
}

void Optimizer::require(int chunk, int64_t layer) {
  const std::vector<Bucket>& buckets = stage_.layout.buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (gathers_[i] == 0) continue;
    // Buckets ascend by chunk and layer; the first layer of the next one bounds this one's.
    const bool behind =
        buckets[i].chunk > chunk || (buckets[i].chunk == chunk && buckets[i].layer > layer);
    // The head reads a tied copy, which lies in a bucket of its own.
    if (behind) break;
    data_.wait(gathers_[i]);
    gathers_[i] = 0;
  }
}

void Optimizer::require_all() {
  data_.wait_all();
  std::fill(gathers_.begin(), gathers_.end(), 0);
}

void Optimizer::refresh_weights() {
  require_all();
  for (size_t i = 0; i < stage_.layout.params.size(); ++i) {
    const State own = state(i);
    if (master_ && own.part.count > 0) device_.cast(own.master, weights_of(own.part));
  }
  for (const Bucket& bucket : stage_.layout.buckets) start_gather(bucket);
  require_all();
}

}  // namespace mtl
