// Keys as people press them: from the bytes of a terminal to a word for each key, and a terminal
// that gives every key at once and is always put back as it was.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace mtl {

struct Key {
  enum class Kind {
    character,  // `text` is one character in UTF-8
    enter,
    tab,
    backspace,
    escape,
    up,
    down,
    left,
    right,
    home,
    end,
    page_up,
    page_down,
    erase,      // Del
    interrupt,  // Ctrl-C
    suspend,    // Ctrl-Z
    kill_line,  // Ctrl-U
    closed,     // nothing will follow: Ctrl-D, or the terminal is gone
    resize,     // the window has another size
    other,      // a sequence that means nothing here
  };
  Kind kind = Kind::other;
  std::string text = {};
  bool operator==(const Key&) const = default;
};

// Pure. Sequences may arrive in pieces; both forms of the arrows are known (ESC [ A, and ESC O A of
// terminals in application mode).
class KeyDecoder {
 public:
  void feed(std::string_view bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // The next whole key. `quiet`: nothing followed for a while, so an unfinished sequence is one
  // that has ended: a lone ESC is the Esc key.
  std::optional<Key> next(bool quiet);
  // Bytes are there that may be the start of a key.
  bool unfinished() const { return !bytes_.empty(); }

 private:
  std::optional<Key> sequence(bool quiet);
  std::optional<Key> utf8(bool quiet);
  Key take(size_t count, Key::Kind kind);

  std::deque<char> bytes_;
};

// A terminal that gives each key as it is pressed, without echo, its cursor hidden, on a screen of
// its own (the alternate one: what was there before comes back). One at a time.
// Put back by the destructor, and when a signal ends the program (INT, TERM, HUP, QUIT).
class RawTerminal {
 public:
  // Throws Error (Exit::environment, terminal.mode) if the descriptor is no terminal.
  RawTerminal(int in, int out);
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;
  // Waits for a key or a new size.
  Key read();
  // To the shell and back again (Ctrl-Z, fg).
  void suspend();

 private:
  void enter();
  int in_, out_;
  KeyDecoder decoder_;
};

}  // namespace mtl
