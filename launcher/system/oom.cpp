#include "launcher/system/oom.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace mtl {

namespace {

int64_t oom_kills(const std::string& file) {
  std::ifstream in(file);
  std::string key;
  int64_t value = 0;
  while (in >> key >> value) {
    if (key == "oom_kill") return value;
  }
  return 0;
}

std::string find_cgroup_file() {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {  // hierarchy:controllers:path
    std::istringstream fields(line);
    std::string id, controllers, path;
    std::getline(fields, id, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string name = v2 ? "/memory.events" : "/memory.oom_control";
    // In a container the path is often the host's; our group is then the root that we see.
    for (const std::string& file : {root + path + name, root + name}) {
      std::error_code ignored;
      if (std::filesystem::exists(file, ignored)) return file;
    }
  }
  return {};
}

}  // namespace

OomWatch::OomWatch()
    : cgroup_file_(find_cgroup_file()),
      cgroup_(oom_kills(cgroup_file_)),
      machine_(oom_kills("/proc/vmstat")) {}

std::string OomWatch::strike() {
  const int64_t cgroup = oom_kills(cgroup_file_);
  const int64_t machine = oom_kills("/proc/vmstat");
  const bool ours = cgroup > cgroup_;
  const bool anybodys = machine > machine_;
  cgroup_ = cgroup;
  machine_ = machine;
  if (ours) {
    return std::string(kOomKiller) + " struck in this job's memory cgroup (" + cgroup_file_ + ")";
  }
  if (anybodys) return std::string(kOomKiller) + " struck on this machine";
  return {};
}

}  // namespace mtl
