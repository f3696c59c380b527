// What a launch was asked for, once flags, environment and configuration file have been merged and
// checked. The one thing that the ways of starting a job (local, hosts, member) read.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/agent.h"
#include "launcher/hosts.h"
#include "launcher/launch_config.h"
#include "launcher/placement.h"

namespace mtl {

struct LaunchRequest {
  enum class Mode {
    local,   // all ranks here
    hosts,   // this process starts an agent on every host (ssh; localhost without)
    member,  // the same command is typed on every node, and this is one of them
  };
  Mode mode = Mode::local;
  LaunchConfig config;  // merged: what the workers' environment is made from

  // How many ranks. local: `ranks`; hosts: a host's slots, else local_ranks; member: local_ranks.
  int ranks = 1;        // in total, where that is known before the start; else 0
  int local_ranks = 1;  // of one node; 0 = as many as it has GPUs, without GPUs one

  std::vector<Host> hosts;  // mode hosts
  int min_nodes = 1;
  int max_nodes = 1;

  // member
  bool elastic = false;  // tcp / c10d: the rendezvous gives the ranks; else machine_rank does
  int machine_rank = 0;
  std::string address = "127.0.0.1";  // of the rendezvous: main_process_ip or rdzv_endpoint
  uint16_t port = 0;

  // For the workers' own meeting (MASTER_PORT); 0 = a free one, reserved until they have it.
  uint16_t master_port = 0;

  std::string run_id = "none";
  std::string token;      // from --token_file or MTL_TOKEN_FILE; empty = see member mode in job.h
  std::string interface;  // network interface, address or CIDR to use; empty = by the route
  int max_restarts = 0;   // of the job
  std::chrono::milliseconds dead_after{5'000};      // silence that counts as death
  std::chrono::milliseconds join_timeout{600'000};  // until min_nodes are there
  std::chrono::milliseconds last_call{10'000};      // for more, beyond min_nodes
  std::chrono::milliseconds grace{30'000};

  LogOptions logs;
  Binding binding = Binding::none;
  int omp_threads = 0;                     // 0 = cores / ranks
  std::map<std::string, std::string> env;  // --env NAME=value, also for remote workers
  std::vector<std::string> forward;        // names of variables of ours that remote workers get too

  std::string ssh_command;  // see ssh/fleet.h
  std::string ssh_config;
  std::string remote_program;  // mtl on the far side; empty = the path of this one
};

}  // namespace mtl
