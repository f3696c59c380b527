#include "runtime/data/chat/format.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <xxhash.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtl::chat {

namespace {

constexpr std::array<const char*, 4> kRoles = {"system", "user", "assistant", "tool"};

struct Row {
  const char* name;
  const char* begin;
  std::array<const char*, 4> roles;  // as kRoles; nullptr: the family has none
  bool strips = false, strips_system = false;
  bool system_before_user = false;
};

// As the chat templates of these families write what system, user and assistant say; what some of
// them add of their own (defaults of "system", dates, thoughts, a last line end more or less) is
// not added.
constexpr Row kRows[] = {
    // Qwen, SmolLM, Yi, OLMo 3 and whoever has no format of their own.
    {"chatml",
     "",
     {"{<|im_start|>}system\n{content}{<|im_end|>}\n",
      "{<|im_start|>}user\n{content}{<|im_end|>}\n",
      "{<|im_start|>}assistant\n{content}{<|im_end|>}\n",
      "{<|im_start|>}user\n<tool_response>\n{content}\n</tool_response>{<|im_end|>}\n"}},
    // Llama 3 to 3.3.
    {"llama3",
     "{<|begin_of_text|>}",
     {"{<|start_header_id|>}system{<|end_header_id|>}\n\n{content}{<|eot_id|>}",
      "{<|start_header_id|>}user{<|end_header_id|>}\n\n{content}{<|eot_id|>}",
      "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n{content}{<|eot_id|>}",
      "{<|start_header_id|>}ipython{<|end_header_id|>}\n\n{content}{<|eot_id|>}"},
     true,
     true},
    // Gemma 1 to 3.
    {"gemma",
     "{<bos>}",
     {nullptr, "{<start_of_turn>}user\n{content}{<end_of_turn>}\n",
      "{<start_of_turn>}model\n{content}{<end_of_turn>}\n", nullptr},
     true,
     false,
     true},
    // Mistral's tokenizers of version 7 (tekken), and of version 3 without a system.
    {"mistral",
     "{<s>}",
     {"{[SYSTEM_PROMPT]}{content}{[/SYSTEM_PROMPT]}", "{[INST]}{content}{[/INST]}",
      "{content}{</s>}", "{[TOOL_RESULTS]}{content}{[/TOOL_RESULTS]}"}},
    {"phi3",
     "",
     {"{<|system|>}\n{content}{<|end|>}\n", "{<|user|>}\n{content}{<|end|>}\n",
      "{<|assistant|>}\n{content}{<|end|>}\n", nullptr}},
    {"phi4",
     "",
     {"{<|im_start|>}system{<|im_sep|>}{content}{<|im_end|>}",
      "{<|im_start|>}user{<|im_sep|>}{content}{<|im_end|>}",
      "{<|im_start|>}assistant{<|im_sep|>}{content}{<|im_end|>}", nullptr}},
    // DeepSeek V3.
    {"deepseek",
     "{<｜begin▁of▁sentence｜>}",
     {"{content}", "{<｜User｜>}{content}", "{<｜Assistant｜>}{content}{<｜end▁of▁sentence｜>}",
      nullptr}},
    // Granite 3 and 4.
    {"granite",
     "",
     {"{<|start_of_role|>}system{<|end_of_role|>}{content}{<|end_of_text|>}\n",
      "{<|start_of_role|>}user{<|end_of_role|>}{content}{<|end_of_text|>}\n",
      "{<|start_of_role|>}assistant{<|end_of_role|>}{content}{<|end_of_text|>}\n",
      "{<|start_of_role|>}tool_response{<|end_of_role|>}{content}{<|end_of_text|>}\n"}},
    {"command-r",
     "{<BOS_TOKEN>}",
     {"{<|START_OF_TURN_TOKEN|>}{<|SYSTEM_TOKEN|>}{content}{<|END_OF_TURN_TOKEN|>}",
      "{<|START_OF_TURN_TOKEN|>}{<|USER_TOKEN|>}{content}{<|END_OF_TURN_TOKEN|>}",
      "{<|START_OF_TURN_TOKEN|>}{<|CHATBOT_TOKEN|>}{content}{<|END_OF_TURN_TOKEN|>}", nullptr},
     true},
    // Tülu 3, whose roles are words, and OLMo 2, which begins with a token beside.
    {"tulu",
     "",
     {"<|system|>\n{content}\n", "<|user|>\n{content}\n", "<|assistant|>\n{content}{eod}\n",
      nullptr}},
    {"olmo2",
     "{<|endoftext|>}",
     {"<|system|>\n{content}\n", "<|user|>\n{content}\n",
      "<|assistant|>\n{content}{<|endoftext|>}\n", nullptr}},
    // For tokenizers that have a token for the end of a document and no other. Line ends and not
    // spaces stand before what is said: of a space and a word many make one token, which would be
    // no part of the question and no part of the answer.
    {"plain",
     "",
     {"{content}\n\n", "User:\n{content}\n\n", "Assistant:\n{content}{eod}",
      "Tool:\n{content}\n\n"}},
};

struct Problem {
  std::string what;
};

// Throws Problem.
Pieces pieces_of(std::string_view text, bool of_role) {
  Pieces pieces;
  const auto add_text = [&](std::string_view more) {
    if (pieces.empty() || pieces.back().kind != Piece::Kind::text) pieces.push_back({});
    pieces.back().text += more;
  };
  int contents = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
      add_text(text.substr(at, 1));
      at += 2;
      continue;
    }
    if (c == '}') throw Problem{"a } without its {: write }} for the sign itself"};
    if (c != '{') {
      const size_t end = std::min(text.find_first_of("{}", at), text.size());
      add_text(text.substr(at, end - at));
      at = end;
      continue;
    }
    const size_t end = text.find('}', at);
    if (end == std::string_view::npos || end == at + 1) {
      throw Problem{"a { without a name and its }: write {{ for the sign itself"};
    }
    const std::string name(text.substr(at + 1, end - at - 1));
    at = end + 1;
    if (name == "content") {
      ++contents;
      pieces.push_back({Piece::Kind::content, ""});
    } else if (name == "eod") {
      pieces.push_back({Piece::Kind::eod, ""});
    } else {
      pieces.push_back({Piece::Kind::token, name});
    }
  }
  if (of_role && contents != 1) throw Problem{"{content} has to stand there once"};
  if (!of_role && contents != 0) throw Problem{"nothing is said there: no {content}"};
  return pieces;
}

