// A host's command line is read by the login shell of its user, which may be any.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "common/shell_word.h"
#include "ssh/loopback.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("a word is the same to every shell") {
  CHECK(shell_word("/opt/mtl-1.0/bin/mtl") == "/opt/mtl-1.0/bin/mtl");
  CHECK(shell_word("a!b'c\\") == R"('a'\!'b'\''c'\\'')");
  for (const char* shell : {"sh", "bash", "dash", "ksh", "zsh", "fish", "csh", "tcsh"}) {
    const std::string path = std::string("/usr/bin/") + shell;
    if (!std::filesystem::exists(path)) continue;  // sh and bash always are
    for (const std::string word :
         {"", "a b", "it's", "\"q\"", "$HOME", "`id`", "!y", "a!", "*", "~", "#", "\\", "a\\\\b",
          "\\'", "a\\", "[x]{y,z}", "(id)", "é"}) {
      CAPTURE(path);
      CAPTURE(word);
      std::string output;
      CHECK(run_program({path, "-c", "exec /usr/bin/printf %s " + shell_word(word)}, &output) == 0);
      CHECK(output == word);
    }
  }
}
