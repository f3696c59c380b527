// Text from a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "common/error.h"
#include "runtime/engine/sampling.h"

namespace mtl {

struct GenerateOptions {
  std::filesystem::path run;  // a run, the name of one, or a checkpoint (see find_run)
  std::string prompt;
  int64_t tokens = 200;  // to sample
  // A format of chat::load_format(): the prompt is what a user says, behind what `system` says
  // unless that is empty, and the text is the answer. Empty: the prompt is text that goes on.
  std::string chat = {}, system = {};
  Sampling sampling;
};
// Calls `emit` with each piece of text as it is sampled (the prompt is not repeated), and `warn` if
// the model cannot read all of the prompt. Takes memory for the weights and for as many tokens as
// the prompt and the text have, at most the model's max_seq. It ends where a document does, or an
// answer. Throws Error (Exit::data,
// out_of_memory; run_failed for scores that are not finite).
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit,
              const std::function<void(const Diagnostic&)>& warn = {});

}  // namespace mtl
