#include "runtime/generate.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/chat/encoder.h"
#include "runtime/data/token_text.h"
#include "runtime/device/make_device.h"
#include "runtime/engine/solo_model.h"
#include "runtime/find_run.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

// Tokens that the model sees at most: the last one sampled goes into no context.
int64_t context_of(const ModelShape& shape, int64_t prompt, int64_t tokens) {
  const int64_t room = shape.max_seq - prompt;
  return room <= 0 ? shape.max_seq : prompt + std::clamp<int64_t>(tokens - 1, 0, room);
}

// As `short_of`, with the advice of generation: a device's own is that of training.
[[noreturn]] void fail_memory(const Error& short_of, const ModelShape& shape, int64_t context) {
  const MemoryPlan memory = solo_memory(shape, context);
  const int64_t weights = memory.bytes_of_category(MemoryCategory::weights);
  std::vector<Diagnostic> diagnostics = short_of.diagnostics();
  diagnostics.back().notes.push_back(
      fmt::format("a context of {} tokens takes {}, the weights take {}", grouped(context),
                  human_bytes(static_cast<double>(memory.total_bytes - weights)),
                  human_bytes(static_cast<double>(weights))));
  diagnostics.back().help =
      "give a shorter prompt or fewer --tokens (the context holds both), or use a machine with "
      "more memory";
  throw Error(short_of.exit(), std::move(diagnostics));
}

SoloModel model_on(Device& device, const ModelShape& shape, int64_t context) {
  try {
    return SoloModel(shape, device, context);
  } catch (const Error& error) {
    if (error.exit() == Exit::out_of_memory) fail_memory(error, shape, context);
    throw;
  }
}

// A trained model that continues a text.
class Generator {
 public:
  // `context`: as context_of says.
  Generator(CheckpointReader& reader, const ModelShape& shape, int64_t context)
      : shape_(shape),
        device_(make_device({}).device),
        model_(model_on(*device_, shape_, context)) {
    model_.load(reader);
  }

  // The logits after `ids`, which begin with the ids of the call before. Only new ids are computed:
  // the keys and values of the others are still there. When the context is full it starts anew with
  // its second half.
  std::vector<float> next_logits(const std::vector<int32_t>& ids) {
    const auto length = static_cast<int64_t>(ids.size());
    if (length - window_ > shape_.max_seq) {
      // A long prompt fills the context; later there has to be room to go on.
      const int64_t kept = known_ == 0 ? shape_.max_seq : shape_.max_seq / 2;
      window_ = length - std::max<int64_t>(1, kept);
      known_ = window_;
    }
    const int64_t past = known_ - window_;
    known_ = length;
    return model_.next_logits(std::span(ids).subspan(static_cast<size_t>(window_)), past);
  }

 private:
  const ModelShape shape_;
  const std::unique_ptr<Device> device_;
  SoloModel model_;
  int64_t window_ = 0;  // the id at which the context begins
  int64_t known_ = 0;   // ids before this one are in the buffers
};

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit,
              const std::function<void(const Diagnostic&)>& warn) {
  CheckpointReader reader(find_intact_checkpoint(options.run));
  const ModelShape shape = model_shape_from_json(reader.state().at("model"));
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_from_json(reader.tokenizer());
  const std::optional<int32_t> eod = tokenizer->eod();
  std::optional<int32_t> end = eod;
  std::vector<int32_t> ids;
  if (options.chat.empty()) {
    ids = tokenizer->encode_with_special(options.prompt);
  } else {
    const chat::Format format = chat::load_format(options.chat);
    const chat::Encoder encoder(format, *tokenizer);
    std::vector<chat::Message> messages;
    if (!options.system.empty()) messages.push_back({"system", options.system});
    messages.push_back({"user", options.prompt});
    ids = encoder.prompt(messages);
    end = encoder.end();
  }
  if (ids.empty()) {
    throw Error(Exit::usage,
                {.code = "generate.prompt",
                 .what = "the prompt is empty",
                 .help = "give at least one character to begin with, e.g. a newline: $'\\n'"});
  }
  const auto prompt_tokens = static_cast<int64_t>(ids.size());
  if (warn && prompt_tokens > shape.max_seq) {
    warn({.code = "generate.context",
          .what = fmt::format("the prompt has {} tokens, and the model reads {}: the last ones",
                              grouped(prompt_tokens), grouped(shape.max_seq)),
          .help = "give a shorter prompt, or train with a larger model.max_seq",
          .severity = Diagnostic::Severity::warning});
  }
  Generator generator(reader, shape, context_of(shape, prompt_tokens, options.tokens));
  TokenText text(*tokenizer, ids);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const int32_t next = sample_token(generator.next_logits(ids), options.sampling, i);
    if (next == eod || next == end) break;  // the document is at its end, or the answer
    ids.push_back(next);
    emit(text.add(next));
  }
  emit(text.rest());
}

}  // namespace mtl
