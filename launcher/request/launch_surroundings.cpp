#include "launcher/request/launch_surroundings.h"

#include <fmt/format.h>

#include "launcher/request/launch_request.h"
#include "launcher/request/surroundings_settings.h"
#include "launcher/slurm/control.h"
#include "launcher/slurm/gpus.h"
#include "rendezvous/sockets.h"

namespace mtl {

namespace {

bool is_given(const LaunchGiven& given, std::string_view name) {
  return given.flags.count(name) > 0 || given.environment.count(name) > 0;
}

// With machine_rank, which in a pod its controller gives, the command is typed on every node.
bool is_placed_by_hand(const LaunchGiven& given) {
  return meets_by_hand(given) || is_given(given, "machine_rank");
}

void set(LaunchGiven& given, const char* name, const std::string& text, const std::string& by) {
  given.surroundings[name] = FlagValue{{text}, by};
}

// One task on every node, or several of which the first leads: each is a machine of its own.
void settings_of_step(LaunchGiven& given, Diagnostics& diagnostics) {
  const Surroundings& around = given.around;
  const Surroundings::Task& task = *around.task;
  const std::string& by = around.words;
  if (task.local_world > 1) {
    for (const FlagValues* values : {&given.flags, &given.environment}) {
      if (task.local_rank > 0) break;  // the task that leads says it
      const auto said = values->find("nproc_per_node");
      if (said == values->end()) continue;
      const std::string& text = said->second.texts.back();
      if (text == std::to_string(task.local_world)) continue;
      diagnostics.add(
          {.code = "slurm.tasks",
           .what = fmt::format("{} {}, and srun has started {} tasks on each node, a rank for each",
                               said->second.origin, text, task.local_world),
           .help = fmt::format("leave it out, or start one task per node: #SBATCH "
                               "--ntasks-per-node=1, srun --ntasks-per-node=1 mtl launch {} {} ...",
                               said->second.origin, text)});
      break;
    }
  }
  // Where one node has several tasks, a task is a rank on all of them.
  if (task.world > task.nodes) {
    set(given, "nproc_per_node", std::to_string(std::max(1, task.local_world)), by);
  }
  if (task.nodes <= 1) return;
  set(given, "num_machines", std::to_string(task.nodes), by);
  set(given, "machine_rank", std::to_string(task.node), by);
  set(given, "rdzv_id", around.job_id + "." + around.step_id, by);
  set(given, "main_process_port", std::to_string(around.master_port), by);
  if (is_given(given, "main_process_ip")) return;
  const std::string name = around.node_names.empty() ? "" : around.node_names.front();
  const std::string address = address_of_slurm_node(name);
  if (!address.empty()) return set(given, "main_process_ip", address, by);
  diagnostics.add({.code = "slurm.address",
                   .what = fmt::format("'{}', the first node of {}, resolves to no address here, "
                                       "and scontrol knows none",
                                       name, around.words),
                   .help = "name it: --main_process_ip ADDRESS"});
}

}  // namespace

std::string address_of_slurm_node(const std::string& name) {
  if (name.empty()) return {};
  if (!net::look_up(name, 0).addresses.empty()) return name;
  const CommandAnswer end = ask_slurm({"scontrol", "--oneliner", "show", "node", name});
  if (end.code != 0) return {};
  for (const char* field : {"NodeAddr", "NodeHostName"}) {
    const std::string address = control_field(end.out, field);
    if (!address.empty() && !net::look_up(address, 0).addresses.empty()) return address;
  }
  return {};
}

bool shares_node(const LaunchGiven& given) {
  const Surroundings& around = given.around;
  return around.launcher == Launcher::slurm && around.task && around.task->local_world > 1 &&
         !is_placed_by_hand(given);
}

void read_surroundings(LaunchGiven& given, Diagnostics& diagnostics) {
  given.around = surroundings_here(diagnostics);
  settings_of_surroundings(given.around, given, diagnostics);  // of all but SLURM
  const bool wants_gpus = !is_on(given, "cpu") && !is_placed_by_hand(given);
  if (given.around.is_allocation() && wants_gpus) count_gpus(given.around);
  if (given.around.launcher != Launcher::slurm || !given.around.task) return;
  if (given.around.task->world > 1 && !is_placed_by_hand(given)) {
    settings_of_step(given, diagnostics);
  }
}

}  // namespace mtl
