// A simulated schedule as a picture, time to the right, one row per stage: as the figures of GPipe,
// PipeDream and Megatron-LM (arXiv 2104.04473) draw it, micro-batches counted from 0.
#pragma once

#include <string>

#include "runtime/plan/schedule/schedule.h"

namespace mtl {

// One line per stage and a legend, each with a newline at its end. A column is the time of the
// smallest step: `3b` is the forward of micro-batch 3 through chunk b (no letter where there is one
// chunk), `[3b]` its backward, `(3b)` the gradients of weights that this has left for later, `-` an
// idle column. Lines of more than `width` characters are cut
// between two steps and end in ` ...`.
std::string schedule_text(const ScheduleShape& shape, const ScheduleFacts& facts, int width);

// An SVG document that needs nothing else: forwards blue, backwards green, what they leave for
// later ochre, chunks from dark to light, idle time grey, readable on light and dark pages; each
// step names itself under the pointer. The caption gives the bubble, each row its stage's peak in
// flight.
std::string schedule_svg(const ScheduleShape& shape, const ScheduleFacts& facts,
                         const std::string& title);

}  // namespace mtl
