// Where text comes from: files, directories, globs and standard input; plain, gzip (also of several
// members) or zstd (also of several frames), told by their first bytes, not by their names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mtl {

enum class TextFormat { jsonl, text };

struct TextInput {
  std::string path;  // "-" is standard input
  TextFormat format = TextFormat::jsonl;
  int64_t bytes = 0;  // on disk; 0 for what is not a regular file
  int64_t modified_ns = 0;
  bool repeatable = false;  // a regular file: it can be read again from any place
  bool as_is = false;       // somebody says that it is text, whatever its bytes are
};

struct TextInputs {
  std::vector<TextInput> files;
  int64_t passed_over = 0;  // files of directories that are neither JSONL nor text by their names
};

// Names in the order given; what a directory (with all below it, also behind links, but for hidden
// files and folders) or a glob stands for, in the order of its bytes. `format` is "jsonl", "text"
// or empty: then by the name, with or without .gz or .zst: .jsonl .ndjson .json and standard input
// are JSON Lines, everything else is text. Throws Error (Exit::data) data.missing, data.unreadable,
// data.empty.
TextInputs find_inputs(const std::vector<std::string>& names, const std::string& format);

// What keeps a text that begins so from being one, as the middle of a sentence: it is UTF-16, or
// has a zero byte. Empty: nothing.
constexpr size_t kBeginBytes = size_t{64} << 10;  // that are looked at
std::string no_text(std::string_view begin);
// The same of a file that is to be read as it stands: its name says JSON Lines, or it is packed, or
// it is no text. Empty also where it cannot be read.
std::string no_plain_text(const std::string& path);
// Whether a file begins like a text: UTF-8 without control characters, which token ids hardly are.
bool begins_like_text(const std::string& path);

class TextReader {
 public:
  virtual ~TextReader() = default;
  // Up to `count` bytes of text, 0 only at the end. Throws Error (Exit::data) data.unreadable,
  // data.compressed (damaged or cut off).
  virtual size_t read(char* to, size_t count) = 0;
  // Bytes of the file that have been used, for the progress.
  virtual int64_t position() const = 0;
};

// Begins at byte `skip` of the text (as it is when unpacked).
std::unique_ptr<TextReader> open_text(const TextInput& input, int64_t skip);

}  // namespace mtl
