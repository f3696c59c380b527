#include "sweep/draw.h"

#include "sweep/choices.h"
#include "sweep/draw_parts.h"

namespace mtl::sweep {

namespace {

// As often as they stand here.
const std::vector<Claim> kClaims = {
    Claim::same_again,   Claim::same_bits,    Claim::same_bits,    Claim::same_bits,
    Claim::same_bits,    Claim::same_bits,    Claim::same_bits,    Claim::resumed_bits,
    Claim::resumed_bits, Claim::resumed_bits, Claim::resumed_near, Claim::resumed_near,
    Claim::resumed_near, Claim::killed_bits,  Claim::killed_bits,  Claim::changed_bits,
    Claim::changed_bits, Claim::begun_bits,   Claim::begun_bits,   Claim::begun_bits,
};

Settings draw_common(Draw& draw, const std::string& folder) {
  Settings s;
  draw_length(draw, s);
  draw_model(draw, s);
  draw_learning(draw, s);
  draw_text(draw, s, folder);
  return s;
}

// The second way of what is to agree.
void draw_other(Draw& draw, Case& drawn, const std::string& folder, bool anything) {
  switch (drawn.claim) {
    case Claim::same_again:
      drawn.other = drawn.first;
      return;
    case Claim::resumed_near:
      drawn.other = draw_layout(draw, drawn, folder, anything);
      return;
    case Claim::changed_bits:
      drawn.changed = draw_change(draw, drawn, folder);
      break;
    case Claim::begun_bits:
      drawn.changed = draw_new_run(draw, drawn, folder);
      drawn.source = draw.pick({Source::run, Source::checkpoint, Source::resharded,
                                Source::hugging_face, Source::hugging_face, Source::imported});
      break;
    default:
      break;
  }
  drawn.other = draw_sibling(draw, drawn, folder);
}

}  // namespace

Case draw_case(uint64_t seed, const std::string& folder) {
  Draw draw(seed);
  Case drawn;
  drawn.seed = seed;
  const bool anything = draw.chance(0.1);  // also what cannot be
  for (int attempt = 0; attempt < 100; ++attempt) {
    drawn.common = draw_common(draw, folder);
    Planned ignored;
    if (anything || can_run(drawn.common, {}, folder, ignored)) break;
  }
  drawn.diverges = draw.chance(0.05);
  if (drawn.diverges) diverge(draw, drawn.common);
  drawn.batch_of_layout = draw.chance(0.08) && drawn.common.text("train.batch_ramp").empty();
  if (drawn.batch_of_layout) {
    drawn.common.erase("train.global_batch");
    if (draw.chance(0.5)) use_short_text(drawn.common, folder);
  }
  drawn.first = draw_layout(draw, drawn, folder, anything);
  drawn.counts_links = draw.chance(0.2);
  drawn.claim = draw.pick_of(kClaims);
  if (drawn.claim == Claim::resumed_near && (drawn.batch_of_layout || drawn.diverges)) {
    drawn.claim = Claim::resumed_bits;
  }
  draw_other(draw, drawn, folder, anything);
  return drawn;
}

}  // namespace mtl::sweep
