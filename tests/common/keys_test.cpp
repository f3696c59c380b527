// Keys from bytes, whole and in pieces.
#include "common/keys.h"

#include <vector>

#include <doctest/doctest.h>

using namespace mtl;
using Kind = Key::Kind;

namespace {

std::vector<Key> all(KeyDecoder& decoder, bool quiet) {
  std::vector<Key> keys;
  while (const auto key = decoder.next(quiet)) keys.push_back(*key);
  return keys;
}

std::vector<Kind> kinds(const std::string& bytes) {
  KeyDecoder decoder;
  decoder.feed(bytes);
  std::vector<Kind> found;
  for (const Key& key : all(decoder, true)) found.push_back(key.kind);
  return found;
}

}  // namespace

TEST_CASE("arrows of both modes and the other keys of a block") {
  for (const char* start : {"\x1b[", "\x1bO"}) {
    const std::string s = start;
    CHECK(kinds(s + "A" + s + "B" + s + "C" + s + "D" + s + "H" + s + "F") ==
          std::vector<Kind>{Kind::up, Kind::down, Kind::right, Kind::left, Kind::home, Kind::end});
  }
  CHECK(kinds("\x1b[1~\x1b[4~\x1b[3~\x1b[5~\x1b[6~\x1b[7~\x1b[8~") ==
        std::vector<Kind>{Kind::home, Kind::end, Kind::erase, Kind::page_up, Kind::page_down,
                          Kind::home, Kind::end});
  CHECK(kinds("\x1b[1;5A\x1b[200~x") == std::vector<Kind>{Kind::up, Kind::other, Kind::character});
  CHECK(kinds("\r\n\t\x7f\b\x03\x04\x15\x1a") ==
        std::vector<Kind>{Kind::enter, Kind::enter, Kind::tab, Kind::backspace, Kind::backspace,
                          Kind::interrupt, Kind::closed, Kind::kill_line, Kind::suspend});
}

TEST_CASE("a sequence in pieces is one key and a lone ESC is a key of its own") {
  KeyDecoder decoder;
  decoder.feed("\x1b");
  CHECK(all(decoder, false).empty());
  CHECK(decoder.unfinished());
  decoder.feed("[");
  CHECK(all(decoder, false).empty());
  decoder.feed("A");
  CHECK(all(decoder, false) == std::vector<Key>{{Kind::up, {}}});
  decoder.feed("\x1b");
  CHECK(all(decoder, false).empty());
  CHECK(all(decoder, true) == std::vector<Key>{{Kind::escape, {}}});
  CHECK(kinds("\x1bx") == std::vector<Kind>{Kind::escape, Kind::character});
  CHECK(kinds("\x1b\x1b[A") == std::vector<Kind>{Kind::escape, Kind::up});
  CHECK(kinds("\x1b[12") == std::vector<Kind>{Kind::other});
}

TEST_CASE("characters are whole ones") {
  KeyDecoder decoder;
  decoder.feed("a\xc3");
  CHECK(all(decoder, false) == std::vector<Key>{{Kind::character, "a"}});
  decoder.feed("\xa4\xe6\x97\xa5\xf0\x9f\x98\x80");
  CHECK(all(decoder, false) ==
        std::vector<Key>{{Kind::character, "ä"}, {Kind::character, "日"}, {Kind::character, "😀"}});
  CHECK(kinds("\xff\x80z\xc3z") ==
        std::vector<Kind>{Kind::other, Kind::other, Kind::character, Kind::other, Kind::character});
}
