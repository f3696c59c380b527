// How a trainer evaluates: the forward passes of micro-batches, without the rest of a step.
#include <algorithm>

#include "runtime/engine/trainer.h"

namespace mtl {

void Trainer::weights_for_reading() {
  optimizer_.require_all();
  if (!stage_.layout.shards_weights()) float8_.prepare_all();
}

void Trainer::forward_only(const ForwardOnly& work, Pass pass) {
  BetweenLayers between;
  if (stage_.layout.shards_weights()) {
    between.reads = [this](int64_t layer) { read_weights(0, layer); };
    between.let_go = true;
  }
  // Each chunk in turn takes as many micro-batches as fill the pipeline.
  const int64_t in_turn = sequences_in_turn();
  for (int64_t turn = work.first; turn < work.end; turn += in_turn) {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const Chunk& chunk = chunks_[c];
      const int64_t turn_end = std::min(turn + in_turn, work.end);
      for (int64_t first = turn; first < turn_end; first += pass.sequences) {
        pass.sequences = std::min(plan_.micro_batch, turn_end - first);
        if (chunk.range().embedding || chunk.range().head || needs_documents()) {
          load_batch(work.samples, first, pass, chunk, work.counted_end);
        }
        pass.head_rows = chunk.range().head ? head_rows_.at(pass.slot) : 0;
        // A chunk without layers passes on what it receives, in the same memory.
        if (chunk.range().layers == 0) links_.sent(Link::activations);
        if (!chunk.range().embedding) links_.recv(Link::activations, chunk.input(pass));
        links_.sent(Link::activations);
        begin_reading(chunk, true);
        replay("forward", static_cast<int>(c), pass,
               [&] { forward(chunk, pass, anew(between), true); });
        if (!chunk.range().head) {
          links_.send(Link::activations, chunk.output(pass));
        } else if (work.behind_head) {
          work.behind_head(chunk, pass, first);
        }
      }
    }
  }
}

int64_t Trainer::sequences_in_turn() const {
  return plan_.grid.sizes()[Axis::pp] * plan_.micro_batch;
}

// A pipeline runs empty where all its ranks agree, which costs it as many passes as it has further
// stages: an eighth of the time at most. A batch's forward passes are a third of a step.
int64_t Trainer::sequences_in_part() const {
  constexpr int64_t kForEachIdle = 8;
  const int64_t of_batch = plan_.batch.largest() / plan_.grid.replicas();
  const int64_t idle = sequences_in_turn() - plan_.micro_batch;
  const int64_t part = std::max(of_batch, kForEachIdle * idle);
  return (part + sequences_in_turn() - 1) / sequences_in_turn() * sequences_in_turn();
}

std::optional<LossSum> Trainer::losses(const Samples& samples, int64_t wanted, const GoOn& go_on) {
  weights_for_reading();
  int64_t windows = samples.size();
  if (wanted > 0) windows = std::min(windows, wanted);
  const int64_t replicas = plan_.grid.replicas(), replica = plan_.grid.replica(coord_);
  const int64_t begin = windows * replica / replicas;
  int64_t end = windows * (replica + 1) / replicas;
  const int64_t most = (windows + replicas - 1) / replicas;
  // Ranks that divide experts need each other in every pass: who has fewer windows makes as many.
  const int64_t counted_end = end;
  if (plan_.grid.sizes()[Axis::ep] > 1) end = begin + most;
  const Tensor sum = arena_.tensor("loss_sum").slice(0, 2);
  const bool head = stage_.chunks.back().head;
  double host[2] = {};
  device_.copy_from_host(sum, host);
  counted_ = 0;
  Pass pass;
  pass.seq = plan_.share();
  // In whole turns: the passes are those of an evaluation in one part. Replicas differ by one
  // window, and so by what the last part has alone: before it all have made as many passes.
  const int64_t part = go_on ? sequences_in_part() : std::max<int64_t>(most, 1);
  int64_t done = 0;
  do {
    if (go_on && !go_on(std::min(done * replicas, windows))) return std::nullopt;
    forward_only({.samples = samples,
                  .first = begin + done,
                  .end = std::min(begin + done + part, end),
                  .counted_end = counted_end},
                 pass);
    done += part;
  } while (done < most);
  if (stage_.layout.shards_weights()) {
    // Others gather this rank's shards as often as the one that has most to evaluate.
    const auto passes = [&](int64_t sequences) {
      return (sequences + plan_.micro_batch - 1) / plan_.micro_batch;
    };
    for (int64_t i = passes(end - begin); i < passes(most); ++i) {
      begin_reading(chunks_.front(), true);
      for (const int64_t layer : forward_reads(chunks_.front().range(), plan_.model.layers)) {
        read_weights(0, layer);
      }
    }
  }
  if (head) host[1] = static_cast<double>(counted_);
  device_.copy_from_host(sum.slice(1, 1), host + 1);
  if (groups_[Link::loss].size() > 1) groups_[Link::loss].all_reduce(sum);
  device_.copy_to_host(host, sum);
  groups_.world().check();
  return LossSum{.loss = host[0], .tokens = host[1]};
}

}  // namespace mtl
