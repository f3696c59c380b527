// What a launch was asked for, once flags, environment and configuration file have been merged and
// checked. The one thing that the ways of starting a job (local, hosts, member) read.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/hosts.h"
#include "launcher/ranks/placement.h"
#include "launcher/settings/launch_config.h"
#include "launcher/settings/launch_flags.h"
#include "rendezvous/surroundings.h"

namespace mtl {

struct LaunchRequest {
  enum class Mode {
    local,       // all ranks here
    hosts,       // this process starts an agent on every host (ssh; localhost without)
    allocation,  // the same by srun, on the nodes of the SLURM job that this process is in
    member,      // the same command is typed on every node, and this is one of them
  };
  Mode mode = Mode::local;
  LaunchConfig config;  // merged: what the workers' environment is made from

  // How many ranks. local: `ranks`; hosts: a host's slots, else local_ranks; member: local_ranks.
  int ranks = 1;                      // in total, where that is known before the start; else 0
  int local_ranks = 1;                // of one node, or one of the words below; see ranks_of_node()
  static constexpr int kAuto = 0;     // as many as it has GPUs, without GPUs one
  static constexpr int kPerGpu = -1;  // as many as it has GPUs; none is an error
  static constexpr int kPerCore = -2;    // as many as it has cores
  static constexpr int kPerDevice = -3;  // as many as it has GPUs, without GPUs one per core
  bool ranks_said = false;               // by anybody: num_processes, nproc_per_node
  bool total_said = false;               // `ranks` is what num_processes says
  bool need_gpu = false;                 // fewer GPUs than ranks is an error
  // Whether a rank that is alone is told its number all the same, as torchrun does. Not where a
  // file says `distributed_type: NO` and nobody uses torchrun's words: accelerate's library, and
  // others, take a number for a process group, and wrap the model for it.
  bool numbered = true;

  std::vector<Host> hosts;  // mode hosts; mode allocation: its nodes, beyond max_nodes as spares
  Surroundings allocation;  // what this process runs in, whatever the mode
  // Whether agents are started elsewhere, from here.
  bool starts_agents() const { return mode == Mode::hosts || mode == Mode::allocation; }
  int min_nodes = 1;
  int max_nodes = 1;

  // member
  bool elastic = false;  // tcp / c10d: the rendezvous gives the ranks; else machine_rank does
  int machine_rank = 0;
  std::string address = "127.0.0.1";  // of the rendezvous: main_process_ip or rdzv_endpoint
  uint16_t port = 0;
  std::vector<uint16_t> ports;  // others where it may be, if that one is taken; all are tried

  // For the workers' own meeting (MASTER_PORT); 0 = a free one, reserved until they have it.
  uint16_t master_port = 0;

  std::string run_id = "none";
  bool run_id_given = false;
  std::string token;      // from --token_file or MTL_TOKEN_FILE; empty = see member mode in job.h
  std::string interface;  // network interface, address or CIDR to use; empty = by the route
  int max_restarts = 0;   // of the job
  std::chrono::milliseconds dead_after{5'000};      // silence that counts as death
  std::chrono::milliseconds join_timeout{600'000};  // until min_nodes are there
  std::chrono::milliseconds last_call{10'000};      // for more, beyond min_nodes
  std::chrono::milliseconds grace{30'000};
  // The same where a scheduler's USR2 asks to stop: most of the time that is left then.
  std::chrono::milliseconds warning_grace{30'000};

  LogOptions logs;
  Binding binding = Binding::none;
  int omp_threads = 0;                     // 0 = cores / ranks
  std::map<std::string, std::string> env;  // --env NAME=value, also for remote workers
  std::vector<std::string> forward;        // names of variables of ours that remote workers get too

  std::string ssh_command;  // see ssh/fleet.h
  std::string ssh_config;
  std::string remote_program;  // mtl on the far side; empty = the path of this one

  // How it is to be started where that was said: local, ssh, slurm, kubernetes; empty = it follows.
  std::string via;
  std::string templates_dir;  // of the user's own job templates; empty = those in the program
  // What a job asks its scheduler for, by the names of the flags without slurm_ and kubernetes_;
  // values of lists in the order given. Checked by who uses them, for what they say.
  std::map<std::string, std::vector<std::string>> slurm;
  std::map<std::string, std::vector<std::string>> kubernetes;
  // Who gave these, for what is wrong with them: "slurm_time" -> "--slurm_time", "train.yaml:12".
  std::map<std::string, std::string> scheduler_origins;
};

// Everything that was said, merged: built in < `file` < train.yaml < scheduler < environment <
// flags, for every setting.
// `train_yaml`: what is launched is a run of our own, not a program. All that contradicts itself is
// reported at once. Codes: launch.conflict, launch.device, launch.value, launch.nodes,
// launch.processes, launch.machine_rank, launch.address, launch.port, launch.endpoint,
// launch.rdzv_conf, launch.token_file, those of hosts.h; warnings launch.ignored_flag,
// launch.ignored_key, launch.token_mode; config.unknown_key and config.bad_value for our settings
// in the file.
LaunchRequest resolve_launch(const LaunchConfig& file, const LaunchGiven& given, bool train_yaml,
                             Diagnostics& diagnostics);

// How many ranks a node of that hardware runs. Code placement.gpu_count if there should be GPUs and
// are none.
int ranks_of_node(int local_ranks, const NodeHardware& hardware, bool use_cpu,
                  Diagnostics& diagnostics);
// What place_ranks() is asked on a node with so many ranks.
PlacementRequest placement_request(const LaunchRequest& request, int ranks);

// The engine that a launch asks for, as the file's distributed_type says it: flags, environment,
// file.
std::string engine_of(const LaunchConfig& file, const LaunchGiven& given);
// The last word on a truth flag that the file does not have, of the strongest layer.
bool is_on(const LaunchGiven& given, std::string_view name);
// The same for a text; "" if it is not given.
std::string given_text(const LaunchGiven& given, std::string_view name);

struct Endpoint {
  std::string host;
  int port = -1;  // -1 = not said
};
// "host", "host:29500", "[fd00::1]:29500", "[fd00::1]", "fd00::1".
std::optional<Endpoint> parse_endpoint(const std::string& text);

}  // namespace mtl
