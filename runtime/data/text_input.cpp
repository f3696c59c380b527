#include "runtime/data/text_input.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <glob.h>
#include <set>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <zlib.h>
#include <zstd.h>

#include <sys/stat.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/error.h"
#include "common/files.h"
#include "common/utf8.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBlock = size_t{256} << 10;
// 128 MiB: what zstd itself takes without being asked to take more.
constexpr int kLargestZstdWindowLog = 27;

[[noreturn]] void fail(const char* code, const std::string& path, const std::string& what,
                       const std::string& help) {
  throw Error(Exit::data, {.code = code, .what = fmt::format("{}: {}", path, what), .help = help});
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* ending) { return name.ends_with(ending); });
}

std::string without_packing(std::string name) {
  for (const char* ending : {".gz", ".zst", ".zstd"}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - std::strlen(ending));
  }
  return name;
}

bool is_gzip(std::string_view begin) {
  return begin.starts_with("\x1f\x8b");
}
bool is_zstd(std::string_view begin) {
  return begin.starts_with("\x28\xb5\x2f\xfd");
}

bool is_jsonl_name(const std::string& name) {
  return ends_with_any(without_packing(name), {".jsonl", ".ndjson", ".json"});
}

bool is_known_name(const std::string& name) {
  return is_jsonl_name(name) || ends_with_any(without_packing(name), {".txt", ".text", ".md"});
}

TextInput describe(const std::string& path, const std::string& format) {
  TextInput input{.path = path};
  input.format = format == "text" || (format.empty() && path != "-" && !is_jsonl_name(path))
                     ? TextFormat::text
                     : TextFormat::jsonl;
  input.as_is = format == "text";
  struct stat info {};
  if (path == "-") return input;
  if (::stat(path.c_str(), &info) != 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    fail(missing ? "data.missing" : "data.unreadable", path, std::generic_category().message(errno),
         missing ? "check the spelling; relative paths start at the current directory"
                 : "check the permissions");
  }
  if (S_ISREG(info.st_mode)) {
    input.repeatable = true;
    input.bytes = info.st_size;
    input.modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  }
  return input;
}

// Links are followed, and a folder that is there twice is taken once, by its first name: links may
// go round.
void add_names(const fs::path& folder, std::set<fs::path>& seen, std::vector<std::string>& names,
               int64_t& passed_over) {
  if (!seen.insert(fs::canonical(folder)).second) return;
  std::vector<fs::directory_entry> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry);
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::error_code dangling;
    if (name.starts_with(".")) continue;
    if (entry.is_directory(dangling)) {
      add_names(entry.path(), seen, names, passed_over);
    } else if (!entry.is_regular_file(dangling)) {
      continue;
    } else if (is_known_name(name)) {
      names.push_back(entry.path().string());
    } else {
      ++passed_over;
    }
  }
}

void add_directory(const std::string& path, const std::string& format, TextInputs& inputs) {
  std::vector<std::string> names;
  std::set<fs::path> seen;
  try {
    add_names(path, seen, names, inputs.passed_over);
  } catch (const fs::filesystem_error& error) {
    fail("data.unreadable", error.path1().string(), error.code().message(),
         "check the permissions of the directory");
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) inputs.files.push_back(describe(name, format));
}

// Bytes of a file as they are.
class FileReader : public TextReader {
 public:
  explicit FileReader(const std::string& path) : path_(path) {
    if (path == "-") {
      fd_ = Fd(::dup(STDIN_FILENO));
    } else {
      fd_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    }
    if (!fd_) fail_system(errno);
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  size_t read(char* to, size_t count) override {
    while (true) {
      const ssize_t got = ::read(fd_.get(), to, count);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_system(errno);
      position_ += got;
      return static_cast<size_t>(got);
    }
  }
  int64_t position() const override { return position_; }
  void seek(int64_t to) {
    if (::lseek(fd_.get(), to, SEEK_SET) != to) fail_system(errno);
    position_ = to;
  }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail_system(int error) const {
    fail(error == ENOENT ? "data.missing" : "data.unreadable", path_,
         std::generic_category().message(error), "check that it can be read");
  }

  std::string path_;
  Fd fd_;
  int64_t position_ = 0;
};

// The first bytes have been looked at already; packed data goes through a window of this.
class Source {
 public:
  explicit Source(std::unique_ptr<FileReader> file) : file_(std::move(file)), block_(kBlock) {}

