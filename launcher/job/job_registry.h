// What this user has started, for `mtl ps`, `logs`, `stop` and `top`: a small file for each job in
// $XDG_STATE_HOME/mtl/jobs (or ~/.local/state/mtl/jobs). It only helps to find things again: a home
// that cannot be written keeps nothing from starting, and old files go by themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace mtl {

struct JobRecord {
  // local, ssh, slurm, kubernetes. A job of SLURM has two: from who submitted it, and (with a pid)
  // from the launch inside it, which knows its run directory.
  std::string kind;
  std::string id;  // "1234" of SLURM; "p4711" of a process
  std::string name;
  std::string run;  // run directory, or the folder that will hold it; "" = a program
  std::string log;  // of the job itself; "" = it prints to a terminal
  // The process that leads it, and when that began (clock ticks since boot), so that another one
  // with its number is not taken for it; 0 = there is none on this machine.
  pid_t pid = 0;
  uint64_t started = 0;
  std::string host;
  std::string command;
  int64_t when = 0;  // seconds since 1970
  int nodes = 1;
};

std::filesystem::path job_registry();  // "" = there is no home
// Best effort.
void record_job(const JobRecord& record);
// Newest first; what cannot be read is passed over. Removes what is older than 60 days.
std::vector<JobRecord> recorded_jobs();

// When a process began; 0 = there is none of that number.
uint64_t process_start(pid_t pid);
// Whether the process of the record still lives on this machine.
bool is_alive(const JobRecord& record);
// One of this process, in its own name.
JobRecord record_of_this_process(const std::string& kind, const std::string& name);

}  // namespace mtl
