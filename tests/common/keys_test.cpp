// Keys from bytes, whole and in pieces.
#include "common/keys.h"

#include <vector>

#include <doctest/doctest.h>

using namespace mtl;
namespace {

std::vector<Key> all(KeyDecoder& decoder, bool quiet) {
  std::vector<Key> keys;
  while (const auto key = decoder.next(quiet)) keys.push_back(*key);
  return keys;
}

std::vector<Key::Kind> kinds(const std::string& bytes) {
  KeyDecoder decoder;
  decoder.feed(bytes);
  std::vector<Key::Kind> found;
  for (const Key& key : all(decoder, true)) found.push_back(key.kind);
  return found;
}

}  // namespace

TEST_CASE("arrows of both modes and the other keys of a block") {
  for (const char* start : {"\x1b[", "\x1bO"}) {
    const std::string s = start;
    CHECK(kinds(s + "A" + s + "B" + s + "C" + s + "D" + s + "H" + s + "F") ==
          std::vector<Key::Kind>{Key::Kind::up, Key::Kind::down, Key::Kind::right, Key::Kind::left,
                                 Key::Kind::home, Key::Kind::end});
  }
  CHECK(kinds("\x1b[1~\x1b[4~\x1b[3~\x1b[5~\x1b[6~\x1b[7~\x1b[8~") ==
        std::vector<Key::Kind>{Key::Kind::home, Key::Kind::end, Key::Kind::erase,
                               Key::Kind::page_up, Key::Kind::page_down, Key::Kind::home,
                               Key::Kind::end});
  CHECK(kinds("\x1b[1;5A\x1b[200~x") ==
        std::vector<Key::Kind>{Key::Kind::up, Key::Kind::other, Key::Kind::character});
  CHECK(kinds("\r\n\t\x7f\b\x03\x04\x15\x1a") ==
        std::vector<Key::Kind>{Key::Kind::enter, Key::Kind::enter, Key::Kind::tab,
                               Key::Kind::backspace, Key::Kind::backspace, Key::Kind::interrupt,
                               Key::Kind::closed, Key::Kind::kill_line, Key::Kind::suspend});
}

TEST_CASE("a sequence in pieces is one key and a lone ESC is a key of its own") {
  KeyDecoder decoder;
  decoder.feed("\x1b");
  CHECK(all(decoder, false).empty());
  CHECK(decoder.unfinished());
  decoder.feed("[");
  CHECK(all(decoder, false).empty());
  decoder.feed("A");
  CHECK(all(decoder, false) == std::vector<Key>{{Key::Kind::up, {}}});
  decoder.feed("\x1b");
  CHECK(all(decoder, false).empty());
  CHECK(all(decoder, true) == std::vector<Key>{{Key::Kind::escape, {}}});
  CHECK(kinds("\x1bx") == std::vector<Key::Kind>{Key::Kind::escape, Key::Kind::character});
  CHECK(kinds("\x1b\x1b[A") == std::vector<Key::Kind>{Key::Kind::escape, Key::Kind::up});
  CHECK(kinds("\x1b[12") == std::vector<Key::Kind>{Key::Kind::other});
}

TEST_CASE("characters are whole ones") {
  KeyDecoder decoder;
  decoder.feed("a\xc3");
  CHECK(all(decoder, false) == std::vector<Key>{{Key::Kind::character, "a"}});
  decoder.feed("\xa4\xe6\x97\xa5\xf0\x9f\x98\x80");
  CHECK(all(decoder, false) == std::vector<Key>{{Key::Kind::character, "ä"},
                                                {Key::Kind::character, "日"},
                                                {Key::Kind::character, "😀"}});
  CHECK(kinds("\xff\x80z\xc3z") == std::vector<Key::Kind>{Key::Kind::other, Key::Kind::other,
                                                          Key::Kind::character, Key::Kind::other,
                                                          Key::Kind::character});
}