  // What is there and not yet used; empty only at the end of the file.
  std::pair<const char*, size_t> peek() {
    if (used_ == filled_) {
      used_ = 0;
      filled_ = file_->read(block_.data(), block_.size());
    }
    return {block_.data() + used_, filled_ - used_};
  }
  // At least `count` bytes, unless the file has less.
  std::pair<const char*, size_t> peek_at_least(size_t count) {
    peek();
    if (filled_ - used_ < count) {
      std::memmove(block_.data(), block_.data() + used_, filled_ - used_);
      filled_ -= used_;
      used_ = 0;
      while (filled_ < count) {
        const size_t got = file_->read(block_.data() + filled_, block_.size() - filled_);
        if (got == 0) break;
        filled_ += got;
      }
    }
    return {block_.data() + used_, filled_ - used_};
  }
  void use(size_t count) { used_ += count; }
  int64_t position() const { return file_->position() - static_cast<int64_t>(filled_ - used_); }
  FileReader& file() { return *file_; }
  void drop() { used_ = filled_ = 0; }

  [[noreturn]] void damaged(const std::string& what) const {
    fail("data.compressed", file_->path(), fmt::format("at byte {}: {}", position(), what),
         "the file is damaged or cut off: copy it again, or unpack as much as is good");
  }

 private:
  std::unique_ptr<FileReader> file_;
  std::vector<char> block_;
  size_t used_ = 0, filled_ = 0;
};

class PlainReader : public TextReader {
 public:
  explicit PlainReader(Source source) : source_(std::move(source)) {}
  size_t read(char* to, size_t count) override {
    const auto [bytes, size] = source_.peek();
    const size_t now = std::min(size, count);
    std::memcpy(to, bytes, now);
    source_.use(now);
    return now;
  }
  int64_t position() const override { return source_.position(); }
  void seek(int64_t to) {
    source_.file().seek(to);
    source_.drop();
  }

 private:
  Source source_;
};

class GzipReader : public TextReader {
 public:
  explicit GzipReader(Source source) : source_(std::move(source)) {
    if (::inflateInit2(&stream_, 15 + 16) != Z_OK) throw std::bad_alloc();
  }
  ~GzipReader() override { ::inflateEnd(&stream_); }

  size_t read(char* to, size_t count) override {
    while (true) {
      const auto [bytes, size] = source_.peek();
      if (size == 0) {
        if (inside_) source_.damaged("the file ends inside packed data");
        return 0;
      }
      if (!inside_) {
        if (!next_member()) return 0;
        continue;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes));
      stream_.avail_in = static_cast<uInt>(size);
      stream_.next_out = reinterpret_cast<Bytef*>(to);
      stream_.avail_out = static_cast<uInt>(std::min<size_t>(count, 1 << 30));
      const uInt room = stream_.avail_out;
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      source_.use(size - stream_.avail_in);
      if (result == Z_STREAM_END) {
        inside_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        source_.damaged(stream_.msg != nullptr ? stream_.msg : "not gzip");
      }
      if (stream_.avail_out < room) return room - stream_.avail_out;
    }
  }
  int64_t position() const override { return source_.position(); }

 private:
  // False at the end. Zeros may fill up the last block of a tape.
  bool next_member() {
    const auto [bytes, size] = source_.peek_at_least(2);
    if (size >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b') {
      ::inflateReset(&stream_);
      return inside_ = true;
    }
    if (std::any_of(bytes, bytes + size, [](char byte) { return byte != 0; })) {
      source_.damaged("something that is not gzip follows the packed data");
    }
    source_.use(size);
    return size > 0 || source_.peek().second > 0;
  }

  Source source_;
  z_stream stream_ = {};
  bool inside_ = false;
};

class ZstdReader : public TextReader {
 public:
  explicit ZstdReader(Source source)
      : source_(std::move(source)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!stream_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestZstdWindowLog);
  }

  size_t read(char* to, size_t count) override {
    ZSTD_outBuffer out{to, count, 0};
    while (out.pos == 0) {
      const auto [bytes, size] = source_.peek();
      // With no input left there may still be text inside the decoder.
      ZSTD_inBuffer in{bytes, size, 0};
      if (size == 0 && !inside_) return 0;
      const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(result)) source_.damaged(ZSTD_getErrorName(result));
      source_.use(in.pos);
      inside_ = result != 0;
      if (size == 0 && out.pos == 0 && inside_) {
        source_.damaged("the file ends inside packed data");
      }
    }
    return out.pos;
  }
  int64_t position() const override { return source_.position(); }

 private:
  Source source_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  bool inside_ = false;
};

}  // namespace

