// How surroundings_of() reads an environment: one class for all launchers, since what one says is
// held against what the others say. surroundings.cpp has the order, and ranks and pods;
// surroundings_schedulers.cpp SLURM and LSF.
#pragma once

#include "rendezvous/surroundings.h"

namespace mtl {

class SurroundingsReader {
 public:
  SurroundingsReader(const std::function<const char*(const char*)>& variable,
                     Diagnostics& diagnostics)
      : variable_(variable), diagnostics_(diagnostics) {}

  Surroundings read();

 private:
  using Task = Surroundings::Task;

  // The names of one kind of variables for the same things; nullptr = there is none.
  struct Names {
    const char* rank;
    const char* world;
    const char* local_rank;
    const char* local_world;
  };

  std::string text(const char* name) const;
  bool has(const char* name) const;
  void fail(std::string what, std::string help);
  long number(const char* name, long fallback);
  int small(const char* name, int fallback);
  std::optional<Task> task_of(const Names& names);
  static void place(Task& task);
  bool is_pod_rank() const;
  void ranked(Launcher launcher, const char* words);
  void master();
  void check_against_others();
  static bool same(const std::optional<Task>& a, const std::optional<Task>& b);
  void mpi();
  void found_mpi(const Task& task, const char* words, std::string step);
  void kubernetes();
  void pet_nodes();
  void check(const Task& task);

  // surroundings_schedulers.cpp
  std::optional<Task> slurm_step();
  void slurm_task();
  void slurm_allocation();
  void slurm_job();
  void node_names(const char* name);
  std::vector<int> tasks_per_node(const std::string& name);
  void slurm_component(const std::string& suffix);
  void slurm_share(const std::string& suffix, int nodes, const std::vector<int>& tasks);
  void slurm_share_of_task();
  static int gpus(const std::string& words);
  void meet_at_first_node();
  std::optional<Task> jsm_task();
  void lsf();
  void lsf_hosts();

  const std::function<const char*(const char*)>& variable_;
  Diagnostics& diagnostics_;
  Surroundings out_;
  std::optional<Task> step_;   // of srun, whoever may run in it
  std::optional<Task> jsrun_;  // the same
  Names names_{};              // of the task found last
};

}  // namespace mtl
