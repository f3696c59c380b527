#include "runtime/prompts.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/data/token_text.h"
#include "runtime/engine/trainer.h"

namespace mtl {

int64_t Prompts::room() const {
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : ids) longest = std::max(longest, prompt.size());
  return static_cast<int64_t>(longest) + tokens - 1;
}

Prompts prompts_of(const ResolvedSpec& resolved, const Tokenizer& tokenizer,
                   Diagnostics& diagnostics) {
  const TrainSpec::Train& train = resolved.spec.train;
  Prompts prompts{.texts = train.eval.generate.prompts, .ids = {}, .sampling = {}};
  prompts.tokens = train.eval.generate.tokens;
  prompts.sampling.temperature = train.eval.generate.temperature;
  prompts.sampling.seed = train.seed;
  const Place place = resolved.place_of("train.eval.generate.prompts");
  for (size_t i = 0; i < prompts.texts.size(); ++i) {
    std::vector<int32_t>& ids = prompts.ids.emplace_back();
    try {
      ids = tokenizer.encode_with_special(prompts.texts[i]);
    } catch (const Error& error) {
      for (Diagnostic diagnostic : error.diagnostics()) {
        diagnostic.what = fmt::format("prompt {}: {}", i + 1, diagnostic.what);
        diagnostic.place = place;
        diagnostics.add(std::move(diagnostic));
      }
      continue;
    }
    const auto length = static_cast<int64_t>(ids.size());
    const int64_t left = train.seq_len + 1 - length;  // the last token goes into no pass
    if (ids.empty()) {
      diagnostics.add(
          {.code = "generate.prompt",
           .what = fmt::format("prompt {} is empty", i + 1),
           .place = place,
           .help = "give at least one character to begin with, e.g. a newline: \"\\n\""});
    } else if (left < prompts.tokens) {
      diagnostics.add({.code = "generate.room",
                       .what = fmt::format(
                           "prompt {} has {} tokens and is to be continued by {}: together more "
                           "than train.seq_len {} holds",
                           i + 1, length, prompts.tokens, train.seq_len),
                       .place = place,
                       .help = left > 0 ? fmt::format("use train.eval.generate.tokens={}", left)
                                        : "give a shorter prompt"});
    }
  }
  return prompts;
}

std::optional<std::vector<Continuation>> continue_prompts(
    const Prompts& prompts, const Tokenizer& tokenizer, Trainer& trainer,
    const std::function<bool(int64_t done)>& go_on) {
  std::vector<std::vector<int32_t>> ids = prompts.ids;
  std::vector<Continuation> all(ids.size());
  std::vector<TokenText> texts;
  for (const std::vector<int32_t>& prompt : ids) texts.emplace_back(tokenizer, prompt);
  const std::optional<int32_t> eod = tokenizer.eod();
  const int64_t room = prompts.room();
  for (int64_t i = 0; i < prompts.tokens; ++i) {
    if (!go_on(i)) return std::nullopt;
    const auto choose = [&](std::span<const float> logits, size_t text) -> int32_t {
      if (!all[text].ended.empty()) return -1;
      try {
        return sample_token(logits, prompts.sampling, i);
      } catch (const Error&) {
        return -1;  // a text is no reason to end a training
      }
    };
    const std::vector<int32_t> next = trainer.next_tokens(ids, room, choose);
    bool goes_on = false;
    for (size_t text = 0; text < next.size(); ++text) {
      Continuation& one = all[text];
      if (!one.ended.empty()) continue;
      if (next[text] < 0) {
        one.ended = "scores are not finite";
      } else if (next[text] == eod) {
        one.ended = "end of document";
      } else {
        ids[text].push_back(next[text]);
        one.text += texts[text].add(next[text]);
        ++one.tokens;
        goes_on = true;
      }
    }
    if (!goes_on) break;
  }
  for (size_t text = 0; text < all.size(); ++text) all[text].text += texts[text].rest();
  return all;
}

}  // namespace mtl
