#include "cluster/lab/freezer.h"

#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "support/text.h"

namespace mtl::test {
namespace fs = std::filesystem;
namespace {

// The mount point of the cgroup2 hierarchy, or of v1's freezer; empty if there is none.
fs::path hierarchy(bool v2) {
  std::ifstream mounts("/proc/self/mounts");
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream words(line);
    std::string device, where, type, options;
    words >> device >> where >> type >> options;
    if (v2 && type == "cgroup2") return where;
    if (!v2 && type == "cgroup" && (options + ",").find("freezer,") != std::string::npos) {
      return where;
    }
  }
  return {};
}

bool write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path);
  out << text << std::flush;
  return out.good();
}

// Groups can only be removed from the leaves up, by rmdir, once the kernel has let go of the last
// process in them.
void remove_tree(const fs::path& group) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(group, ignored)) {
    if (entry.is_directory(ignored)) remove_tree(entry.path());
  }
  for (int attempt = 0; attempt < 500 && fs::exists(group, ignored); ++attempt) {
    if (fs::remove(group, ignored)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

Freezer::Freezer(const std::string& name, int machines) {
  for (const bool v2 : {true, false}) {
    const fs::path root = hierarchy(v2);
    if (root.empty()) continue;
    std::error_code failed;
    fs::create_directory(root / name, failed);
    if (failed) continue;
    if (!fs::exists(root / name / (v2 ? "cgroup.freeze" : "freezer.state"))) {
      fs::remove(root / name, failed);
      continue;
    }
    base_ = root / name;
    v2_ = v2;
    for (int i = 1; i <= machines; ++i) fs::create_directory(machine_dir(i));
    return;
  }
}

fs::path Freezer::machine_dir(int machine) const {
  return base_ / std::string("m").append(std::to_string(machine));
}

std::string Freezer::procs_file(int machine) const {
  return available() && machine > 0 ? (machine_dir(machine) / "cgroup.procs").string() : "";
}

void Freezer::freeze(int machine) const {
  const fs::path dir = machine_dir(machine);
  bool frozen = write_file(dir / (v2_ ? "cgroup.freeze" : "freezer.state"), v2_ ? "1" : "FROZEN");
  for (int attempt = 0; frozen && attempt < 2500; ++attempt) {
    const std::string state = file_text(dir / (v2_ ? "cgroup.events" : "freezer.state"));
    if (state.find(v2_ ? "frozen 1" : "FROZEN") != std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  throw std::runtime_error("the cgroup " + dir.string() + " does not freeze");
}

void Freezer::thaw(int machine) const {
  write_file(machine_dir(machine) / (v2_ ? "cgroup.freeze" : "freezer.state"),
             v2_ ? "0" : "THAWED");
}

void Freezer::remove() const {
  if (available()) remove_tree(base_);
}

void Freezer::sweep(const std::string& name) {
  for (const bool v2 : {true, false}) {
    const fs::path root = hierarchy(v2);
    std::error_code ignored;
    if (root.empty() || !fs::exists(root / name, ignored)) continue;
    for (const auto& machine : fs::directory_iterator(root / name, ignored)) {
      if (!machine.is_directory(ignored)) continue;
      write_file(machine.path() / (v2 ? "cgroup.freeze" : "freezer.state"), v2 ? "0" : "THAWED");
    }
    remove_tree(root / name);
  }
}

}  // namespace mtl::test
