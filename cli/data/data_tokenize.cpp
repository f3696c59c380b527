// mtl data tokenize: text in, PREFIX.bin and PREFIX.idx out.
#include <algorithm>
#include <cstdio>
#include <malloc.h>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/data/counter_line.h"
#include "cli/data/data.h"
#include "cli/data/tokenizer_options.h"
#include "common/error.h"
#include "common/terminal.h"
#include "runtime/data/chat/format.h"
#include "runtime/data/tokenize_corpus.h"
#include "runtime/metrics/format.h"

namespace mtl {

namespace {

int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1U, std::thread::hardware_concurrency());
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string rate(double bytes, double seconds) {
  return seconds > 0 ? fmt::format("{:.1f} MB/s", bytes / 1e6 / seconds) : "- MB/s";
}

std::string progress_text(const TokenizeProgress& progress) {
  const double done = static_cast<double>(progress.input_bytes - progress.resumed_at);
  std::string text =
      fmt::format("tokenize: {}", human_bytes(static_cast<double>(progress.input_bytes)));
  if (progress.input_total > 0) {
    text += fmt::format(" of {} ({:.1f}%)", human_bytes(static_cast<double>(progress.input_total)),
                        100.0 * static_cast<double>(progress.input_bytes) /
                            static_cast<double>(progress.input_total));
  }
  text += fmt::format("  {}  {} documents  {} tokens", rate(done, progress.seconds),
                      compact_count(static_cast<double>(progress.documents)),
                      compact_count(static_cast<double>(progress.tokens)));
  if (progress.input_total > 0) {
    const double left = static_cast<double>(progress.input_total - progress.input_bytes);
    text += "  eta " + compact_duration(done > 0 ? left / done * progress.seconds : -1);
  }
  return text;
}

nlohmann::ordered_json report_json(const TokenizeReport& report) {
  nlohmann::ordered_json object;
  auto& outputs = object["outputs"] = nlohmann::ordered_json::array();
  for (const auto& output : report.outputs) {
    outputs.push_back({{"prefix", output.prefix.string()},
                       {"documents", output.meta.documents},
                       {"sequences", output.meta.sequences},
                       {"tokens", output.meta.tokens}});
  }
  object["input_bytes"] = report.input_bytes;
  object["text_bytes"] = report.text_bytes;
  object["learned_tokens"] = report.learned_tokens;
  object["bad_lines"] = report.bad_lines;
  object["blank_lines"] = report.blank_lines;
  object["forced_cuts"] = report.forced_cuts;
  object["files_passed_over"] = report.passed_over;
  object["resumed_at"] = report.resumed_at;
  object["seconds"] = report.seconds;
  return object;
}

void print_report(const TokenizeReport& report) {
  for (const auto& output : report.outputs) {
    fmt::print(stderr, "{}: {} document{}, {} tokens\n", output.prefix.string(),
               grouped(output.meta.documents), output.meta.documents == 1 ? "" : "s",
               grouped(output.meta.tokens));
  }
  if (report.learned_tokens > 0) {
    fmt::print(stderr, "{} tokens of them are answers, which are learned\n",
               grouped(report.learned_tokens));
  }
  fmt::print(stderr, "{} of text in {}, {}\n", human_bytes(static_cast<double>(report.text_bytes)),
             compact_duration(report.seconds),
             rate(static_cast<double>(report.text_bytes - report.resumed_at), report.seconds));
  if (report.resumed_at > 0) {
    fmt::print(stderr, "went on at {} of text, where an earlier command was interrupted\n",
               human_bytes(static_cast<double>(report.resumed_at)));
  }
  if (report.bad_lines > 0) fmt::print(stderr, "bad lines passed over: {}\n", report.bad_lines);
  if (report.blank_lines > 0) fmt::print(stderr, "blank lines: {}\n", report.blank_lines);
  if (report.passed_over > 0) {
    fmt::print(stderr, "{} files of directories passed over: no text by their names\n",
               report.passed_over);
  }
  if (report.forced_cuts > 0) {
    fmt::print(
        stderr,
        "{} cuts between two characters, in stretches of 256 KiB without a space or line end: "
        "there the ids may be others than those of the whole\n",
        report.forced_cuts);
  }
}

}  // namespace

