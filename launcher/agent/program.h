// From a worker's command to something that execve takes: the program found in PATH, the
// environment merged.
#pragma once

#include "launcher/agent/agent.h"
#include "launcher/agent/keeper.h"

namespace mtl {

// Exit codes of a program that does not start, as a shell gives them.
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// Everything but the descriptors `out` and `err`; makes the error file's directory and removes what
// an earlier process left there. Throws Error with exit 127
// "launch.program_missing" or 126 "launch.program_not_executable".
// A program that the last of `before` has found in the same PATH is not looked for again.
Launch prepare_launch(const WorkerCommand& command, const std::vector<Launch>& before = {});

// The error of an execve that failed with `error` although the program is there.
Error exec_error(const Launch& launch, int error);
// The error of a worker that could not be bound to its CPUs: Exit::environment "launch.affinity".
Error bind_error(const WorkerCommand& command, int error);

}  // namespace mtl
