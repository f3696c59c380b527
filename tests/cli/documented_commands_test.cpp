// README.md and docs/: each command there exists with its options, each key is one of train.yaml,
// each YAML reads, and each link leads somewhere. Nothing is started.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cli/command_description.h"
#include "cli/commands.h"
#include "cli/program.h"
#include "common/error.h"
#include "common/yaml.h"
#include "runtime/spec/load_text.h"
#include "runtime/spec/train_spec.h"

using namespace mtl;
namespace fs = std::filesystem;

namespace {

struct DocPage {
  fs::path path;
  std::string name;
  std::vector<std::string> lines;
};

const std::vector<DocPage>& doc_pages() {
  static const std::vector<DocPage> pages = [] {
    const fs::path root = MTL_SOURCE_DIR;
    std::vector<fs::path> paths = {root / "README.md"};
    for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
      if (entry.path().extension() == ".md") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    std::vector<DocPage> all;
    for (const fs::path& path : paths) {
      DocPage page{path, fs::relative(path, root).string(), {}};
      std::istringstream in(test::file_text(path));
      for (std::string line; std::getline(in, line);) page.lines.push_back(line);
      all.push_back(std::move(page));
    }
    return all;
  }();
  return pages;
}

// Fenced blocks; `what` stands behind the fence.
struct Block {
  std::string what;
  size_t line = 0;
  std::vector<std::string> lines;
};

std::vector<Block> blocks_of(const DocPage& page) {
  std::vector<Block> blocks;
  bool inside = false;
  for (size_t i = 0; i < page.lines.size(); ++i) {
    const std::string& line = page.lines[i];
    const size_t start = line.find_first_not_of(' ');
    if (start != std::string::npos && line.compare(start, 3, "```") == 0) {
      inside = !inside;
      if (inside) blocks.push_back({line.substr(start + 3), i + 1, {}});
    } else if (inside) {
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

// Words as a shell makes them, up to a comment; `|` is what ends a command.
std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  // Half a word, and a list of files.
  if (line.find("<Tab>") != std::string::npos) return words;
  if (line.find("mtl  ") != std::string::npos) return words;
  std::string word;
  bool any = false;
  char quote = '\0';
  const auto end_word = [&] {
    if (any) words.push_back(word);
    word.clear();
    any = false;
  };
  for (const char c : line) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      any = true;
    } else if (c == ' ') {
      end_word();
    } else if (c == '#' && !any) {
      break;
    } else if (c == '|' || c == '>' || c == ';' || c == '&' || c == ')') {
      end_word();
      words.emplace_back("|");
    } else if (c == '<' || c == '(') {
      end_word();
    } else {
      word += c;
      any = true;
    }
  }
  end_word();
  return words;
}

bool names_mtl(const std::string& word) {
  return word == "mtl" || word == "build/mtl" || word.ends_with("/bin/mtl");
}

bool is_command(const std::string& word) {
  const auto& all = commands();
  return std::any_of(all.begin(), all.end(),
                     [&](const Command& command) { return word == command.name; });
}

bool is_placeholder(const std::string& word) {
  return word.find("...") != std::string::npos || word.find('<') != std::string::npos;
}

// A placeholder, or one of the words that a value may be: "auto|local|ssh".
bool value_fits(const OptionDeclaration& option, const std::string& value) {
  if (option.value_name.find('|') == std::string::npos || is_placeholder(value)) return true;
  std::istringstream words(option.value_name);
  for (std::string word; std::getline(words, word, '|');) {
    const bool open = std::any_of(word.begin(), word.end(), [](char c) {
      return std::isupper(static_cast<unsigned char>(c));
    });
    if (open || word == value || word.find(':') != std::string::npos) return true;
  }
  return false;
}

// "model.layers=2", with a key that could be one of train.yaml.
std::optional<std::string> setting_key(const std::string& word) {
  static const std::regex kSetting("([a-z_0-9]+(\\.[a-z_0-9]+)+)=.*");
  std::smatch match;
  if (!std::regex_match(word, match, kSetting)) return std::nullopt;
  return match[1].str();
}

bool is_train_key(const std::string& key) {
  static const std::vector<std::string> keys = spec_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& known) {
    return known == key || known.starts_with(key + ".");
  });
}

