#include "runtime/engine/optimizer.h"

#include <algorithm>

namespace mtl {

static_assert(kNormChunk == kSquaresChunk, "the plan has room for the device's chunks");
static_assert(sizeof(Piece) == kPieceBytes && sizeof(ElementRange) == kRangeBytes,
              "the plan has room for the device's tables");

Optimizer::Optimizer(const Plan& plan, const StagePlan& stage, const TrainSpec::Optimizer& settings,
                     Device& device, const Arena& arena, const RankGroups& groups, DataQueues& data,
                     const Coord& coord)
    : plan_(plan),
      stage_(stage),
      settings_(settings),
      device_(device),
      groups_(groups),
      data_(data),
      coord_(coord),
      holders_(plan.grid.holders(coord)),
      weights_(arena.tensor(stage.layout.shards_weights() ? "weight_shards" : "weights")),
      grads_(arena.tensor(stage.layout.shards_gradients() ? "grad_shards" : "grads")),
      master_(arena.find_tensor("master")),
      squares_(arena.tensor("squares")),
      row_squares_(arena.tensor("row_squares")),
      row_ranges_(arena.tensor("row_ranges")),
      all_{.table = arena.tensor("pieces")},
      second_at_(second_moments(stage.layout, plan.table, holders_, plan.optimizer)),
      moments_(arena.tensor("moments")),
      second_moments_(arena.find_tensor("second_moments")),
      gathers_(stage.layout.buckets.size(), 0) {
  if (plan.optimizer == OptimizerKind::muon) {
    muon_.emplace(plan, stage, settings.muon, device, arena, groups);
  }
  make_tables();
}

// Once, on the device: a step copies none of it.
void Optimizer::make_tables() {
  std::vector<Piece> pieces;
  std::vector<ElementRange> rows(plan_.table.size());
  // Sums of squares of experts lie behind the others: shards bring together each by themselves.
  int64_t partials = 0, partials_of_experts = 0;
  for (const Bucket& bucket : stage_.layout.buckets) {
    for (size_t i = bucket.first_param; i < bucket.end_param && !bucket.experts; ++i) {
      const ParamPlacement& param = stage_.layout.params[i];
      partials_of_experts += squares_count(param.offset, param.numel);
    }
  }
  dense_squares_ = partials_of_experts;
  // Those that are added from here on.
  const auto since = [&](size_t first_piece, int64_t first_cell) {
    const auto first = static_cast<int64_t>(first_piece);
    const int64_t count = static_cast<int64_t>(pieces.size()) - first;
    return Pieces{.table = all_.table.slice(first * kPieceBytes, count * kPieceBytes),
                  .first_cell = first_cell,
                  .cells = all_.cells - first_cell};
  };
  for (const Bucket& bucket : stage_.layout.buckets) {
    int64_t& next = bucket.experts ? partials_of_experts : partials;
    std::vector<std::pair<size_t, int64_t>> matrices;  // and where their sums of squares begin
    const auto add = [&](size_t i, int64_t first_partial) {
      const ParamPlacement& param = stage_.layout.params[i];
      const OwnedPart part = owned_part(stage_.layout, param, holders_);
      if (part.count == 0) return;
      pieces.push_back(
          {.offset = part.gradient,
           .weight = part.weight,
           .state = part.state,
           .second = second_at_[i],
           .count = part.count,
           .cells = all_.cells,
           .partial = first_partial + part.offset / kSquaresChunk - param.offset / kSquaresChunk,
           .decays = plan_.table[param.row].decays ? 1 : 0});
      all_.cells += squares_count(part.offset, part.count);
    };
    const size_t first_piece = pieces.size();
    const int64_t first_cell = all_.cells;
    for (size_t i = bucket.first_param; i < bucket.end_param; ++i) {
      const ParamPlacement& param = stage_.layout.params[i];
      const int64_t chunks = squares_count(param.offset, param.numel);
      if (counts(param)) rows[param.row] = {.first = next, .count = chunks};
      if (muon_ && plan_.table[param.row].matrix) {
        matrices.emplace_back(i, next);
      } else {
        add(i, next);
      }
      next += chunks;
    }
    BucketPieces& of_bucket = buckets_.emplace_back();
    of_bucket.others = since(first_piece, first_cell);
    const size_t first_matrix = pieces.size();
    const int64_t first_cell_of_matrices = all_.cells;
    for (const auto& [param, first_partial] : matrices) add(param, first_partial);
    of_bucket.matrices = since(first_matrix, first_cell_of_matrices);
    of_bucket.all = since(first_piece, first_cell);
  }
  all_.table = all_.table.slice(0, static_cast<int64_t>(pieces.size()) * kPieceBytes);
  device_.copy_from_host(all_.table, pieces.data());
  device_.copy_from_host(row_ranges_, rows.data());
}

Optimizer::State Optimizer::state(size_t param) const {
  State state;
  state.part = owned_part(stage_.layout, stage_.layout.params[param], holders_);
  const Tensor weights = weights_of(state.part);
  if (!master_) {
    state.master.whole = weights;
  } else if (const Tensor own = master_.slice(state.part.state, state.part.count);
             own.dtype == DType::f32) {
    state.master.whole = own;
  } else {
    state.master = {.rests = own, .weights = weights};
  }
  const Tensor moments = moments_.slice(state.part.state, state.part.count);
  const ParamRow& row = plan_.table[stage_.layout.params[param].row];
  if (moments_of(plan_.optimizer, row) == 1) {
    const bool average = plan_.optimizer == OptimizerKind::lion;
    state.moments = {{average ? "exp_avg" : "momentum_buffer", moments}};
  } else {
    state.moments = {{"exp_avg", moments},
                     {"exp_avg_sq", second_moments_.slice(second_at_[param], state.part.count)}};
  }
  return state;
}

Tensor Optimizer::kept_weights(size_t param) const {
  const ParamPlacement& placed = stage_.layout.params[param];
  if (!stage_.layout.shards_weights()) return weights_.slice(placed.offset, placed.numel);
  return weights_of(owned_part(stage_.layout, placed, holders_));
}

void Optimizer::clear_moments() {
  device_.fill(moments_, 0.0f);
  if (second_moments_) device_.fill(second_moments_, 0.0f);
}

bool Optimizer::counts(const ParamPlacement& param) const {
  const int copies = tp_copies(plan_.table[param.row], plan_.grid.sizes()[Axis::tp]);
  // Ranks along ep hold copies of everything but experts.
  const bool copy = coord_[Axis::ep] > 0 && plan_.table[param.row].expert < 0;
  return coord_[Axis::tp] % copies == 0 && !param.tied_copy && !copy;
}

void Optimizer::gradient_norm(const GradientSums& sums) {
  if (stage_.layout.sharded) {
    // The sums of other shards' chunks; a zero of f64 is two of f32.
    device_.fill(Tensor(squares_.data, DType::f32, {2 * squares_.numel()}), 0.0f);
  }
  device_.sum_squares({.pieces = all_, .x = grads_, .partials = squares_});
  if (stage_.layout.sharded) {
    groups_[Link::data].all_reduce(squares_.slice(0, dense_squares_));
    const int64_t experts = squares_.numel() - dense_squares_;
    if (experts > 0 && groups_[Link::expert_data].size() > 1) {
      groups_[Link::expert_data].all_reduce(squares_.slice(dense_squares_, experts));
    }
  }
  const auto rows = static_cast<int64_t>(plan_.table.size());
  const Tensor by_row = row_squares_.slice(0, rows);
  const Tensor behind = row_squares_.slice(rows, sums.requests.numel());
  device_.sum_ranges(squares_, row_ranges_, by_row);
  device_.copy(sums.requests, behind);
  if (groups_[Link::norm].size() > 1) groups_[Link::norm].all_reduce(row_squares_);
  device_.copy(behind, sums.all_requests);
  device_.gradient_scale({.row_squares = by_row,
                          .loss = sums.loss,
                          .counted = sums.counted,
                          .tokens = sums.tokens,
                          .loss_scale = sums.loss_scale,
                          .clip = settings_.clip,
                          .norm = sums.norm,
                          .factor = sums.factor});
}

void Optimizer::adamw(const Pieces& pieces, const UpdateSettings& settings) {
  device_.adamw({.pieces = pieces,
                 .master = master_ ? master_ : weights_,
                 .exp_avg = moments_,
                 .exp_avg_sq = second_moments_,
                 .grad = grads_,
                 .weights = master_ ? weights_ : Tensor{},
                 .factor = settings.factor,
                 .lr = static_cast<float>(settings.lr),
                 .beta1 = static_cast<float>(settings_.beta1),
                 .beta2 = static_cast<float>(settings_.beta2),
                 .eps = static_cast<float>(settings_.eps),
                 .weight_decay = static_cast<float>(settings.weight_decay),
                 .decoupled = plan_.optimizer != OptimizerKind::adam,
                 .step = settings.step});
}

void Optimizer::sgd(const Pieces& pieces, const UpdateSettings& settings) {
  device_.sgd({.pieces = pieces,
               .master = master_ ? master_ : weights_,
               .momentum_buffer = moments_,
               .grad = grads_,
               .weights = master_ ? weights_ : Tensor{},
               .factor = settings.factor,
               .lr = static_cast<float>(settings.lr),
               .momentum = static_cast<float>(settings_.momentum),
               .weight_decay = static_cast<float>(settings.weight_decay)});
}

void Optimizer::lion(const Pieces& pieces, const UpdateSettings& settings) {
  device_.lion({.pieces = pieces,
                .master = master_ ? master_ : weights_,
                .exp_avg = moments_,
                .grad = grads_,
                .weights = master_ ? weights_ : Tensor{},
                .factor = settings.factor,
                .lr = static_cast<float>(settings.lr),
                .beta1 = static_cast<float>(settings_.beta1),
                .beta2 = static_cast<float>(settings_.beta2),
                .weight_decay = static_cast<float>(settings.weight_decay)});
}

void Optimizer::descend(const Pieces& pieces, const UpdateSettings& settings) {
  device_.descend({.pieces = pieces,
                   .master = master_ ? master_ : weights_,
                   .grad = grads_,
                   .weights = master_ ? weights_ : Tensor{},
                   .factor = settings.factor,
                   .lr = static_cast<float>(settings.lr),
                   .weight_decay = static_cast<float>(settings.weight_decay)});
}

void Optimizer::update(const UpdateSettings& settings) {
  if (muon_) {
    for (const BucketPieces& bucket : buckets_) {
      if (bucket.matrices.cells == 0) continue;
      device_.momentum({.pieces = bucket.matrices,
                        .buffer = moments_,
                        .grad = grads_,
                        .factor = settings.factor,
                        .momentum = static_cast<float>(settings_.muon.momentum),
                        .nesterov = settings_.muon.nesterov});
    }
    muon_->orthogonalize_all(grads_);
  }
  const auto run = [&](const BucketPieces& pieces) {
    if (muon_) {
      if (pieces.others.cells > 0) adamw(pieces.others, settings);
      if (pieces.matrices.cells > 0) descend(pieces.matrices, settings);
    } else if (plan_.optimizer == OptimizerKind::sgd) {
      sgd(pieces.all, settings);
    } else if (plan_.optimizer == OptimizerKind::lion) {
      lion(pieces.all, settings);
    } else {
      adamw(pieces.all, settings);
    }
  };
  const bool gathers = stage_.layout.sharded && !stage_.layout.shards_weights();
  if (!gathers && !muon_) return run({.all = all_});
  // From the front, as the next forward needs them: what is done travels beside the rest.
  for (size_t i = 0; i < buckets_.size(); ++i) {
    run(buckets_[i]);
    if (gathers) start_gather(stage_.layout.buckets[i]);
  }
}

void Optimizer::start_gather(const Bucket& bucket) {
  if (bucket.shards == 1 || stage_.layout.shards_weights()) return;
  const Tensor all = weights_.slice(bucket.offset, bucket.numel);
  const int64_t length = bucket.numel / bucket.shards;
  const Tensor mine = all.slice(shard_of(bucket, holders_) * length, length);
  Communicator& group = groups_.holders(bucket);
  const auto index = static_cast<size_t>(&bucket - stage_.layout.buckets.data());
  gathers_[index] =
      data_.of(bucket).start(all.bytes(), [&group, mine, all] { group.all_gather(mine, all); });
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
    data_.of(buckets[i]).wait(gathers_[i]);
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
    // Where they are f32 themselves or have a part of their own in the masters nothing is to make.
    const bool copies = master_ && own.master.whole;
    if (copies && own.part.count > 0) device_.cast(own.master.whole, weights_of(own.part));
  }
  for (const Bucket& bucket : stage_.layout.buckets) start_gather(bucket);
  require_all();
}

}  // namespace mtl
