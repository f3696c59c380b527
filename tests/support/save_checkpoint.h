// A checkpoint that is complete when it returns, as a run without a thread for it saves.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/engine/checkpoint_saver.h"

namespace mtl::test {

// All ranks together. `state` matters on rank 0, which also returns the warnings: what could not be
// tidied up around a complete checkpoint.
inline std::vector<Diagnostic> save_checkpoint(const CheckpointAttempt& attempt,
                                               const nlohmann::json& state, int64_t keep_last,
                                               Trainer& trainer, const Plan& plan,
                                               Communicator& world,
                                               const std::function<void()>& still_ours = {}) {
  CheckpointSaver saver(trainer, plan, world, false, still_ours);
  saver.begin({.attempt = attempt, .state = state, .keep = {.last = keep_last}});
  const bool saved = saver.finish();
  std::optional<SaveOutcome> outcome = saver.take_outcome();
  if (outcome && outcome->failure && saver.failed_here()) {
    throw Error(Exit::environment, *outcome->failure);
  }
  // Until the rank that failed has left.
  if (!saved || (outcome && outcome->failure)) world.barrier();
  return outcome ? std::move(outcome->warnings) : std::vector<Diagnostic>();
}

}  // namespace mtl::test