// What is wrong with the words behind `mtl`, "" if nothing is.
std::string problem_of(std::vector<std::string> words) {
  words.erase(std::find(words.begin(), words.end(), "|"), words.end());
  if (words.empty() || words[0].starts_with("-") || is_placeholder(words[0])) return "";
  if (!is_command(words[0])) return "there is no command " + words[0];
  std::vector<std::string> command = {words[0]};
  CommandDescription description = describe(command);
  if (!description.members.empty() && words.size() > 1 && !words[1].starts_with("-") &&
      !is_placeholder(words[1])) {
    const bool member = std::any_of(description.members.begin(), description.members.end(),
                                    [&](const auto& row) { return row.first == words[1]; });
    if (!member) return words[0] + " has no " + words[1];
    command.push_back(words[1]);
    description = describe(command);
  }
  const bool starts_programs = words[0] == "launch" || words[0] == "submit";
  for (size_t i = command.size(); i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--" || word == "---") break;  // what follows is another's, or a picture
    if (!word.starts_with("-") || word == "-" || is_placeholder(word)) {
      if (const auto key = setting_key(word); key && !is_train_key(*key)) {
        return "there is no key " + *key;
      }
      const bool program = starts_programs && !word.ends_with(".yaml") && !setting_key(word) &&
                           !is_placeholder(word);
      if (program) break;  // its own arguments
      continue;
    }
    const bool is_long = word.starts_with("--");
    const size_t equals = word.find('=');
    const std::string name = word.substr(is_long ? 2 : 1, equals - (is_long ? 2 : 1));
    if (name == "help" || name == "h") continue;
    bool negated = false;
    const OptionDeclaration* option =
        is_long ? description.option(name, negated) : description.option(name[0]);
    if (option == nullptr) return command.back() + " has no option " + word;
    if (option->is_flag) continue;
    if (equals == std::string::npos && ++i == words.size()) return word + " lacks its value";
    const std::string value = equals == std::string::npos ? words[i] : word.substr(equals + 1);
    if (!value_fits(*option, value)) return word + " cannot be " + value;
  }
  return "";
}

// The commands of a page: those of its blocks, lines that go on joined, and those in its text.
std::vector<std::vector<std::string>> documented_commands(const DocPage& page) {
  std::vector<std::vector<std::string>> found;
  for (const Block& block : blocks_of(page)) {
    std::string whole;
    for (const std::string& line : block.lines) {
      whole += line;
      if (whole.ends_with("\\")) {
        whole.back() = ' ';
        continue;
      }
      const std::vector<std::string> words = shell_words(whole);
      whole.clear();
      for (size_t i = 0; i + 1 < words.size(); ++i) {
        // Behind other words there is a command only where its name follows.
        const bool first = i == 0 || words[i - 1].ends_with("$") || words[i - 1] == "|";
        if (!names_mtl(words[i]) || !(first || is_command(words[i + 1]))) continue;
        // `mtl 0.1.0` is what it prints.
        if (std::isdigit(static_cast<unsigned char>(words[i + 1][0])) != 0) continue;
        found.emplace_back(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
        break;
      }
    }
  }
  for (const std::string& line : page.lines) {  // indented, as blocks are without a fence
    if (!line.starts_with("    mtl ")) continue;
    std::vector<std::string> words = shell_words(line);
    if (words.empty()) continue;
    words.erase(words.begin());
    found.push_back(std::move(words));
  }
  static const std::regex kSpan("`((build/)?mtl [^`]*)`");
  std::string text;
  for (const std::string& line : page.lines) text += line + " ";
  for (std::sregex_iterator it(text.begin(), text.end(), kSpan), end; it != end; ++it) {
    std::vector<std::string> words = shell_words((*it)[1].str());
    if (words.empty()) continue;
    words.erase(words.begin());
    found.push_back(std::move(words));
  }
  return found;
}

// As GitHub makes the anchor of a heading.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ' ') {
      anchor += '-';
    } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return anchor;
}

