#include "launcher/request/surroundings_settings.h"

#include <cstdlib>

#include <fmt/format.h>

namespace mtl {

namespace {

class Settings {
 public:
  Settings(const Surroundings& around, LaunchGiven& given, Diagnostics& diagnostics)
      : around_(around), given_(given), diagnostics_(diagnostics) {}

  void of_pod() {
    if (around_.nodes > 0) set("num_machines", std::to_string(around_.nodes));
    const bool together = around_.nodes > 1 || machines_said() > 1;
    if (together && around_.node >= 0) set("machine_rank", std::to_string(around_.node));
    if (together && !around_.master_address.empty()) {
      set("main_process_ip", around_.master_address);
      if (around_.master_port > 0) set("main_process_port", std::to_string(around_.master_port));
    }
    if (!around_.processes_per_node.empty()) set("nproc_per_node", around_.processes_per_node);
  }

  void of_task() {
    const Surroundings::Task& task = *around_.task;
    if (task.world <= 1) return;
    if (task.local_world > 1) {
      diagnostics_.add(
          {.code = "surroundings.tasks",
           .what = fmt::format("{} has started {} mtl launch on this node, and each would start "
                               "the ranks of the whole node",
                               launcher_name(around_.launcher), task.local_world),
           .help = around_.launcher == Launcher::mpi
                       ? "start one on each node: mpirun --map-by ppr:1:node mtl launch ...; or a "
                         "rank with each: mpirun mtl worker train.yaml"
                       : "start one on each node: jsrun -r 1 mtl launch ...; or a rank with each: "
                         "jsrun mtl worker train.yaml"});
      return;
    }
    set("num_machines", std::to_string(task.world));
    set("machine_rank", std::to_string(task.rank));
    const std::string& first =
        around_.node_names.empty() ? around_.master_address : around_.node_names.front();
    if (!first.empty()) set("main_process_ip", first);
    const std::string& job = around_.step_id.empty() ? around_.job_id : around_.step_id;
    if (!job.empty()) set("main_process_port", std::to_string(port_of_job(job, 0)));
  }

 private:
  void set(const char* name, const std::string& text) {
    given_.surroundings[name] = FlagValue{{text}, around_.words};
  }

  int machines_said() const {
    for (const FlagValues* values : {&given_.flags, &given_.environment}) {
      for (const char* name : {"num_machines", "nnodes"}) {
        const auto found = values->find(name);
        if (found != values->end()) return std::atoi(found->second.texts.back().c_str());
      }
    }
    return 0;
  }

  const Surroundings& around_;
  LaunchGiven& given_;
  Diagnostics& diagnostics_;
};

}  // namespace

bool meets_by_hand(const LaunchGiven& given) {
  for (const FlagValues* values : {&given.flags, &given.environment}) {
    for (const char* name : {"standalone", "hosts", "hostfile", "via", "rdzv_endpoint"}) {
      if (values->contains(name)) return true;
    }
  }
  return false;
}

void settings_of_surroundings(const Surroundings& around, LaunchGiven& given,
                              Diagnostics& diagnostics) {
  if (meets_by_hand(given)) return;
  Settings settings(around, given, diagnostics);
  if (around.launcher == Launcher::kubernetes) settings.of_pod();
  const bool task = around.launcher == Launcher::mpi || around.launcher == Launcher::lsf;
  if (task && around.task) settings.of_task();
}

}  // namespace mtl
