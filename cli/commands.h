// The commands of mtl, one file each. A command gets its own arguments, writes data to stdout and
// everything else to stderr, and returns the exit code; what stops it is thrown as Error.
#pragma once

#include <string>
#include <vector>

namespace mtl {

using Arguments = std::vector<std::string>;

int command_config(const Arguments& args);
int command_launch(const Arguments& args);
int command_plan(const Arguments& args);
int command_test(const Arguments& args);
int command_generate(const Arguments& args);
int command_data(const Arguments& args);
int command_ckpt(const Arguments& args);
int command_logs(const Arguments& args);
int command_env(const Arguments& args);
int command_version(const Arguments& args);
int command_help(const Arguments& args);
int command_worker(const Arguments& args);
int command_selftest(const Arguments& args);
int command_agent(const Arguments& args);

struct Command {
  const char* name;
  const char* summary;  // nullptr: not shown in the overview
  int (*run)(const Arguments& args);
};
const std::vector<Command>& commands();

// `mtl` alone and `mtl --help`: one screen.
std::string overview(int columns);

// Everything after the program's name. Throws Error.
int run_program(const Arguments& args);

}  // namespace mtl
