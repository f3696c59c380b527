// The optimizer of a rank: the norm of all gradients, the update of the rank's shard of the state
// (all of it without ZeRO), and the gathering of the new weights while the next forward runs. (With
// ZeRO-3 a layer's weights are gathered when they are read: engine/weight_windows.h.)
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/engine/data_queues.h"
#include "runtime/engine/masters.h"
#include "runtime/engine/muon.h"
#include "runtime/model/context.h"
#include "runtime/plan/plan.h"

namespace mtl {

// What the norm of a step's gradients is made of, and where it goes (see GradientScale).
struct GradientSums {
  Tensor loss, counted;
  double tokens = 1, loss_scale = 1;
  Tensor norm, factor;
  Tensor requests, all_requests;  // f64: travel along, and come back summed over TP x PP
};

struct UpdateSettings {
  double lr = 0;
  double weight_decay = 0;
  Tensor factor;     // of the gradients, on the device; NaN: there is no update
  int64_t step = 1;  // of updates, from 1
};

class Optimizer {
 public:
  Optimizer(const Plan& plan, const StagePlan& stage, const TrainSpec::Optimizer& settings,
            Device& device, const Arena& arena, const RankGroups& groups, DataQueues& data,
            const Coord& coord);

  // The L2 norm over all parameters of the model, each element once: sums of squares by fixed
  // chunks, added by row and then over the rows of the table, so that neither stages nor shards
  // change it. All of it is enqueued on the device, and so is the update behind it: the host knows
  // neither norm nor factor.
  void gradient_norm(const GradientSums& sums);
  // Enqueues the update, and starts to gather the new weights (which are the old ones where there
  // was no update).
  void update(const UpdateSettings& settings);

  // The gradients that the rank keeps: of everything, or of its shards.
  Tensor gradients() const { return grads_; }
  // A parameter's weights that it keeps: all of them, but with ZeRO-3 those of its shard.
  Tensor kept_weights(size_t param) const;

  // Waits until the weights of a layer are complete, where they stay so.
  void require(int chunk, int64_t layer);
  void require_all();
  // After the masters were written: all ranks get the weights that belong to them.
  void refresh_weights();

  // The rank's part of a parameter, and the state that belongs to it.
  struct State {
    OwnedPart part;
    Masters master;
    std::vector<std::pair<const char*, Tensor>> moments;  // f32, as they are called in checkpoints
  };
  State state(size_t param) const;
  void clear_moments();

 private:
  Tensor weights_of(const OwnedPart& part) const { return weights_.slice(part.weight, part.count); }
  void start_gather(const Bucket& bucket);
  bool counts(const ParamPlacement& param) const;
  void make_tables();
  void adamw(const Pieces& pieces, const UpdateSettings& settings);
  void sgd(const Pieces& pieces, const UpdateSettings& settings);
  void lion(const Pieces& pieces, const UpdateSettings& settings);
  void descend(const Pieces& pieces, const UpdateSettings& settings);

  // Of a bucket on this rank: with Muon what has AdamW, and behind that the matrices.
  struct BucketPieces {
    Pieces all = {}, others = {}, matrices = {};
  };

  const Plan& plan_;
  const StagePlan& stage_;
  const TrainSpec::Optimizer& settings_;
  Device& device_;
  const RankGroups& groups_;
  DataQueues& data_;
  const Coord coord_;
  const Holders holders_;
  int64_t dense_squares_ = 0;  // of squares_, those before experts of their own buckets
  Tensor weights_, grads_;     // that the rank keeps
  Tensor master_, squares_, row_squares_, row_ranges_;
  Pieces all_;                         // of this rank
  std::vector<BucketPieces> buckets_;  // the same by bucket
  std::vector<int64_t> second_at_;     // by parameter: where its second moments begin
  Tensor moments_, second_moments_;
  std::optional<Muon> muon_;
  std::vector<CommQueue::Ticket> gathers_;  // by bucket; 0 = complete
};

}  // namespace mtl
