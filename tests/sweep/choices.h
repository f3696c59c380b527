// Settings that depend on no other: what is drawn for each, and how often, as a table.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sweep/draw.h"

namespace mtl::sweep {

struct Choice {
  const char* key;
  double often;  // in parts of the seeds; else the setting is left out
  std::vector<std::string> of;
};

inline void draw_choices(Draw& draw, Settings& settings, std::span<const Choice> choices) {
  for (const Choice& choice : choices) {
    if (draw.chance(choice.often)) settings.set(choice.key, draw.pick_of(choice.of));
  }
}

}  // namespace mtl::sweep
