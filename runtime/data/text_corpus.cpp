// A text file as a corpus: read whole (a mapping would turn a file that shrinks during the run into
// a SIGBUS and one that changes into other data), tokenized block by block into compact memory, and
// split into contiguous ranges.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/files.h"
#include "runtime/data/data.h"
#include "runtime/data/token_array.h"

namespace mtl {

namespace {

// Bytes that are tokenized at once: bounds the 4-byte ids that exist beside the compact ones.
constexpr size_t kBlockBytes = size_t{1} << 20;

class Loader {
 public:
  Loader(const TextCorpusOptions& options, const Place& place, Diagnostics& diagnostics)
      : options_(options), place_(place), diagnostics_(diagnostics) {}

  Corpus load() {
    // What is wrong with the weights and with the file is told together.
    const bool good_split = check_split();
    std::string text;
    if (!read_text(text) || !good_split) return {};
    Corpus corpus;
    std::shared_ptr<const TokenArray> tokens;
    if (options_.given != nullptr) {
      if (!(tokens = tokenize_whole(*options_.given, text))) return {};
    } else {
      if (!(corpus.tokenizer = make_tokenizer(text))) return {};
      tokens = tokenize(*corpus.tokenizer, std::move(text));
    }
    const std::vector<int64_t> bounds = split_bounds(tokens->size());
    if (!check_lengths(bounds)) return {};
    corpus.train = make_token_range(tokens, 0, bounds[0]);
    corpus.valid = make_token_range(tokens, bounds[0], bounds[1] - bounds[0]);
    return corpus;
  }

 private:
  void add(std::string code, std::string what, std::string help,
           std::vector<std::string> notes = {}) {
    Diagnostic diagnostic{.code = std::move(code),
                          .what = std::move(what),
                          .notes = std::move(notes),
                          .help = std::move(help)};
    if (!place_.file.empty()) diagnostic.place = place_;
    diagnostics_.add(std::move(diagnostic));
  }

  bool check_split() {
    const auto& split = options_.split;
    std::string wrong;
    if (split.empty() || split.size() > 3) {
      wrong = fmt::format("data.split has {} weights", split.size());
    } else if (!std::all_of(split.begin(), split.end(),
                            [](double weight) { return std::isfinite(weight) && weight >= 0; })) {
      wrong = fmt::format("data.split [{}] has a weight that is not a number >= 0",
                          fmt::join(split, ", "));
    } else if (!(split[0] > 0)) {
      wrong = fmt::format("data.split [{}] leaves nothing to train on", fmt::join(split, ", "));
    } else if (!std::isfinite(weight_sum(3))) {
      wrong = fmt::format("data.split [{}] has a sum that is too large", fmt::join(split, ", "));
    } else {
      return true;
    }
    add("data.split", std::move(wrong),
        "give one to three weights, for train, valid and test, e.g. data.split: [90, 10]");
    return false;
  }

  double weight_sum(size_t count) const {
    double sum = 0;
    for (size_t i = 0; i < std::min(count, options_.split.size()); ++i) sum += options_.split[i];
    return sum;
  }

  bool read_text(std::string& text) {
    const std::string& path = options_.path;
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info = {};
    if (!fd || ::fstat(fd.get(), &info) != 0) return fail_open(errno);
    if (S_ISDIR(info.st_mode)) {
      add("data.unreadable", fmt::format("'{}' is a directory, not a text", path),
          "give one text file as data.train");
      return false;
    }
    if (!S_ISREG(info.st_mode)) {
      add("data.unreadable", fmt::format("'{}' is not a regular file", path),
          "every rank reads the text for itself: save it to a file and give that as data.train");
      return false;
    }
    text.resize(static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = ::read(fd.get(), text.data() + done, text.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_open(errno);
      if (got == 0) {
        add("data.unreadable",
            fmt::format("'{}' ended after {} of {} bytes: it is being changed", path, done,
                        text.size()),
            "wait until the file is complete");
        return false;
      }
      done += static_cast<size_t>(got);
    }
    // A byte order mark is not text.
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    if (text.empty()) {
      add("data.empty", fmt::format("'{}' is empty", path), "give a text with at least one token");
      return false;
    }
    return true;
  }

  bool fail_open(int error) {
    const std::string reason = std::generic_category().message(error);
    if (error != ENOENT && error != ENOTDIR) {
      add("data.unreadable", fmt::format("cannot read '{}': {}", options_.path, reason),
          "make the file readable for this user on every node");
      return false;
    }
    std::string help =
        "give the path of a text, or of a corpus without its .bin; relative paths start at the "
        "directory where the command runs";
    const std::filesystem::path path = options_.path;
    std::vector<std::string> names;
    std::error_code ignored;
    const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    for (std::filesystem::directory_iterator it(parent, ignored), end; it != end;
         it.increment(ignored)) {
      names.push_back(it->path().filename().string());
    }
    std::vector<std::string> notes;
    if (const auto near = did_you_mean(path.filename().string(), names)) {
      help = fmt::format("did you mean '{}'?", (path.parent_path() / *near).string());
    }
    if (path.is_relative()) {
      const std::string here = std::filesystem::current_path(ignored).string();
      notes.push_back(here.empty() ? "the directory that this was started in is no longer there"
                                   : "looked in " + here);
    }
    add("data.missing",
        options_.path.empty() ? "data.train is empty"
                              : fmt::format("'{}' does not exist", options_.path),
        std::move(help), std::move(notes));
    return false;
  }

  std::unique_ptr<Tokenizer> make_tokenizer(const std::string& text) {
    if (options_.tokenizer == "bytes") return make_byte_tokenizer();
    if (options_.tokenizer != "chars") {
      add("data.tokenizer", fmt::format("unknown tokenizer '{}'", options_.tokenizer),
          "use data.tokenizer.type: bytes or chars");
      return nullptr;
    }
    try {
      return make_char_tokenizer(text);
    } catch (const Error& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        add(diagnostic.code, fmt::format("'{}': {}", options_.path, diagnostic.what),
            diagnostic.help, diagnostic.notes);
      }
      return nullptr;
    }
  }

