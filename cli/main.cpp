// mtl: the one place where errors are caught, printed and turned into an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "cli/commands.h"
#include "common/error.h"
#include "common/refused_path.h"
#include "common/terminal.h"

namespace {

int report(const std::vector<mtl::Diagnostic>& diagnostics, mtl::Exit exit) {
  const bool color = mtl::inspect_terminal(STDERR_FILENO).color;
  std::fflush(stdout);
  for (const mtl::Diagnostic& diagnostic : diagnostics) {
    std::fputs(mtl::render(diagnostic, color).c_str(), stderr);
  }
  return static_cast<int>(exit);
}

// `error`: errno; 0 = a write long ago, whose reason nobody knows any more.
int lost_output(int error) {
  return report(
      {{.code = "output.write",
        .what = "the output cannot be written" +
                (error != 0 ? ": " + std::generic_category().message(error) : ""),
        .help = "free space where it goes to, or send it elsewhere, and run the command again"}},
      mtl::Exit::environment);
}

int unexpected(const std::exception& error) {
  return report({{.code = "internal",
                  .what = std::string("unexpected failure: ") + error.what(),
                  .help = "this is a bug in mtl: please report it with the command and this text"}},
                mtl::Exit::run_failed);
}

}  // namespace

int main(int argc, char** argv) {
  // A file beyond its limit (ulimit -f) is then an error of the write, told like a full disk's,
  // and not a death without a word.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = mtl::run_program(mtl::Arguments(argv + (argc > 0 ? 1 : 0), argv + argc));
    // What was printed may still be on its way, or may have been lost long ago: a full disk is a
    // failure, not a success.
    const int error = std::fflush(stdout) != 0 ? errno : 0;
    return std::ferror(stdout) != 0 && code == 0 ? lost_output(error) : code;
  } catch (const mtl::Error& error) {
    return report(error.diagnostics(), error.exit());
  } catch (const std::bad_alloc&) {
    return report({{.code = "memory.host",
                    .what = "this machine has no memory left for mtl",
                    .help = "see what the run needs with: mtl plan train.yaml"}},
                  mtl::Exit::out_of_memory);
  } catch (const std::filesystem::filesystem_error& error) {
    return report({mtl::refused_path(error)}, mtl::Exit::environment);
  } catch (const std::system_error& error) {
    // fmt's, where stdout takes no more.
    if (std::ferror(stdout) != 0) return lost_output(error.code().value());
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return report({{.code = "launch.process",
                      .what = "the system starts no more threads: " + error.code().message(),
                      .help = "see the limits on processes and memory (ulimit -u, ulimit -v)"}},
                    mtl::Exit::environment);
    }
    return unexpected(error);
  } catch (const std::exception& error) {
    return unexpected(error);
  }
}
