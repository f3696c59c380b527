// A cgroup per machine of the lab, by which a whole machine is stopped as it stands: cgroup v2
// (also in a hybrid hierarchy), else the v1 freezer, else nothing, and the caller stops the
// processes.
#pragma once

#include <filesystem>
#include <string>

namespace mtl::test {

class Freezer {
 public:
  // Finds the hierarchy and makes the group `name` with a group per machine, 1 to `machines`.
  Freezer(const std::string& name, int machines);
  // Those that are left of a lab of this name that was killed; nothing if there are none.
  static void sweep(const std::string& name);

  bool available() const { return !base_.empty(); }
  // A process joins by writing 0 here; empty without cgroups.
  std::string procs_file(int machine) const;
  void freeze(int machine) const;
  void thaw(int machine) const;
  void remove() const;  // all of it; the processes must be gone

 private:
  std::filesystem::path machine_dir(int machine) const;
  std::filesystem::path base_;
  bool v2_ = false;
};

}  // namespace mtl::test
