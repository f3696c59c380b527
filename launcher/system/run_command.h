// Asks another program, briefly: sbatch, squeue, scancel, kubectl.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mtl {

struct CommandAnswer {
  int code = 0;  // its exit code; 128+n = killed by signal n
  std::string out, err;
  bool missing = false;  // there is no such program (code 127)
  bool late = false;     // it was killed because it took too long
  bool ok() const { return code == 0; }
};

// Found in PATH, with our environment (of which `keeps` decides, "NAME=value"), nothing on stdin.
// It dies with the time; of signals it ignores SIGTERM if this process does.
CommandAnswer run_command(const std::vector<std::string>& argv,
                          std::chrono::milliseconds within = std::chrono::seconds(60),
                          const std::function<bool(std::string_view)>& keeps = {});

}  // namespace mtl
