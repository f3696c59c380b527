// The commands of mtl, one file each. A command gets its own arguments, writes data to stdout and
// everything else to stderr, and returns the exit code; what stops it is thrown as Error.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"

namespace mtl {

int command_config(const Arguments& args);
int command_launch(const Arguments& args);
int command_submit(const Arguments& args);
int command_plan(const Arguments& args);
int command_test(const Arguments& args);
int command_generate(const Arguments& args);
int command_data(const Arguments& args);
int command_ckpt(const Arguments& args);
int command_logs(const Arguments& args);
int command_report(const Arguments& args);
int command_ps(const Arguments& args);
int command_stop(const Arguments& args);
int command_top(const Arguments& args);
int command_env(const Arguments& args);
int command_recipes(const Arguments& args);
int command_estimate_memory(const Arguments& args);
int command_topo(const Arguments& args);
int command_doctor(const Arguments& args);
int command_version(const Arguments& args);
int command_completion(const Arguments& args);
int command_complete(const Arguments& args);
int command_share(const Arguments& args);
int command_help(const Arguments& args);
int command_worker(const Arguments& args);
int command_selftest(const Arguments& args);
int command_agent(const Arguments& args);

struct Command {
  const char* name;
  const char* summary;  // nullptr: not shown in the overview
  int (*run)(const Arguments& args);
  bool lesser = false;  // the overview only names it; `mtl help` has it in full
};
const std::vector<Command>& commands();

// `mtl` alone and `mtl --help`: one screen. `mtl help`: with every command.
std::string overview(int columns, bool all = false);

// Everything after the program's name. Throws Error.
int run_program(const Arguments& args);

}  // namespace mtl