TextInputs find_inputs(const std::vector<std::string>& names, const std::string& format) {
  TextInputs inputs;
  for (const std::string& name : names) {
    std::error_code ignored;
    if (name == "-" || fs::exists(name, ignored)) {
      if (name != "-" && fs::is_directory(name, ignored)) {
        add_directory(name, format, inputs);
      } else {
        inputs.files.push_back(describe(name, format));
      }
      continue;
    }
    glob_t found{};
    // Sorted by bytes, whatever the language is: the program never calls setlocale.
    const bool any = name.find_first_of("*?[") != std::string::npos &&
                     ::glob(name.c_str(), 0, nullptr, &found) == 0;
    for (size_t i = 0; any && i < found.gl_pathc; ++i) {
      const std::string path = found.gl_pathv[i];
      if (fs::is_directory(path, ignored)) {
        add_directory(path, format, inputs);
      } else {
        inputs.files.push_back(describe(path, format));
      }
    }
    ::globfree(&found);
    if (!any) describe(name, format);  // says what is wrong with it
  }
  if (inputs.files.empty()) {
    throw Error(Exit::data,
                {.code = "data.empty",
                 .what = fmt::format("there is no text in {}", fmt::join(names, ", ")),
                 .help = "in directories, mtl takes *.jsonl, *.ndjson, *.json, *.txt, *.text and "
                         "*.md, each also with .gz or .zst; name other files themselves"});
  }
  return inputs;
}

std::string no_text(std::string_view begin) {
  // UTF-32 begins with these too, and iconv tells the one from the other.
  if (begin.starts_with("\xFF\xFE") || begin.starts_with("\xFE\xFF")) {
    return "is UTF-16 by its first bytes (iconv -f UTF-16 -t UTF-8 makes UTF-8 of it)";
  }
  for (const auto& [magic, what] :
       {std::pair<std::string_view, const char*>{"\xFD"
                                                 "7zXZ",
                                                 "is packed by xz: unpack it (xz -d)"},
        {"BZh", "is packed by bzip2: unpack it (bzip2 -d)"},
        {"PK\x03\x04", "is a zip archive: unpack it (unzip)"},
        {"PAR1", "is Parquet: write its texts as JSON Lines"},
        {"%PDF-", "is a PDF: take its text out (pdftotext)"}}) {
    // Of bzip2 the first letters alone could be a text's.
    const bool packed = magic != "BZh" || begin.substr(0, 8).ends_with("1AY&");
    if (begin.starts_with(magic) && packed) return what;
  }
  if (const size_t at = begin.substr(0, kBeginBytes).find('\0'); at != begin.npos) {
    return fmt::format("has a zero byte at offset {}", at);
  }
  return "";
}

namespace {

std::string begin_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";  // opening a pipe would wait for its writer
  std::string begin(kBeginBytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(in.gcount()));
  return begin;
}

}  // namespace

bool begins_like_text(const std::string& path) {
  constexpr size_t kLongest = 4;  // of a character, which may be cut
  const std::string begin = begin_of(path);
  char32_t character = 0;
  for (size_t at = 0; at < begin.size();) {
    const bool cut = begin.size() == kBeginBytes && begin.size() - at < kLongest;
    if (read_utf8(begin, at, character) != nullptr) return cut;
    const bool control = character < 0x20 || (character >= 0x7F && character < 0xA0);
    if (control && (character < '\t' || character > '\r')) return false;
  }
  return !begin.empty();
}

std::string no_plain_text(const std::string& path) {
  const std::string begin = begin_of(path);
  if (is_gzip(begin)) return "is packed by gzip";
  if (is_zstd(begin)) return "is packed by zstd";
  if (std::string why = no_text(begin); !why.empty()) return why;
  return is_jsonl_name(path) ? "is JSON Lines by its name" : "";
}

std::unique_ptr<TextReader> open_text(const TextInput& input, int64_t skip) {
  Source source(std::make_unique<FileReader>(input.path));
  const auto [bytes, size] = source.peek_at_least(4);
  const std::string_view begin(bytes, size);
  std::unique_ptr<TextReader> reader;
  if (is_gzip(begin)) {
    reader = std::make_unique<GzipReader>(std::move(source));
  } else if (is_zstd(begin)) {
    reader = std::make_unique<ZstdReader>(std::move(source));
  } else {
    auto plain = std::make_unique<PlainReader>(std::move(source));
    if (skip > 0) plain->seek(skip);
    return plain;
  }
  std::vector<char> dropped(kBlock);
  while (skip > 0) {
    const size_t got =
        reader->read(dropped.data(), static_cast<size_t>(std::min<int64_t>(skip, dropped.size())));
    if (got == 0) break;
    skip -= static_cast<int64_t>(got);
  }
  return reader;
}

}  // namespace mtl
