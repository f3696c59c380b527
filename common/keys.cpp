#include "common/keys.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

namespace {

constexpr char kEsc = '\x1b';

Key::Kind of_letter(char letter) {
  switch (letter) {
    case 'A':
      return Key::Kind::up;
    case 'B':
      return Key::Kind::down;
    case 'C':
      return Key::Kind::right;
    case 'D':
      return Key::Kind::left;
    case 'H':
      return Key::Kind::home;
    case 'F':
      return Key::Kind::end;
    case 'M':
      return Key::Kind::enter;  // of the number block
    default:
      return Key::Kind::other;
  }
}

// ESC [ 5 ~ and its like.
Key::Kind of_number(int number) {
  switch (number) {
    case 1:
    case 7:
      return Key::Kind::home;
    case 4:
    case 8:
      return Key::Kind::end;
    case 3:
      return Key::Kind::erase;
    case 5:
      return Key::Kind::page_up;
    case 6:
      return Key::Kind::page_down;
    default:
      return Key::Kind::other;
  }
}

}  // namespace

Key KeyDecoder::take(size_t count, Key::Kind kind) {
  Key key{kind, {}};
  for (size_t i = 0; i < count; ++i) {
    if (kind == Key::Kind::character) key.text += bytes_.front();
    bytes_.pop_front();
  }
  return key;
}

std::optional<Key> KeyDecoder::next(bool quiet) {
  if (bytes_.empty()) return std::nullopt;
  switch (bytes_.front()) {
    case kEsc:
      return sequence(quiet);
    case '\r':
    case '\n':
      return take(1, Key::Kind::enter);
    case '\t':
      return take(1, Key::Kind::tab);
    case '\x7f':
    case '\b':
      return take(1, Key::Kind::backspace);
    case '\x01':
      return take(1, Key::Kind::home);
    case '\x05':
      return take(1, Key::Kind::end);
    case '\x03':
      return take(1, Key::Kind::interrupt);
    case '\x04':
      return take(1, Key::Kind::closed);
    case '\x0e':
      return take(1, Key::Kind::down);
    case '\x10':
      return take(1, Key::Kind::up);
    case '\x15':
      return take(1, Key::Kind::kill_line);
    case '\x1a':
      return take(1, Key::Kind::suspend);
    default:
      if (static_cast<unsigned char>(bytes_.front()) < 0x20) return take(1, Key::Kind::other);
      return utf8(quiet);
  }
}

std::optional<Key> KeyDecoder::sequence(bool quiet) {
  if (bytes_.size() == 1) {
    if (!quiet) return std::nullopt;
    return take(1, Key::Kind::escape);
  }
  if (bytes_[1] == 'O') {
    if (bytes_.size() == 2) {
      if (!quiet) return std::nullopt;
      return take(2, Key::Kind::other);
    }
    return take(3, of_letter(bytes_[2]));
  }
  if (bytes_[1] != '[') {
    // Esc and then another key, or Alt with a key: the Esc counts, and what follows on its own.
    return take(1, Key::Kind::escape);
  }
  // ESC [ parameters (0x30-0x3F) intermediates (0x20-0x2F) final (0x40-0x7E)
  int number = 0;
  bool first = true;  // the modifiers of ESC [ 1 ; 5 A are not looked at
  for (size_t i = 2; i < bytes_.size(); ++i) {
    const char c = bytes_[i];
    if (c >= 0x40 && c <= 0x7e) {
      return take(i + 1, c == '~' ? of_number(number) : of_letter(c));
    }
    if (c < 0x20 || c > 0x3f) return take(i, Key::Kind::other);  // no sequence: drop its start
    if (c == ';') first = false;
    if (first && c >= '0' && c <= '9' && number < 1000) number = number * 10 + (c - '0');
  }
  if (!quiet) return std::nullopt;
  return take(bytes_.size(), Key::Kind::other);
}

