#include "common/refused_path.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace mtl {

namespace fs = std::filesystem;

Diagnostic refused_path(const std::string& code, const std::string& action, const fs::path& path,
                        int error) {
  Diagnostic diagnostic;
  diagnostic.code = code;
  diagnostic.what = fmt::format("cannot {} {}: {}", action, path.string(),
                                std::generic_category().message(error));
  diagnostic.place = Place{path.string()};
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      diagnostic.help =
          "check the spelling of the path; relative paths start at the directory "
          "that the command was started in";
      break;
    case EACCES:
    case EPERM:
      diagnostic.help = "check the permissions of the path and of the directories above it";
      break;
    case EROFS:
      diagnostic.help = "that file system can only be read: name another place";
      break;
    case ENAMETOOLONG:
      diagnostic.help =
          "a name may be 255 bytes long and a path 4095: check that it is a path, and shorten it";
      break;
    case EFBIG:
      diagnostic.help = "files may not be as large here: see ulimit -f";
      break;
    case ELOOP:
      diagnostic.help = "its links lead in a circle: correct or remove them";
      break;
    case ENOSPC:
    case EDQUOT:
      diagnostic.help = "free some space on that file system (see: df -h) and run it again";
      break;
    case EISDIR:
      diagnostic.help = "name a file inside that directory";
      break;
    default:
      break;
  }
  return diagnostic;
}

Diagnostic refused_path(const fs::filesystem_error& error) {
  std::error_code lost;
  const fs::path here = fs::current_path(lost);
  if (here.empty() && !error.path1().is_absolute()) {
    return {.code = "file.unreadable",
            .what = "cannot find the directory that the command was started in: " + lost.message(),
            .help =
                "it has been moved, deleted or closed to you: cd to one that is there, and run "
                "the command again"};
  }
  if (error.path1().empty()) {
    // No path would be named; the library's text at least says what was done.
    return {.code = "file.unreadable",
            .what = error.what(),
            .help = "check the paths of the command and their permissions"};
  }
  Diagnostic refused =
      refused_path("file.unreadable", "access", error.path1(), error.code().value());
  if (!error.path2().empty()) refused.notes.push_back("on the way to " + error.path2().string());
  if (refused.help.empty()) refused.help = "check the path and its permissions";
  return refused;
}

}  // namespace mtl
