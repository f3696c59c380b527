// A lock on a file that lasts as long as the process that holds it, and so says whether that lives.
#pragma once

#include <filesystem>
#include <optional>

#include "common/files.h"

namespace mtl {

// Makes the file if there is none. Nothing if another process holds the lock. A descriptor without
// a lock where the file system knows none, and none where the file cannot be opened.
std::optional<Fd> take_lock(const std::filesystem::path& path);

// Waits until no other process holds the directory that `path` is, or would lie in: the nearest
// that there is. As above without a lock where there is none.
Fd lock_directory_of(const std::filesystem::path& path);

// Whether a process holds it; nothing if that cannot be known (there is no such file, or it is on a
// file system without locks). Some network file systems keep locks to each machine: there it is
// false of a holder elsewhere.
std::optional<bool> is_locked(const std::filesystem::path& path);

}  // namespace mtl
