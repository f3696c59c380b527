// What can be found out about a worker's end beyond what the kernel reports.
#pragma once

#include <filesystem>

#include "launcher/agent/agent.h"

namespace mtl {

// What the rank itself wrote about its failure goes into `end.notes`. True if that says when, and
// `end.when` is that then, unless it died before.
bool read_own_words(WorkerEnd& end, const std::filesystem::path& error_file);

// The end of a worker that has been in state T since `since`: exit code 7, signal SIGSTOP.
void end_as_stopped(WorkerEnd& end, std::chrono::system_clock::time_point since);

}  // namespace mtl
