#include "runtime/metrics/lines.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "common/terminal.h"
#include "common/utf8.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

constexpr int kSparklineWidth = 8;

struct Field {
  std::string text;
  int rank = 0;  // the highest goes first when the line is too long
  const char* style = "";
};

std::string joined(const std::vector<Field>& fields, bool color) {
  std::string line;
  for (const Field& field : fields) {
    if (!line.empty()) line += "  ";
    const bool paint = color && *field.style != '\0';
    line += paint ? field.style + field.text + "\033[0m" : field.text;
  }
  return line;
}

std::string steps_text(const StepReport& report) {
  if (report.steps <= 0) return "step  " + grouped(report.step);
  const std::string of = grouped(report.steps);
  return fmt::format("step  {:>{}}/{}", grouped(report.step), of.size(), of);
}

// Memory and speed are printed as whole numbers of a unit and may not be finite in a broken record.
std::string whole(double value) {
  return std::isfinite(value) ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

}  // namespace

std::string status_line(const StepReport& report, std::span<const double> losses, int columns,
                        bool utf8, bool color) {
  constexpr const char* kBold = "\033[1m";
  constexpr const char* kCyan = "\033[36m";
  constexpr const char* kDim = "\033[2m";
  std::vector<Field> fields;
  fields.push_back({steps_text(report), 0});
  if (report.steps > 0) {
    const double percent =
        100.0 * static_cast<double>(report.step) / static_cast<double>(report.steps);
    // Rounded down: 100 % is said when it is done, not shortly before.
    fields.push_back({fmt::format("{:.1f}%", std::floor(percent * 10) / 10), 3});
  }
  fields.push_back({fmt::format("loss {:.4f}", report.loss), 0, kBold});
  // One value has no course.
  if (std::string line = sparkline(losses, kSparklineWidth, utf8); display_width(line) > 1) {
    fields.push_back({std::move(line), 5, kCyan});
  }
  fields.push_back({"lr " + short_exponent(report.lr), 7, kDim});
  fields.push_back({"gnorm " + short_number(report.grad_norm), 8, kDim});
  fields.push_back({compact_count(report.tokens_per_s) + " tok/s", 2});
  if (report.learned_share < 1) {
    fields.push_back({fmt::format("{:.0f}% learned", report.learned_share * 100), 6, kDim});
  }
  if (report.mfu > 0) {
    const std::string of = report.mfu_of_peak ? compact_flops(report.mfu_of) : "matmul";
    fields.push_back({fmt::format("mfu {:.0f}% of {}", report.mfu * 100, of), 6, kDim});
  }
  if (report.memory_bytes > 0) {
    fields.push_back({"mem " + human_bytes(static_cast<double>(report.memory_bytes)), 9, kDim});
  }
  if (report.gpus && report.gpus->power_w > 0) {
    fields.push_back({whole(report.gpus->power_w) + " W", 10, kDim});
  }
  if (report.skipped > 0) fields.push_back({grouped(report.skipped) + " skipped", 4});
  fields.push_back({"eta " + compact_duration(report.eta_s), 1});

  while (display_width(joined(fields, false)) > columns) {
    const auto least =
        std::max_element(fields.begin(), fields.end(),
                         [](const Field& a, const Field& b) { return a.rank < b.rank; });
    if (least->rank == 0) return fit_width(joined(fields, false), columns, utf8);
    fields.erase(least);
  }
  return joined(fields, color);
}

std::string plain_line(const StepReport& report, std::string_view time) {
  const double gib = static_cast<double>(report.memory_bytes) / (1024.0 * 1024.0 * 1024.0);
  std::string line = fmt::format(
      "{} step={} loss={:.4f} lr={} gnorm={} tok_s={} mfu={:.3f} mem_gib={} eta_s={}", time,
      report.step, report.loss, short_exponent(report.lr), short_number(report.grad_norm),
      whole(report.tokens_per_s), report.mfu,
      gib >= 99.95 ? fmt::format("{:.0f}", gib) : fmt::format("{:.3g}", gib), whole(report.eta_s));
  if (report.learned_share < 1) line += fmt::format(" learned={:.3f}", report.learned_share);
  if (report.loss_scale > 0) line += fmt::format(" loss_scale={}", report.loss_scale);
  if (report.moe_aux_loss > 0) line += fmt::format(" moe_aux={:.3f}", report.moe_aux_loss);
  if (report.moe_turns > 1) line += fmt::format(" moe_turns={:.2f}", report.moe_turns);
  if (report.gpus && report.gpus->power_w > 0) {
    line += fmt::format(" gpu_w={}", whole(report.gpus->power_w));
  }
  if (report.gpus && report.gpus->clock_mhz > 0) {
    line += fmt::format(" gpu_mhz={}", report.gpus->clock_mhz);
  }
  if (report.skipped > 0) line += fmt::format(" skipped={}", report.skipped);
  return line;
}

std::string skip_text(const StepReport& report) {
  std::string text = fmt::format("loss {:.4f}, gradient norm {}: no update", report.loss,
                                 short_number(report.grad_norm));
  if (report.loss_scale > 0) text += fmt::format(", loss scale {}", report.loss_scale);
  return text + fmt::format("; {} step{} skipped so far", grouped(report.skipped),
                            report.skipped == 1 ? "" : "s");
}

std::string one_line(std::string_view text) {
  constexpr char32_t kNoText = 0xFFFD;
  std::string line;
  for (size_t at = 0; at < text.size();) {
    char32_t code = 0;
    if (read_utf8(text, at, code) != nullptr) {
      append_utf8(line, kNoText);
      ++at;
    } else if (code == '\n' || code == '\t') {
      line += code == '\n' ? "\\n" : "\\t";
    } else {
      append_utf8(line, code < 0x20 || (code >= 0x7f && code < 0xa0) ? kNoText : code);
    }
  }
  return line;
}

}  // namespace mtl
