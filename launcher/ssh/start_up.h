// What a far command says before it is known to run: the noise of a login shell's start-up files up
// to the magic line, and the last lines of stderr. Used with libssh and with OpenSSH alike.
#pragma once

#include <string>
#include <string_view>

namespace mtl::ssh {

class MagicFilter {
 public:
  explicit MagicFilter(std::string magic) : magic_(std::move(magic)) {}
  // True once the magic line has come; `rest` is then what followed it in these bytes. A line that
  // ends with the magic counts: a start-up file may print without a newline.
  bool feed(std::string_view bytes, std::string_view& rest);
  // What came before, at most its last 64 KiB, as text (controls replaced).
  std::string noise() const;

 private:
  void keep(std::string_view bytes);

  std::string magic_;
  std::string line_;  // the unfinished one
  std::string noise_;
};

// The last lines of a stream: 20, of 8 KiB in all.
class Tail {
 public:
  void add(std::string_view bytes);
  std::string text() const;

 private:
  std::string kept_;
};

// The last `lines` lines of `text`, without control characters but tabs and newlines.
std::string last_lines(std::string_view text, size_t lines);

}  // namespace mtl::ssh
