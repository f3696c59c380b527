// Waiting for what other processes do, always bounded; what /proc says of them.
#pragma once

#include <chrono>
#include <dirent.h>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include <sys/types.h>

#include "support/text.h"

namespace mtl::test {

// A hang fails the test instead of stopping the suite; far above what any step needs, also where
// the machine stands still for half a minute.
inline constexpr std::chrono::seconds kPatience{180};

// False where it has not happened within that time.
inline bool wait_until(const std::function<bool()>& happened,
                       std::chrono::milliseconds within = kPatience) {
  const auto until = std::chrono::steady_clock::now() + within;
  while (!happened()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// False for a zombie as well: it runs no more.
inline bool alive(pid_t pid) {
  const std::string text = file_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

// A pid that a program writes into a file, and a newline; 0 after too long a wait.
inline pid_t pid_in(const std::filesystem::path& path) {
  pid_t pid = 0;
  wait_until([&] {
    const std::string text = file_text(path);
    pid = text.ends_with('\n') ? std::stoi(text) : 0;
    return pid > 0;
  });
  return pid;
}

// Of this process.
inline int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace mtl::test