Format format_of(const Row& row) {
  Format format{.name = row.name,
                .begin = pieces_of(row.begin, false),
                .strips = row.strips,
                .strips_system = row.strips_system,
                .system_before_user = row.system_before_user};
  for (size_t i = 0; i < kRoles.size(); ++i) {
    if (row.roles[i] != nullptr) format.roles[kRoles[i]] = pieces_of(row.roles[i], true);
  }
  return format;
}

[[noreturn]] void refuse(const Place& place, const std::string& what) {
  throw Error(Exit::data,
              {.code = "data.chat",
               .what = what,
               .place = place,
               .help = R"(a format has a line for each role: user: "User:\n{content}\n", )"
                       R"(assistant: "Assistant:\n{content}{eod}")"});
}

Format format_of_file(const std::string& file) {
  Diagnostics diagnostics;
  const YamlValue root = read_yaml(file, diagnostics);
  diagnostics.throw_if_errors(Exit::data);
  if (root.kind != YamlValue::Kind::map) refuse(Place{file}, "is not a map of roles");
  Format format{.name = std::filesystem::path(file).stem().string()};
  for (const YamlValue::Entry& entry : root.entries) {
    const bool role = std::find(kRoles.begin(), kRoles.end(), entry.key) != kRoles.end();
    if (!role && entry.key != "begin" && entry.key != "strips") {
      refuse(entry.key_place,
             fmt::format("'{}' is none of begin, {}, strips", entry.key, fmt::join(kRoles, ", ")));
    }
    if (entry.value.kind != YamlValue::Kind::scalar) {
      refuse(entry.value.place, fmt::format("'{}' is not a text", entry.key));
    }
    try {
      if (role) {
        format.roles[entry.key] = pieces_of(entry.value.text, true);
      } else if (entry.key == "begin") {
        format.begin = pieces_of(entry.value.text, false);
      } else if (entry.value.text == "true" || entry.value.text == "false") {
        format.strips = format.strips_system = entry.value.text == "true";
      } else {
        throw Problem{"is true or false"};
      }
    } catch (const Problem& problem) {
      refuse(entry.value.place, fmt::format("'{}': {}", entry.key, problem.what));
    }
  }
  for (const char* role : {"user", "assistant"}) {
    if (!format.roles.contains(role)) refuse(root.place, fmt::format("'{}' is missing", role));
  }
  format.system_before_user = !format.roles.contains("system");
  return format;
}

}  // namespace

std::string description(const Format& format) {
  std::string all =
      fmt::format("{} {} {}", format.strips, format.strips_system, format.system_before_user);
  const auto add = [&all](const std::string& name, const Pieces& pieces) {
    all += fmt::format(" {}:", name);
    for (const Piece& piece : pieces) {
      all += fmt::format("{} {} {};", static_cast<int>(piece.kind), piece.text.size(), piece.text);
    }
  };
  add("begin", format.begin);
  for (const auto& [role, pieces] : format.roles) add(role, pieces);
  return fmt::format("{} ({:016x})", format.name, XXH3_64bits(all.data(), all.size()));
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

Format load_format(const std::string& name_or_file) {
  for (const Row& row : kRows) {
    if (name_or_file == row.name) return format_of(row);
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name_or_file, ignored)) return format_of_file(name_or_file);
  throw Error(
      Exit::data,
      {.code = "data.chat",
       .what = fmt::format("'{}' is neither a format of conversations nor a file", name_or_file),
       .help = fmt::format("there are {}; or give a YAML file with your own",
                           fmt::join(format_names(), ", "))});
}

}  // namespace mtl::chat
