#include "runtime/engine/rope_table.h"

#include <cmath>

namespace mtl {

std::vector<float> rope_table(const ModelShape& shape, int64_t positions, int64_t longest) {
  const std::vector<double> frequencies =
      rope_frequencies(shape.rotary_dim(), shape.rope_base, shape.rope_scaling, longest);
  const double amplitude = rope_amplitude(shape.rope_scaling);
  std::vector<float> table;
  table.reserve(static_cast<size_t>(positions * shape.rotary_dim()));
  for (int64_t position = 0; position < positions; ++position) {
    for (const double f : frequencies) {
      table.push_back(static_cast<float>(amplitude * std::cos(static_cast<double>(position) * f)));
    }
    for (const double f : frequencies) {
      table.push_back(static_cast<float>(amplitude * std::sin(static_cast<double>(position) * f)));
    }
  }
  return table;
}

void fill_rope_tables(const Arena& arena, Device& device, const ModelShape& shape,
                      int64_t positions, int64_t longest) {
  const auto fill = [&](const char* name, const ModelShape& of_layers) {
    const Tensor table = arena.find_tensor(name);
    if (table) device.copy_from_host(table, rope_table(of_layers, positions, longest).data());
  };
  fill(kRopeTable, shape);
  ModelShape windows = shape;
  windows.rope_base = shape.window_rope_base;
  windows.rope_scaling = {};
  fill(kWindowRopeTable, windows);
}

}  // namespace mtl
