// What a run is doing by its files: status.json is of a process that may have been killed since.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace mtl {

// The file of a run directory that whoever works in it holds a lock on.
inline constexpr const char* kRunLock = "lock";

// The state of status.json: running, done, stopped, failed; "" = none. `lost` instead of `running`
// if nobody works on it any more and nobody has said so: no process holds the run's lock. Where a
// lock may be one that other machines do not see, so where env.json is of another machine, it is
// lost after an hour without a word (`last_heard`: of other files, as in status.json).
std::string state_of_run(const std::filesystem::path& dir, const nlohmann::json& status,
                         const std::string& last_heard = "");

}  // namespace mtl
