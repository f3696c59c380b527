#include "launcher/agent/program.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/files.h"
#include "common/shell_word.h"

extern char** environ;

namespace mtl {

namespace {

enum class Found { program, nothing, not_executable };

Found look_at(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return errno == EACCES ? Found::not_executable : Found::nothing;
  }
  if (!S_ISREG(info.st_mode) || access(path.c_str(), X_OK) != 0) return Found::not_executable;
  return Found::program;
}

[[noreturn]] void missing(const std::string& name, const std::string& help) {
  throw Error(static_cast<Exit>(kNotFound),
              Diagnostic{.code = "launch.program_missing",
                         .what = fmt::format("there is no program '{}'", name),
                         .help = help});
}

[[noreturn]] void not_executable(const std::string& path) {
  struct stat info {};
  std::string help = fmt::format("make it executable: chmod +x {}", shell_word(path));
  if (stat(path.c_str(), &info) != 0) {
    help = "this user may not enter a folder on the way to it; which one says: namei -l " +
           shell_word(path);
  } else if (S_ISDIR(info.st_mode)) {
    const std::string settings = path + "/train.yaml";
    help = access(settings.c_str(), F_OK) == 0
               ? fmt::format("a run goes on by the command that began it; its file is {}", settings)
               : fmt::format("{} is a directory; name the program or the train.yaml in it", path);
  } else if (path.ends_with(".py")) {
    help = fmt::format("run it with its interpreter: python3 {}", shell_word(path));
  }
  throw Error(static_cast<Exit>(kNotExecutable),
              Diagnostic{.code = "launch.program_not_executable",
                         .what = fmt::format("'{}' cannot be executed", path),
                         .help = help});
}

std::string find_program(const std::string& name, const std::string& path_variable) {
  if (name.find('/') != std::string::npos) {
    switch (look_at(name)) {
      case Found::program:
        return name;
      case Found::not_executable:
        not_executable(name);
      case Found::nothing:
        missing(name, "check the path; it is relative to the working directory");
    }
  }
  std::string unusable;
  size_t start = 0;
  while (!name.empty() && start <= path_variable.size()) {
    const size_t end = std::min(path_variable.find(':', start), path_variable.size());
    const std::string folder = path_variable.substr(start, end - start);
    const std::string path =
        (folder.empty() ? "." : folder) + "/" + name;  // empty = here, as in sh
    const Found found = look_at(path);
    if (found == Found::program) return path;
    if (found == Found::not_executable && unusable.empty()) unusable = path;
    start = end + 1;
  }
  // A folder in PATH that may not be searched is no sign that the program is there.
  if (!unusable.empty() && access(unusable.c_str(), F_OK) == 0) not_executable(unusable);
  const bool here = !name.empty() && access(name.c_str(), F_OK) == 0;
  missing(name, here ? fmt::format("a file of this name is here: write ./{}", name)
                     : fmt::format("it was looked for in PATH={}", path_variable));
}

// Bits as the kernel reads them.
std::vector<unsigned long> bit_mask(const std::vector<int>& bits) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (int bit : bits) {
    if (bit < 0) continue;
    const size_t word = static_cast<size_t>(bit) / kBits;
    if (mask.size() <= word) mask.resize(word + 1);
    mask[word] |= 1UL << (static_cast<size_t>(bit) % kBits);
  }
  return mask;
}

}  // namespace

Launch prepare_launch(const WorkerCommand& command, const std::vector<Launch>& before) {
  Launch launch;
  if (command.argv.empty()) missing("", "give a program to launch");
  std::map<std::string, std::string> env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const std::string& name : command.unset) {
    const bool prefix = name.ends_with('*');
    const std::string_view start = std::string_view(name).substr(0, name.size() - (prefix ? 1 : 0));
    std::erase_if(env, [&](const auto& entry) {
      return prefix ? entry.first.starts_with(start) : entry.first == name;
    });
  }
  if (!command.error_file.empty()) {
    const std::filesystem::path file = std::filesystem::absolute(command.error_file);
    make_directories(file.parent_path());
    std::error_code ignored;
    std::filesystem::remove(file, ignored);  // of a generation before this one
    env["TORCHELASTIC_ERROR_FILE"] = file;
  }
  for (const auto& [name, value] : command.env) env[name] = value;
  launch.cpus = bit_mask(command.cpus);
  if (command.numa >= 0) launch.nodes = bit_mask({command.numa});
  const auto path = env.find("PATH");
  launch.path = path != env.end() ? path->second : "/usr/local/bin:/usr/bin:/bin";
  const bool found = !before.empty() && before.back().argv[0] == command.argv[0] &&
                     before.back().path == launch.path;
  launch.program = found ? before.back().program : find_program(command.argv[0], launch.path);
  launch.argv = command.argv;
  launch.takes_signals = command.takes_signals;
  for (const auto& [name, value] : env) launch.env.push_back(name + "=" + value);
  for (const auto& [there, here] : command.inherit) {
    if (fcntl(here, F_GETFD) < 0) {
      throw Error(Exit::environment,
                  Diagnostic{.code = "launch.descriptor",
                             .what = fmt::format(
                                 "descriptor {}, which rank {} is to inherit as {}, is not open",
                                 here, command.rank, there)});
    }
    launch.inherit.emplace_back(there, here);
  }
  return launch;
}

Error exec_error(const Launch& launch, int error) {
  Diagnostic diagnostic{
      .code = error == ENOENT ? "launch.program_missing" : "launch.program_not_executable",
      .what = fmt::format("'{}' cannot be started: {}", launch.program, strerror(error))};
  if (error == ENOENT) {
    diagnostic.help =
        "the file is there: the interpreter of its #! line, or the loader that it "
        "was linked for, is missing";
  } else if (error == ENOEXEC) {
    diagnostic.help =
        "it is no program for this machine; a script needs a first line like "
        "#!/bin/sh";
  } else if (error == E2BIG) {
    diagnostic.help = "its arguments and environment are too long together";
  }
  return Error(static_cast<Exit>(error == ENOENT ? kNotFound : kNotExecutable), diagnostic);
}

Error bind_error(const WorkerCommand& command, int error) {
  std::string cpus;
  for (int cpu : command.cpus) cpus += fmt::format("{}{}", cpus.empty() ? "" : ",", cpu);
  return Error(Exit::environment,
               Diagnostic{.code = "launch.affinity",
                          .what = fmt::format("rank {} cannot be bound to CPU {}: {}", command.rank,
                                              cpus, strerror(error)),
                          .help = "this process may use the CPUs that taskset -cp $$ prints; the "
                                  "container or the scheduler decides"});
}

}  // namespace mtl
