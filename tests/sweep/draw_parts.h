// The parts of a drawn case, by what they are about.
#pragma once

#include <string>

#include "sweep/draw.h"

namespace mtl::sweep {

// A model, of a family or of parts of several; `s` has its sequence length.
void draw_model(Draw& draw, Settings& s);
void draw_length(Draw& draw, Settings& s);
// Learning rate, optimizer, precision, and what is watched.
void draw_learning(Draw& draw, Settings& s);
// Over them, so that numbers that are none come up.
void diverge(Draw& draw, Settings& s);
// Texts to train and evaluate on, their order, and what evaluations do.
void draw_text(Draw& draw, Settings& s, const std::string& folder);
// For `train.accumulate` by epochs: a text that a few steps go through.
void use_short_text(Settings& s, const std::string& folder);

// What runs that go on from a checkpoint have besides, and runs that begin from weights.
Settings draw_change(Draw& draw, const Case& drawn, const std::string& folder);
Settings draw_new_run(Draw& draw, const Case& drawn, const std::string& folder);

constexpr int kMostRanks = 8;

// Whether there is a plan for `common` in this layout.
bool can_run(const Settings& common, const Settings& layout, const std::string& folder,
             Planned& planned);
// A layout that can be run; else, where none is found or `anything` is to be tried, the last drawn.
Settings draw_layout(Draw& draw, const Case& drawn, const std::string& folder, bool anything);
// The sums of drawn.first in the same order, by other work, with what drawn.changed says.
Settings draw_sibling(Draw& draw, const Case& drawn, const std::string& folder);

}  // namespace mtl::sweep
