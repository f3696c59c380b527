#include <fmt/format.h>

#include "sweep/choices.h"
#include "sweep/draw_parts.h"
#include "sweep/texts.h"

namespace mtl::sweep {

namespace {

const Choice kOrder[] = {
    {"data.split", 0.2, {"[1, 1]", "[80, 10, 10]", "[1]"}},
    {"data.sampler", 0.6, {"sequential", "megatron", "cyclic", "feistel"}},
    {"train.eval.every", 0.5, {"1", "2", "3"}},
    {"train.eval.iters", 1, {"1", "1", "2", "3", "0"}},
};

const Choice kDocuments[] = {
    {"data.mask_eod_loss", 0.6, {"true"}},
    {"data.reset_positions_at_eod", 0.6, {"true"}},
    {"data.reset_attention_at_eod", 0.6, {"true"}},
};

// Lists and sets of files: {one} and {two} are paths.
const std::vector<std::string> kMixtures = {
    "[{one}, {two}]",
    "[{{path: {one}, weight: 0.3}}, {{path: {two}, weight: 2}}]",
    "[{{path: {one}, weight: 1}}, {{path: {two}, weight: 3}}, {{path: {one}, weight: 0.01}}]",
};
const std::vector<std::string> kSets = {
    "{{x: {one}, y: {two}}}",
    "{{one: {one}, two: [{two}, {one}]}}",
    "{{a: {one}, b: {two}, c: [{{path: {two}, weight: 3}}, {{path: {one}, weight: 1}}]}}",
};

std::string files(const std::string& form, const std::string& one, const std::string& two) {
  return fmt::format(fmt::runtime(form), fmt::arg("one", one), fmt::arg("two", two));
}

void draw_characters(Draw& draw, Settings& s, const std::string& folder) {
  const std::string a = folder + "/a.txt", b = folder + "/b.txt", valid = folder + "/valid.txt";
  const bool chars = draw.chance(0.6);
  s.set("data.tokenizer.type", chars ? "chars" : "bytes");
  s.set("data.train", a);
  if (!chars && draw.chance(0.5)) s.set("data.train", files(draw.pick_of(kMixtures), a, b));
  const int64_t kind = draw.below(3);
  if (kind == 1) s.set("data.valid", valid);
  if (kind == 2) s.set("data.valid", files(draw.pick_of(kSets), valid, b));
  if (draw.chance(0.1)) s.set("data.format", "text");
}

void draw_ids(Draw& draw, Settings& s, const std::string& folder) {
  const std::string one = folder + "/one", two = folder + "/two", ids = folder + "/ids.bin";
  const bool documents = draw.chance(0.5);
  s.set("data.vocab", draw.pick<int64_t>({kIds, kIds, 64, 67, 131}));
  s.set("data.train", documents ? one : ids);
  if (documents && draw.chance(0.4)) {
    s.set("data.train", files(draw.pick_of(kMixtures), one, two));
  }
  if (draw.chance(0.6)) {
    s.set("data.eod", int64_t{kIds - 1});
    draw_choices(draw, s, kDocuments);
  }
  if (draw.chance(0.4)) {
    s.set("data.valid", draw.chance(0.4) ? two : files(draw.pick_of(kSets), two, ids));
  }
}

// Texts that the model continues at every evaluation.
void draw_continued(Draw& draw, Settings& s) {
  const bool ids = s.number("data.vocab", 0) > 0;
  s.set("train.eval.generate.prompts",
        ids ? draw.pick({"[\"1 2 3\"]", "[\"7\", \"1 2 3 4 5\"]"})
            : draw.pick({"[\"ab c\"]", "[\"x\", \"the f\", \"q \"]"}));
  s.set("train.eval.generate.tokens", 1 + draw.below(4));
  if (draw.chance(0.5)) s.set("train.eval.generate.temperature", draw.pick({"0", "0", "1.5"}));
}

}  // namespace

void draw_text(Draw& draw, Settings& s, const std::string& folder) {
  if (draw.chance(0.33)) {
    draw_characters(draw, s, folder);
  } else {
    draw_ids(draw, s, folder);
  }
  draw_choices(draw, s, kOrder);
  if (!s.text("data.valid").empty()) s.erase("data.split");
  // Where all that is read has documents.
  const bool row = (s.text("data.train") + s.text("data.valid")).find(".bin") != std::string::npos;
  if (s.number("data.vocab", 0) > 0 && !row && draw.chance(0.4)) {
    s.set("data.sampler", "best_fit");
    for (const Choice& choice : kDocuments) s.erase(choice.key);
  }
  if (s.text("data.sampler") == "megatron" && draw.chance(0.3)) {
    s.set("data.cache", folder + "/cache");
  }
  if (draw.chance(0.3)) draw_continued(draw, s);
}

void use_short_text(Settings& s, const std::string& folder) {
  for (const char* key :
       {"data.vocab", "data.eod", "data.mask_eod_loss", "data.valid", "data.reset_positions_at_eod",
        "data.reset_attention_at_eod", "train.eval.generate.prompts", "train.eval.generate.tokens",
        "train.eval.generate.temperature", "data.split", "data.format"}) {
    s.erase(key);
  }
  s.set("data.tokenizer.type", "chars");
  s.set("data.train", folder + "/short.txt");
  s.set("data.valid", folder + "/valid.txt");
}

}  // namespace mtl::sweep
