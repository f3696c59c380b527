// What tests look for in what programs say and write.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace mtl::test {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// All that a file holds; "" where there is none. Of /proc, whose files end with their process while
// they are read, what there was (an iterator over the stream would throw).
inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// 400 lines that repeat themselves: a model of a few thousand parameters learns them in seconds.
inline std::string fox_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "the quick brown fox jumps over the lazy dog " + std::to_string(i % 7) + "\n";
  }
  return text;
}

}  // namespace mtl::test