int command_data_tokenize(const Arguments& args) {
  TokenizeOptions options;
  TokenizerFlags tokenizer_flags;
  std::string output, keys = "text";
  std::optional<std::string> format, document;
  bool split_lines = false, json = false;
  options.workers = 0;
  CommandLine line(
      {"data tokenize [options] -o PREFIX INPUT ..."},
      "Makes a corpus, PREFIX.bin and PREFIX.idx in Megatron's format, of JSON Lines or "
      "plain text. Interrupted, even by kill -9, the same command goes on where it "
      "was.");
  line.example("mtl data tokenize --tokenizer llama/tokenizer.json --append_eod -o c4 c4/*.json.gz",
               "JSON Lines with their text under the key `text`");
  line.example(
      "mtl data tokenize --tokenizer_vocab vocab.json --tokenizer_merges merges.txt -o owt "
      "owt/",
      "GPT-2's vocabulary, all files of a directory");
  line.example("zstdcat big.zst | mtl data tokenize --tokenizer bytes -o big -", "from a pipe");
  line.example("mtl data tokenize --tokenizer ./Qwen3-0.6B --chat chatml -o talk chat.jsonl",
               "conversations, of which the answers are learned");
  line.rest("INPUT", options.inputs,
            "files, directories, globs, or - for standard input; also .gz and .zst");
  line.option("output,o", "PREFIX", output, "what to write: PREFIX.bin, .idx and two .json");
  line.option("json_keys", "KEY,...", keys,
              "which members of a line are text; for several, PREFIX_KEY_document of each", "text");
  line.option("chat", "FORMAT", options.chat,
              fmt::format("lines are conversations, written as {}, or as a YAML file says; what "
                          "assistants say is learned, and PREFIX.loss.bin and .idx say so",
                          fmt::join(chat::format_names(), ", ")),
              "lines have texts");
  line.flag("append_eod", options.append_eod,
            "end each document with the tokenizer's token for it");
  line.choice("format", {"jsonl", "text"}, format, "of all inputs",
              "by name: .jsonl .ndjson .json and - are JSON Lines, others text");
  line.choice("document", {"file", "line"}, document, "what a document of plain text is", "file");
  line.flag("split_lines", split_lines, "the same as --document line");
  line.flag("skip_bad", options.skip_bad, "count lines that cannot be used instead of stopping");
  line.flag("fresh", options.fresh, "start anew, also over an existing corpus");
  line.option("workers", "N", options.workers, 0, "threads that tokenize; 0 = one for each core",
              "0");
  line.option("journal_every", "S", options.journal_every_s, 0.0,
              "seconds of work that an interruption may cost", "2");
  line.flag("json", json, "a summary as JSON on stdout");
  declare_tokenizer_flags(line, tokenizer_flags);
  line.footnote(
      "A text without tokens makes a document without sequences, and a list of texts one "
      "sequence of each, as Megatron's preprocess_data.py does it. Blank lines count for "
      "nothing. A line of JSON may have 16 MiB; a longer plain text is encoded in pieces "
      "that are cut at line ends or spaces. Memory stays below 300 MB.");
  if (!line.parse(args)) return 0;
  if (options.inputs.empty() || output.empty()) {
    throw Error(Exit::usage,
                {.code = "usage.missing",
                 .what = options.inputs.empty() ? "no input is given" : "no output is given",
                 .help = "mtl data tokenize --tokenizer FILE -o PREFIX INPUT ..."});
  }
  if (!options.chat.empty() && (options.append_eod || keys != "text")) {
    throw Error(
        Exit::usage,
        {.code = "usage.option",
         .what = fmt::format("--chat with {}", options.append_eod ? "--append_eod" : "--json_keys"),
         .help = options.append_eod
                     ? "a conversation ends as its format says: leave --append_eod out"
                     : "a conversation is found under 'messages', 'conversations', "
                       "'prompt' or 'instruction': leave --json_keys out"});
  }
  options.prefix = output_prefix(output);
  options.format = format.value_or("");
  options.lines_are_documents = split_lines || document == "line";
  options.json_keys = split_at_commas(keys);
  for (auto key = options.json_keys.begin(); key != options.json_keys.end(); ++key) {
    if (std::find(options.json_keys.begin(), key, *key) == key) continue;
    throw Error(Exit::usage, {.code = "usage.value",
                              .what = fmt::format("--json_keys names '{}' twice", *key),
                              .help = "each key is a corpus of its own: name it once"});
  }
  if (options.workers == 0) options.workers = usable_cores();
  const auto tokenizer = load_tokenizer(tokenizer_flags);
  // Else each thread keeps what its longest document took, for the next one.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  TokenizeReport report;
  {
    CounterLine counter;
    const bool color = inspect_terminal(STDERR_FILENO).color;
    report = tokenize_corpus(
        *tokenizer, options,
        {[&](const TokenizeProgress& progress) {
           counter.show([&] { return progress_text(progress); });
         },
         [&](const Diagnostic& diagnostic) { counter.message(render(diagnostic, color)); }});
  }
  print_report(report);
  if (json) fmt::print("{}\n", report_json(report).dump(2));
  return 0;
}

}  // namespace mtl
