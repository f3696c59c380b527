// The ranks of an opened run, as `mtl launch` starts them: threads of this process, or processes of
// their own, which meet as those of mpirun do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace mtl::sweep {

inline constexpr int kCrash = 99;  // a signal, or an exception that is none of ours

// The exit code of `body`, or of the error that it throws, which is said on stderr.
int saying_errors(const std::function<int()>& body);

struct Ranks {
  std::filesystem::path run_dir;
  int64_t fence = 0;
  int world = 1;
  bool processes = false;
  std::filesystem::path notes;  // where processes write their ids and errors: NOTES.RANK.*
};

// Exit code of the first that failed, with its error on stderr; 0 if none did. When a process is
// killed, the others go on for a moment, as those of a launcher do until it hears of it, and all
// end by SIGKILL, this process too.
int run_ranks(const Ranks& ranks);

std::filesystem::path id_file(const std::filesystem::path& notes, int rank);

}  // namespace mtl::sweep