std::set<std::string> anchors_of(const DocPage& page) {
  std::set<std::string> anchors;
  for (const std::string& line : page.lines) {
    const size_t text = line.find_first_not_of('#');
    if (text == 0 || text == std::string::npos || line[text] != ' ') continue;
    anchors.insert(anchor_of(line.substr(text + 1)));
  }
  return anchors;
}

}  // namespace

TEST_CASE("every command of the documentation is one, with its options") {
  size_t count = 0;
  for (const DocPage& page : doc_pages()) {
    for (const std::vector<std::string>& words : documented_commands(page)) {
      std::string command = "mtl";
      for (const std::string& word : words) command += " " + word;
      CAPTURE(page.name);
      CAPTURE(command);
      CHECK(problem_of(words) == "");
      ++count;
    }
  }
  CHECK(count > 250);
  CHECK(problem_of({"lanch", "train.yaml"}) == "there is no command lanch");
  CHECK(problem_of({"ckpt", "list", "RUN"}) == "ckpt has no list");
  CHECK(problem_of({"launch", "--num_procs", "2", "x.py"}) == "launch has no option --num_procs");
  CHECK(problem_of({"plan", "train.yaml", "model.layer=2"}) == "there is no key model.layer");
  CHECK(problem_of({"launch", "--via", "pbs", "x.py"}) == "--via cannot be pbs");
  CHECK(problem_of({"launch", "x.py", "--anything"}) == "");
}

TEST_CASE("every train.yaml of the documentation reads") {
  const std::vector<std::string> keys = spec_keys();
  std::set<std::string> sections;
  for (const std::string& key : keys) sections.insert(key.substr(0, key.find('.')));
  size_t count = 0;
  for (const DocPage& page : doc_pages()) {
    for (const Block& block : blocks_of(page)) {
      if (block.what != "yaml") continue;
      std::string text;
      for (const std::string& line : block.lines) text += line + "\n";
      INFO(page.name << ":" << block.line);
      Diagnostics problems;
      const YamlValue document = parse_yaml(text, page.name, problems);
      CHECK_FALSE(problems.has_errors());
      const bool train =
          std::all_of(document.entries.begin(), document.entries.end(),
                      [&](const YamlValue::Entry& entry) { return sections.contains(entry.key); });
      if (!train) continue;  // of Kubernetes, for instance
      ++count;
      Diagnostics diagnostics;
      load_spec_text(text, page.name, diagnostics);
      for (const Diagnostic& problem : diagnostics.all()) {
        // A snippet is a part of a file.
        if (problem.code != "config.missing") FAIL_CHECK(render(problem));
      }
    }
  }
  CHECK(count > 10);
}

TEST_CASE("every link of the documentation leads to a page and a heading") {
  static const std::regex kLink("\\]\\(([^)\\s]+)\\)");
  size_t count = 0;
  for (const DocPage& page : doc_pages()) {
    std::string text;
    for (const std::string& line : page.lines) text += line + "\n";
    for (std::sregex_iterator it(text.begin(), text.end(), kLink), end; it != end; ++it) {
      const std::string link = (*it)[1].str();
      if (link.starts_with("http")) continue;
      ++count;
      CAPTURE(page.name);
      CAPTURE(link);
      const size_t hash = std::min(link.find('#'), link.size());
      const fs::path target =
          hash == 0 ? page.path
                    : (page.path.parent_path() / link.substr(0, hash)).lexically_normal();
      CHECK(fs::exists(target));
      // Of the repository only these are installed, beside each other.
      const std::string place = fs::relative(target, MTL_SOURCE_DIR).string();
      CHECK((place.starts_with("docs/") || place == "README.md" || place == "CHANGELOG.md"));
      if (hash == link.size()) continue;
      const auto there = std::find_if(doc_pages().begin(), doc_pages().end(),
                                      [&](const DocPage& other) { return other.path == target; });
      REQUIRE(there != doc_pages().end());
      CHECK(anchors_of(*there).contains(link.substr(hash + 1)));
    }
  }
  CHECK(count > 80);
}
