// The run or checkpoint that a person means by a word.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

// The directory that a person means by RUN: a run directory, run.dir/run.name (its newest run), or
// a checkpoint directory. Of an imported model with runs beside it, the newest of these.
std::filesystem::path find_run(const std::string& text);
// The checkpoint that a person means by RUN or CHECKPOINT: it, or the newest complete one of the
// run. It is not verified. Throws Error (Exit::data) run.missing, ckpt.missing.
std::filesystem::path find_checkpoint(const std::string& text);
// The same, and every byte of a run's is verified: damaged ones are passed over, which is said on
// stderr.
std::filesystem::path find_intact_checkpoint(const std::string& text);
// The checkpoint of ours that init.from names: itself, or the newest one of a run or of the runs of
// a name below `run_dir`. Nothing where there is none.
std::optional<std::filesystem::path> named_checkpoint(const std::string& name,
                                                      const std::string& run_dir);

// The sub-directories that are runs, newest first (their names begin with the time).
std::vector<std::filesystem::path> runs_of(const std::filesystem::path& name_dir);

}  // namespace mtl