  // At once: where a text may be cut, only its tokenizer knows.
  std::shared_ptr<const TokenArray> tokenize_whole(const Tokenizer& tokenizer,
                                                   const std::string& text) {
    try {
      auto tokens = std::make_shared<TokenArray>(tokenizer.vocab_size());
      tokens->append(tokenizer.encode(text));
      return tokens;
    } catch (const Error& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        add(diagnostic.code, fmt::format("'{}': {}", options_.path, diagnostic.what),
            diagnostic.help, diagnostic.notes);
      }
      return nullptr;
    }
  }

  static std::shared_ptr<const TokenArray> tokenize(const Tokenizer& tokenizer, std::string text) {
    auto tokens = std::make_shared<TokenArray>(tokenizer.vocab_size());
    // Both tokenizers give at most one token per byte, exactly one if the vocabulary is the bytes.
    if (tokenizer.vocab_size() == 256) tokens->reserve(static_cast<int64_t>(text.size()));
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(begin + kBlockBytes, text.size());
      // Not inside a character: a continuation byte cannot start a block.
      while (end < text.size() && end > begin + 1 &&
             (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80 &&
             begin + kBlockBytes - end < 4) {
        --end;
      }
      tokens->append(tokenizer.encode(std::string_view(text).substr(begin, end - begin)));
      begin = end;
    }
    return tokens;
  }

  // Where train and valid end.
  std::vector<int64_t> split_bounds(int64_t tokens) const {
    std::vector<int64_t> bounds;
    const double sum = weight_sum(3);
    for (size_t count = 1; count <= 2; ++count) {
      // The whole sum is the whole corpus, whatever the rounding.
      const double part = weight_sum(count);
      bounds.push_back(part >= sum
                           ? tokens
                           : std::min(tokens, static_cast<int64_t>(std::floor(
                                                  static_cast<double>(tokens) * (part / sum)))));
    }
    return bounds;
  }

  bool check_lengths(const std::vector<int64_t>& bounds) {
    const int64_t train = bounds[0];
    const int64_t valid = bounds[1] - bounds[0];
    const bool has_valid = options_.split.size() > 1 && options_.split[1] > 0;
    const int64_t needed = options_.seq_len + 1;
    const int64_t shortest = has_valid ? std::min(train, valid) : train;
    if (shortest >= needed) return true;
    const std::string sizes = has_valid ? fmt::format("{} for train and {} for valid", train, valid)
                                        : fmt::format("{}", train);
    add("data.too_short",
        fmt::format(
            "'{}' is too short: its tokens are {}, and train.seq_len {} needs at least {}{}",
            options_.path, sizes, options_.seq_len, needed, has_valid ? " in each split" : ""),
        fmt::format("use {}a longer text{}",
                    shortest > 1 ? fmt::format("train.seq_len <= {} or ", shortest - 1) : "",
                    options_.split.size() > 1 ? ", or another data.split" : ""));
    return false;
  }

  const TextCorpusOptions& options_;
  const Place& place_;
  Diagnostics& diagnostics_;
};

}  // namespace

Corpus load_text_corpus(const TextCorpusOptions& options, const Place& place,
                        Diagnostics& diagnostics) {
  return Loader(options, place, diagnostics).load();
}

}  // namespace mtl
