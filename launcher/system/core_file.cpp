#include "launcher/system/core_file.h"

#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include "common/files.h"

namespace mtl {

namespace {

// The pattern with what is known filled in, the rest as shell wildcards.
std::string expand(const std::string& pattern, const std::string& program, pid_t pid) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      text += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case '%':
        text += '%';
        break;
      case 'p':
        text += std::to_string(pid);
        break;
      case 'e':  // comm: cut to 15 characters
        text += std::filesystem::path(program).filename().string().substr(0, 15);
        break;
      case 'u':
        text += std::to_string(getuid());
        break;
      default:
        text += '*';
    }
  }
  return text;
}

}  // namespace

std::string core_note(const std::string& pattern, bool uses_pid, const std::string& program,
                      pid_t pid) {
  if (pattern.starts_with('|')) {
    const std::string handler = pattern.substr(1, pattern.find(' ') - 1);
    if (handler.find("systemd-coredump") != std::string::npos) {
      return fmt::format("a core was dumped: coredumpctl gdb {}", pid);
    }
    return fmt::format("a core was dumped and given to {}", handler);
  }
  std::string path = expand(pattern.empty() ? "core" : pattern, program, pid);
  if (uses_pid && pattern.find("%p") == std::string::npos) path += fmt::format(".{}", pid);
  return fmt::format("a core was dumped: {}{}", path,
                     path.starts_with('/') ? "" : " in its working directory");
}

std::string core_note(const std::string& program, pid_t pid) {
  return core_note(first_line("/proc/sys/kernel/core_pattern"),
                   first_line("/proc/sys/kernel/core_uses_pid") == "1", program, pid);
}

}  // namespace mtl
