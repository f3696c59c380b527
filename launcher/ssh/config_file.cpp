// Reading of ssh configurations: lines, blocks and includes. What they say about a host is in
// config.cpp.
#include <algorithm>
#include <filesystem>
#include <glob.h>

#include <fmt/format.h>

#include "common/files.h"
#include "common/text.h"
#include "launcher/ssh/config.h"

namespace mtl::ssh {

namespace {

constexpr int kIncludeDepth = 16;  // as OpenSSH

// keyword and arguments, with "quotes", `=` after the keyword, and # comments at a word's start.
struct Words {
  std::string key, raw;
  std::vector<std::string> arguments;
  bool open_quote = false;
};

Words split(std::string_view line) {
  Words words;
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f'; };
  size_t at = 0;
  const auto skip = [&] {
    while (at < line.size() && space(line[at])) ++at;
  };
  skip();
  if (at == line.size() || line[at] == '#') return words;
  const size_t start = at;
  while (at < line.size() && !space(line[at]) && line[at] != '=') ++at;
  words.key = lower(line.substr(start, at - start));
  skip();
  if (at < line.size() && line[at] == '=') ++at;
  skip();
  words.raw = line.substr(at);
  while (!words.raw.empty() && space(words.raw.back())) words.raw.pop_back();
  while (at < line.size() && line[at] != '#') {
    std::string word;
    char quote = 0;
    for (; at < line.size() && (quote != 0 || !space(line[at])); ++at) {
      const char c = line[at];
      if (quote == 0 && (c == '"' || c == '\'')) {
        quote = c;
      } else if (quote != 0 && c == quote) {
        quote = 0;
      } else if (c == '\\' && at + 1 < line.size() &&
                 (line[at + 1] == '"' || line[at + 1] == '\'' || line[at + 1] == '\\')) {
        word += line[++at];
      } else {
        word += c;
      }
    }
    words.open_quote = words.open_quote || quote != 0;
    words.arguments.push_back(std::move(word));
    skip();
  }
  return words;
}

}  // namespace

Config::Config(const std::string& file) {
  if (file == "none") return;
  user_config_ = true;
  if (!file.empty()) {
    read(file, true, -1, 0);
    return;
  }
  read(home_directory() + "/.ssh/config", false, -1, 0);
  user_config_ = false;
  read("/etc/ssh/ssh_config", false, -1, 0);
}

void Config::read(const std::string& path, bool required, int block, int depth) {
  std::error_code ignored;
  if (!required && !std::filesystem::exists(path, ignored)) return;
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw Error(Exit::environment, {.code = "ssh.config",
                                    .what = "the ssh configuration cannot be read",
                                    .place = Place{path},
                                    .notes = {error.diagnostics().front().what}});
  }
  const int outer = block;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    Words words = split(std::string_view(text).substr(at, end - at));
    at = end + 1;
    ++number;
    if (words.key.empty()) continue;
    const Place place{path, number};
    if (words.open_quote || words.arguments.empty()) {
      throw Error(Exit::config,
                  {.code = "ssh.config",
                   .what = words.open_quote ? "a quote is not closed"
                                            : fmt::format("'{}' has no value", words.key),
                   .place = place});
    }
    if (words.key == "host" || words.key == "match") {
      blocks_.push_back({words.key == "match", std::move(words.arguments), place, outer});
      block = static_cast<int>(blocks_.size()) - 1;
    } else if (words.key == "include") {
      if (depth == kIncludeDepth) {
        throw Error(
            Exit::config,
            {.code = "ssh.config", .what = "files include each other without end", .place = place});
      }
      for (std::string name : words.arguments) {
        if (name.starts_with("~/")) name = home_directory() + name.substr(1);
        if (!name.starts_with('/')) {
          name = (user_config_ ? home_directory() + "/.ssh/" : "/etc/ssh/") + name;
        }
        std::vector<std::string> files;
        glob_t found{};
        if (glob(name.c_str(), 0, nullptr, &found) == 0) {
          files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
        }
        globfree(&found);
        for (const std::string& one : files) {
          // Among the files of a pattern a folder is none, as to OpenSSH.
          if (!std::filesystem::is_directory(one, ignored)) read(one, false, block, depth + 1);
        }
      }
    } else {
      lines_.push_back(
          {std::move(words.key), std::move(words.arguments), std::move(words.raw), place, block});
    }
  }
}

}  // namespace mtl::ssh
