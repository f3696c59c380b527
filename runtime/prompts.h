// The prompts of a run (train.eval.generate), which its model continues at every evaluation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/data.h"
#include "runtime/engine/sampling.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

class Trainer;

struct Prompts {
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;  // of each text
  int64_t tokens = 0;                     // behind each, at most
  Sampling sampling;                      // the seed is the run's
  // Tokens that the longest one has in its last pass: the token that is chosen last goes into none.
  int64_t room() const;
};

// Adds to `diagnostics` what cannot be continued: generate.prompt, generate.room, data.token.
Prompts prompts_of(const ResolvedSpec& resolved, const Tokenizer& tokenizer,
                   Diagnostics& diagnostics);

struct Continuation {
  std::string text;    // without the prompt
  int64_t tokens = 0;  // of it
  // Why it has fewer than it might: "" | "end of document" | "scores are not finite".
  std::string ended;
};

// What the model writes now, the same on all ranks, which call it together. It changes nothing of
// the training. With fp32 and but for the order of sums, the text is that of `mtl generate` with
// the same seed from a checkpoint of the same step. Nothing, where `go_on` has said no (Trainer's
// GoOn, of tokens).
std::optional<std::vector<Continuation>> continue_prompts(
    const Prompts& prompts, const Tokenizer& tokenizer, Trainer& trainer,
    const std::function<bool(int64_t done)>& go_on);

}  // namespace mtl
