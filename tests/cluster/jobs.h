// Jobs on the lab's machines: a command typed on the head or on a machine, watched to its end, and
// what of it is left anywhere.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cluster/machines.h"
#include "support/processes.h"
#include "support/text.h"

namespace mtl::test {

namespace fs = std::filesystem;
using Milliseconds = std::chrono::milliseconds;

inline int count_of(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

class Cluster : public Lab {
 public:
  explicit Cluster(int machines = 4) : Lab(machines) {}

  // The folder that all machines share, where commands are typed.
  fs::path work() const { return dir() / "work"; }
  // A file there; its path.
  std::string write(const std::string& name, const std::string& text) const {
    const fs::path path = work() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string script(const std::string& name, const std::string& text) const {
    const std::string path = write(name, "#!/bin/sh\n" + text);
    fs::permissions(path, fs::perms(0755));
    return path;
  }
  // What is in the files of work() with this beginning, by name.
  std::map<std::string, std::string> files(const std::string& beginning) const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::directory_iterator(work())) {
      const std::string name = entry.path().filename();
      if (name.starts_with(beginning)) found[name] = file_text(entry.path());
    }
    return found;
  }

  // `mtl launch ARGS`, typed on a machine (0 = the head).
  Command launch(const std::vector<std::string>& args, int machine = 0,
                 const std::map<std::string, std::string>& env = {}) const {
    std::vector<std::string> argv = {MTL_PROGRAM, "launch"};
    argv.insert(argv.end(), args.begin(), args.end());
    return start(machine, argv, env);
  }
  CommandEnd launched(const std::vector<std::string>& args,
                      std::chrono::seconds within = kPatience) const {
    return launch(args).wait(within);
  }

  // What runs anywhere beyond the machines themselves, after some time for it to go; "" = nothing.
  std::string left(Milliseconds within = kPatience) const {
    std::string found;
    wait_until(
        [&] {
          found.clear();
          for (int i = 0; i <= machines(); ++i) {
            for (const Process& process : processes(i)) {
              found += name(i) + ": " + std::to_string(process.pid) + " " + process.command + "\n";
            }
          }
          return found.empty();
        },
        within);
    return found;
  }
  // Pids (as seen from here) of processes on a machine whose command line has this part.
  std::vector<pid_t> pids(int machine, const std::string& part) const {
    std::vector<pid_t> found;
    for (const Process& process : processes(machine)) {
      if (has(process.command, part)) found.push_back(process.pid);
    }
    return found;
  }
};

}  // namespace mtl::test

#define CHECK_NOTHING_LEFT(cluster) CHECK((cluster).left() == "")
