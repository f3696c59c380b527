// What the system has refused to do with a path, and what to do about it.
#pragma once

#include <filesystem>
#include <string>

#include "common/error.h"

namespace mtl {

// "cannot ACTION PATH: the system's reason"; `error`: errno.
Diagnostic refused_path(const std::string& code, const std::string& action,
                        const std::filesystem::path& path, int error);
// The same of an error that a function of the standard library has thrown, as those do where only
// the unforeseen is one: a folder of somebody else, links that lead in a circle, a name that is too
// long, a working directory that has been deleted. Code file.unreadable.
Diagnostic refused_path(const std::filesystem::filesystem_error& error);

}  // namespace mtl
