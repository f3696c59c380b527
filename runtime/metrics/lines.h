// How a step looks on the console. Pure functions of the report.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/metrics/reporter.h"

namespace mtl {

// `step  4 120/20 000  20.6%  loss 3.2147 ▇▆▅▄▄▃▃▂  lr 2.9e-4  ...  eta 9h12m`, at most `columns`
// wide: what matters least (memory, gradient norm, learning rate, ...) is left out whole before
// anything is cut. `losses` are the recent ones, for the sparkline.
std::string status_line(const StepReport& report, std::span<const double> losses, int columns,
                        bool utf8, bool color = false);
// `2026-11-21T01:42:10Z step=4120 loss=3.2147 lr=2.9e-4 ... eta_s=33120`
std::string plain_line(const StepReport& report, std::string_view time);
// `loss 3.2147, gradient norm inf: no update, loss scale 65536; 3 steps skipped so far`
std::string skip_text(const StepReport& report);
// Any text as UTF-8 on one line: a line break is `\n`, a tab `\t`, and what a terminal might obey
// or is no text is U+FFFD.
std::string one_line(std::string_view text);

}  // namespace mtl
