// Text in, corpus out: the engine of `mtl data tokenize`. One thread reads and unpacks, several
// tokenize, the caller's writes, in the order of the text. Memory is bounded whatever the input is,
// and a journal beside the output (PREFIX.journal.json) says up to where it is safely on the disk,
// so that the same command goes on after a crash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/data/corpus_meta.h"
#include "runtime/data/data.h"
#include "runtime/data/indexed_dataset.h"

namespace mtl {

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string format;  // jsonl | text; empty: by the names
  std::filesystem::path prefix;
  std::vector<std::string> json_keys = {"text"};
  bool append_eod = false;
  bool lines_are_documents = false;  // of plain text; else a file is one
  // Lines are conversations, in a format of chat::load_format(). PREFIX.loss.bin and .idx then say
  // of each token whether it is to be learned.
  std::string chat;
  int64_t workers = 1;
  bool skip_bad = false;
  bool fresh = false;
  double journal_every_s = 2;
};

struct TokenizeProgress {
  int64_t input_bytes = 0, input_total = 0;  // as on disk; the total is 0 if it is not known
  int64_t resumed_at = 0;                    // input_bytes at the start of this process
  int64_t documents = 0, tokens = 0;
  double seconds = 0;
};

struct TokenizeReport {
  struct Output {
    std::filesystem::path prefix;
    CorpusMeta meta;
  };
  int64_t learned_tokens = 0;   // of conversations
  std::vector<Output> outputs;  // one for each key
  int64_t text_bytes = 0;       // unpacked
  int64_t input_bytes = 0;      // as on disk
  int64_t bad_lines = 0, blank_lines = 0, forced_cuts = 0;
  int64_t passed_over = 0;  // files of directories
  int64_t resumed_at = 0;   // bytes of text that an earlier process had done
  double seconds = 0;
};

struct TokenizeCallbacks {
  std::function<void(const TokenizeProgress&)> progress;  // often
  std::function<void(const Diagnostic&)> warn;
};

// PREFIX for one key and for plain text; PREFIX and PREFIX.loss of conversations; for several
// PREFIX_KEY_document, as Megatron names them.
std::vector<std::filesystem::path> output_prefixes(const TokenizeOptions& options);

// Throws Error: data.missing, data.unreadable, data.empty, data.compressed; data.line (a bad line,
// with its place); data.eod; data.exists; data.resume; data.busy, data.write, file.*. Unless it
// reads standard input or another pipe, what was done is kept, and the same call goes on with it.
TokenizeReport tokenize_corpus(const Tokenizer& tokenizer, const TokenizeOptions& options,
                               const TokenizeCallbacks& callbacks);

}  // namespace mtl
