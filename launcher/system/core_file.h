// Where a dumped core went: what /proc/sys/kernel/core_pattern makes of a process.
#pragma once

#include <string>

#include <sys/types.h>

namespace mtl {

// A sentence for people; `pattern` and `uses_pid` are the contents of the two files in
// /proc/sys/kernel, `program` is the path of what was started.
std::string core_note(const std::string& pattern, bool uses_pid, const std::string& program,
                      pid_t pid);
// ... of this machine.
std::string core_note(const std::string& program, pid_t pid);

}  // namespace mtl
