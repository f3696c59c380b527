// Every failure to write a checkpoint is one error, ckpt.write, whatever call it came from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/error.h"

namespace mtl {

// Throws Error (Exit::environment) ckpt.write with the file and the system's reason.
[[noreturn]] void fail_write(const std::filesystem::path& path, const std::string& reason);
// `needed`: bytes of the whole file, which are named when the disk is full; 0 = not known.
[[noreturn]] void fail_write(const std::filesystem::path& path, int error_number,
                             int64_t needed = 0);

// Runs `call`, whose errors file.* of common/files.h become ckpt.write.
template <class Call>
void as_write_error(const std::filesystem::path& path, Call call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.diagnostics()[0].code == "ckpt.write") throw;
    const std::string& what = error.diagnostics()[0].what;
    const std::string known = "cannot write " + path.string() + ": ";
    fail_write(path, what.starts_with(known) ? what.substr(known.size()) : what);
  }
}

}  // namespace mtl
