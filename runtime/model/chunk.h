// A chunk of the model: the layers of one virtual pipeline stage, with the embedding if it is the
// first and the head if it is the last. The whole model is one chunk when there is no pipeline.
#pragma once

#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "runtime/model/blocks.h"
#include "runtime/plan/recompute.h"
#include "runtime/plan/schedule/pipeline.h"

namespace mtl {

// What somebody does between the layers of a pass: -1 = embedding, layers = final norm and head.
// Any of them may be empty.
struct BetweenLayers {
  std::function<void(int64_t layer)> reads;   // before weights of the layer are read
  std::function<void(int64_t layer)> writes;  // before its first gradient is written
  std::function<void(int64_t layer)> done;    // when backward has written its last gradient
  // A layer's weights may go when those of the next one are read.
  bool let_go = false;
};

class Chunk {
 public:
  Chunk(const BlockContext& context, const ChunkRange& range);
  const ChunkRange& range() const { return range_; }

  // From the tokens, or from the input that an earlier stage sent; to the losses (head), or to the
  // output for the next stage. In training the head makes its gradients at once, from the losses
  // times pass.loss_scale. A pass with `past` goes on where earlier ones ended: their keys and
  // values are still in the buffers.
  void forward(const Pass& pass, const BetweenLayers& between = {}) const;
  // After forward of the same pass: adds to or writes every other gradient. From the head's, or
  // from "dresidual", where the next stage's gradient lies; leaves that of the input in
  // "dresidual".
  void backward(const Pass& pass, const BetweenLayers& between = {}) const;
  // Where the plan has memory for what backward leaves for later: after backward of the same pass,
  // every gradient that it has left. `between.done` belongs here then.
  void weight_grads(const Pass& pass, const BetweenLayers& between = {}) const;
  Tensor losses(const Pass& pass) const { return head_->losses(pass); }
  // The planned buffer that holds the input of the first layer (or of the head): what an earlier
  // stage's output is received into.
  Tensor input(const Pass& pass) const { return stream_rows_of(context_, input_, pass); }
  Tensor output(const Pass& pass) const { return stream_rows_of(context_, output_, pass); }
  // After forward of a pass without losses, with the head: as HeadBlock's.
  Tensor logits(const Pass& pass, int64_t row) const { return head_->logits(pass, row); }

 private:
  struct Layer {
    AttentionBlock attention;
    std::variant<MlpBlock, MoeBlock> mlp;
    // What makes the layer's output.
    ResidualAdd forward(const BlockContext& context, const Pass& pass, const Pass& of_mlp,
                        const ResidualAdd& before) const;
    void backward(const BlockContext& context, const Pass& pass) const;
    void weight_grads(const Pass& pass) const;
    Tensor output(const Pass& pass) const;
  };
  const Layer& layer(int64_t number) const {
    return layers_[static_cast<size_t>(number - range_.first_layer)];
  }
  // Returns what makes the output of the last layer, if that is still to be done.
  ResidualAdd forward_layers(const Pass& pass, const BetweenLayers& between) const;
  // Does what was left to be done.
  void settle(const Pass& pass, ResidualAdd& left) const;
  // Before the weights of a layer are read. What is left of the layer before reads its bias.
  void read(int64_t layer, const Pass& pass, const BetweenLayers& between, ResidualAdd& left) const;
  // Whether a layer that is made again need not be to its end: the group's output is there, and no
  // norm behind its last block has to see what it is made of.
  bool ends_unneeded(const LayerGroup& group, int64_t number) const;
  void forward_again(const Pass& pass, const LayerGroup& group, const BetweenLayers& between) const;
  // The input of a group, whose parts the TP ranks keep.
  Tensor kept(const LayerGroup& group, const Pass& pass) const;
  Tensor group_input(const LayerGroup& group, const Pass& pass) const;

  const BlockContext& context_;
  ChunkRange range_;
  std::vector<LayerGroup> groups_;
  std::optional<EmbeddingBlock> embedding_;
  std::vector<Layer> layers_;
  std::optional<HeadBlock> head_;
  Buffer input_, output_, dresidual_;
  Buffer operands_;        // the largest magnitudes of what linears multiply in FP8
  Buffer dresidual_amax_;  // of the gradient that comes from a later stage
};

}  // namespace mtl
