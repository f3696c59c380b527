// The one write error (write_error.h).
#include "runtime/checkpoint/write_error.h"

#include <cerrno>
#include <system_error>

#include <fmt/format.h>

namespace mtl {

void fail_write(const std::filesystem::path& path, const std::string& reason) {
  throw Error(
      Exit::environment,
      Diagnostic{.code = "ckpt.write",
                 .what = fmt::format("cannot write {}: {}", path.string(), reason),
                 .notes = {"checkpoints that were complete before are intact"},
                 .help = "free space or repair that file system, then run the same command again; "
                         "a run goes on from its newest complete checkpoint"});
}

void fail_write(const std::filesystem::path& path, int error_number, int64_t needed) {
  std::string reason = std::generic_category().message(error_number);
  if (error_number == EFBIG) {
    reason += " (files may not be as large here: see ulimit -f)";
  } else if (error_number == ENOSPC || error_number == EDQUOT) {
    std::error_code unknown;
    const auto space = std::filesystem::space(path.parent_path(), unknown);
    constexpr double kMiB = 1 << 20;
    const double there = static_cast<double>(space.available) / kMiB;
    if (!unknown && needed > 0) {
      reason += fmt::format(" ({:.1f} MiB needed, {:.1f} MiB free)",
                            static_cast<double>(needed) / kMiB, there);
    } else if (!unknown) {
      reason += fmt::format(" ({:.1f} MiB free)", there);
    }
  }
  fail_write(path, reason);
}

}  // namespace mtl
