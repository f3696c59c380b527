#include "runtime/data/tokenize_journal.h"

#include <system_error>
#include <xxhash.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"

namespace mtl {

namespace fs = std::filesystem;
using nlohmann::json;

uint64_t hash_of(const std::vector<TextInput>& inputs) {
  std::string text;
  for (const TextInput& input : inputs) {
    text += fmt::format("{}\n{} {} {}\n", input.path, static_cast<int>(input.format), input.bytes,
                        input.modified_ns);
  }
  return XXH3_64bits(text.data(), text.size());
}

fs::path journal_path(const fs::path& prefix) {
  return prefix.string() + ".journal.json";
}

std::optional<TokenizeJournal> read_journal(const fs::path& prefix,
                                            const TokenizeIdentity& identity) {
  const fs::path path = journal_path(prefix);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::data, {.code = "data.resume",
                             .what = fmt::format("{}: {}", path.string(), what),
                             .place = Place{path.string()},
                             .help = "--fresh drops what it had done and starts anew; or write "
                                     "under another name (-o)"});
  };
  TokenizeJournal journal;
  try {
    const json object = json::parse(read_file(path));
    if (object.at("format") != "mtl.tokenize" || object.at("version") != 1) {
      refuse("is not a journal that this mtl reads");
    }
    if (object.at("tokenizer").get<uint64_t>() != identity.tokenizer) {
      refuse("an interrupted command used another tokenizer");
    }
    if (object.at("inputs").get<uint64_t>() != identity.inputs) {
      refuse("an interrupted command had other inputs (names, sizes or times have changed)");
    }
    if (object.at("settings").get<std::string>() != identity.settings) {
      refuse(fmt::format("an interrupted command had other settings: {}; now {}",
                         object.at("settings").get<std::string>(), identity.settings));
    }
    journal.identity = identity;
    object.at("file").get_to(journal.file);
    object.at("offset").get_to(journal.offset);
    object.at("line").get_to(journal.line);
    object.at("inside_document").get_to(journal.inside_document);
    object.at("input_bytes").get_to(journal.input_bytes);
    object.at("text_bytes").get_to(journal.text_bytes);
    object.at("bad_lines").get_to(journal.bad_lines);
    object.at("blank_lines").get_to(journal.blank_lines);
    object.at("forced_cuts").get_to(journal.forced_cuts);
    journal.learned_tokens = object.value("learned_tokens", int64_t{0});
    object.at("finishing").get_to(journal.finishing);
    for (const json& output : object.at("outputs")) {
      journal.outputs.push_back({output.at("sequences"), output.at("documents"),
                                 output.at("tokens"), output.at("open_tokens"),
                                 output.at("open_sequences")});
    }
  } catch (const json::exception& error) {
    refuse(fmt::format("is damaged ({})", error.what()));
  }
  return journal;
}

void write_journal(const fs::path& prefix, const TokenizeJournal& journal) {
  json object = {{"format", "mtl.tokenize"},
                 {"version", 1},
                 {"tokenizer", journal.identity.tokenizer},
                 {"inputs", journal.identity.inputs},
                 {"settings", journal.identity.settings},
                 {"file", journal.file},
                 {"offset", journal.offset},
                 {"line", journal.line},
                 {"inside_document", journal.inside_document},
                 {"input_bytes", journal.input_bytes},
                 {"text_bytes", journal.text_bytes},
                 {"bad_lines", journal.bad_lines},
                 {"blank_lines", journal.blank_lines},
                 {"forced_cuts", journal.forced_cuts},
                 {"learned_tokens", journal.learned_tokens},
                 {"finishing", journal.finishing},
                 {"outputs", json::array()}};
  for (const auto& output : journal.outputs) {
    object["outputs"].push_back({{"sequences", output.sequences},
                                 {"documents", output.documents},
                                 {"tokens", output.tokens},
                                 {"open_tokens", output.open_tokens},
                                 {"open_sequences", output.open_sequences}});
  }
  write_file_atomic(journal_path(prefix),
                    object.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace mtl