std::optional<Key> KeyDecoder::utf8(bool quiet) {
  const auto lead = static_cast<unsigned char>(bytes_.front());
  const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead >= 0x80 && (lead < 0xc2 || lead > 0xf4)) return take(1, Key::Kind::other);
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes_.size()) {
      if (!quiet) return std::nullopt;
      return take(i, Key::Kind::other);
    }
    if ((static_cast<unsigned char>(bytes_[i]) & 0xc0) != 0x80) return take(i, Key::Kind::other);
  }
  return take(length, Key::Kind::character);
}

namespace {

// What a signal handler needs, so nothing here may be more than plain memory.
constexpr std::array<int, 4> kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
termios g_saved;
int g_in = -1, g_out = -1;
volatile sig_atomic_t g_resized = 0;
struct sigaction g_old_ending[kEnding.size()];
struct sigaction g_old_winch;

void put_back() {
  const int error = errno;
  // Draining could wait for a terminal that nobody reads any more.
  tcsetattr(g_in, TCSANOW, &g_saved);
  constexpr char show[] = "\x1b[?25h\x1b[?1049l";
  [[maybe_unused]] const ssize_t written = write(g_out, show, sizeof(show) - 1);
  errno = error;
}

void on_ending(int signal) {
  put_back();
  // As if there had been no handler; delivered when this one returns.
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void on_winch(int) {
  g_resized = 1;
}

}  // namespace

RawTerminal::RawTerminal(int in, int out) : in_(in), out_(out) {
  if (tcgetattr(in, &g_saved) != 0) {
    throw Error(Exit::environment,
                Diagnostic{.code = "terminal.mode",
                           .what = fmt::format("the terminal cannot be read key by key: {}",
                                               std::strerror(errno)),
                           .help = "TERM=dumb mtl config asks line by line"});
  }
  g_in = in;
  g_out = out;
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_ending;
  for (size_t i = 0; i < kEnding.size(); ++i) sigaction(kEnding[i], &action, &g_old_ending[i]);
  action.sa_handler = on_winch;  // without SA_RESTART: poll() returns
  sigaction(SIGWINCH, &action, &g_old_winch);
  enter();
}

RawTerminal::~RawTerminal() {
  put_back();
  for (size_t i = 0; i < kEnding.size(); ++i) sigaction(kEnding[i], &g_old_ending[i], nullptr);
  sigaction(SIGWINCH, &g_old_winch, nullptr);
}

void RawTerminal::enter() {
  termios raw = g_saved;
  raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL | INLCR | IGNCR | ISTRIP | BRKINT);
  // Output keeps its newlines; ISIG goes, so that Ctrl-C is a key with an answer.
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN | ISIG);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  tcsetattr(in_, TCSANOW, &raw);
  constexpr char hide[] = "\x1b[?1049h\x1b[?25l";
  [[maybe_unused]] const ssize_t written = write(out_, hide, sizeof(hide) - 1);
}

void RawTerminal::suspend() {
  put_back();
  raise(SIGTSTP);  // the shell's; comes back with fg
  enter();
}

Key RawTerminal::read() {
  constexpr int kSequence_ms = 60;  // within which the rest of a sequence comes, over ssh too
  bool quiet = false;
  while (true) {
    if (g_resized != 0) {
      g_resized = 0;
      return {Key::Kind::resize, {}};
    }
    if (auto key = decoder_.next(quiet)) return *key;
    // A resize between the look above and the poll is seen with the poll's end: at the latest after
    // half a second.
    pollfd wait{in_, POLLIN, 0};
    const int ready = poll(&wait, 1, decoder_.unfinished() ? kSequence_ms : 500);
    if (ready < 0 && errno != EINTR) return {Key::Kind::closed, {}};
    quiet = ready == 0;
    if (ready <= 0) continue;
    char buffer[256];
    const ssize_t got = ::read(in_, buffer, sizeof(buffer));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return {Key::Kind::closed, {}};
    decoder_.feed({buffer, static_cast<size_t>(got)});
  }
}

}  // namespace mtl
