// The words of the texts that a tokenizer is made from: one thread reads blocks, the others cut
// them into words and count. A text file is one text, in blocks that end where a line begins with a
// letter: every pattern cuts there, so the blocks do not show in the result. Each line of JSON
// Lines is a text.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <simdjson.h>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "common/error.h"
#include "common/threads.h"
#include "runtime/data/text_input.h"
#include "runtime/data/tokenizer/hf_file.h"
#include "runtime/data/tokenizer/pre_tokenizer.h"
#include "runtime/data/tokenizer/train_bpe.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl {

using nlohmann::json;

json pre_tokenizer_of(const std::string& pattern);

namespace {

constexpr size_t kTextBlock = size_t{4} << 20;

// As OpenAI's o200k_base: words are cut at changes of case, too.
constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Block {
  std::string text = {};
  const std::string* file = nullptr;
  int64_t line = 0;  // of JSON Lines: the block's first
  bool json_lines = false;
};

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Counts = std::unordered_map<std::string, uint64_t, Hash, std::equal_to<>>;

class Counting {
 public:
  Counting(const TokenizerTraining& training, const std::function<void(int64_t)>& progress)
      : training_(training),
        pre_tokenizer_json_(pre_tokenizer_of(training.pattern)),
        pre_tokenizer_(&pre_tokenizer_json_, "pre_tokenizer"),
        progress_(progress) {}

  WordCounts run(const std::vector<TextInput>& files) {
    const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int threads = training_.threads > 0 ? training_.threads : hardware;
    std::vector<Counts> counts(static_cast<size_t>(threads));
    std::vector<std::thread> workers;
    for (Counts& mine : counts) {
      // Fewer do.
      if (start_threads(workers, 1, [this, &mine] { guarded([&] { work(mine); }); }) == 0) break;
    }
    limit_ = 2 * counts.size();
    guarded([&] {
      if (workers.empty()) throw no_thread();
      for (const TextInput& file : files) read(file);
    });
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
    WordCounts all;
    for (Counts& some : counts) {
      for (const auto& [word, count] : some) all[word] += count;
      some.clear();
    }
    if (all.empty())
      fail_data("data.empty", "there is no text in the files", "give a text to learn from");
    return all;
  }

 private:
  // The first failure of any thread ends them all.
  void guarded(const std::function<void()>& what) {
    try {
      what();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
      changed_.notify_all();
    }
  }

  void read(const TextInput& input) {
    const std::unique_ptr<TextReader> reader = open_text(input, 0);
    Block next{.file = &input.path, .line = 1, .json_lines = input.format == TextFormat::jsonl};
    bool begins = true;
    std::string rest;
    for (bool end = false; !end;) {
      std::string text = std::move(rest);
      rest.clear();
      const size_t had = text.size();
      text.resize(had + kTextBlock);
      size_t size = had;
      while (size < text.size()) {
        const size_t got = reader->read(text.data() + size, text.size() - size);
        end = got == 0;
        if (end) break;
        size += got;
      }
      bytes_ += static_cast<int64_t>(size - had);
      text.resize(size);
      if (std::exchange(begins, false)) check_begin(input, text);
      if (!end) {
        const size_t cut = next.json_lines ? text.rfind('\n') + 1 : cut_of(text);
        if (cut == 0) {  // not yet a whole line
          rest = std::move(text);
          continue;
        }
        rest = text.substr(cut);
        text.resize(cut);
      }
      const auto lines = std::count(text.begin(), text.end(), '\n');
      next.text = std::move(text);
      if (!put(next)) return;
      next.line += lines;
      if (progress_) progress_(bytes_);
    }
  }

  // A byte order mark is no text; nobody wants a tokenizer of what is none at all.
  static void check_begin(const TextInput& input, std::string& text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    const std::string why = no_text(text);
    if (why.empty()) return;
    fail_data("data.not_text", fmt::format("'{}' {}", input.path, why), "give a UTF-8 text");
  }

  // Where a line begins with a letter; if there is no such place in a long text, between
  // characters.
  static size_t cut_of(const std::string& text) {
    for (size_t at = text.size() - 1; at > 1; --at) {
      const char c = text[at];
      if (text[at - 1] == '\n' && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return at;
    }
    if (text.size() < 8 * kTextBlock) return 0;
    size_t at = text.size() - 1;
    while (at > 1 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
  }

  // False when there is nobody left to take it.
  bool put(Block& block) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < limit_ || failure_; });
    if (failure_) return false;
    queue_.push_back(block);
    block.text.clear();
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  void work(Counts& counts) {
    tokenizer::Pieces pieces;
    std::string buffer;
    simdjson::dom::parser parser;
    for (;;) {
      Block block;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !queue_.empty() || ended_ || failure_; });
        if (failure_ || queue_.empty()) return;
        block = std::move(queue_.front());
        queue_.pop_front();
      }
      changed_.notify_all();
      if (block.json_lines) {
        count_lines(block, parser, pieces, buffer, counts);
      } else {
        count(block.text, pieces, buffer, counts);
      }
    }
  }

  void count_lines(const Block& block, simdjson::dom::parser& parser, tokenizer::Pieces& pieces,
                   std::string& buffer, Counts& counts) {
    int64_t line = block.line;
    for (size_t begin = 0; begin < block.text.size(); ++line) {
      const size_t end = std::min(block.text.find('\n', begin), block.text.size());
      const std::string_view text = std::string_view(block.text).substr(begin, end - begin);
      begin = end + 1;
      if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      std::vector<std::string_view> texts;
      if (const auto error = texts_of(parser.parse(text.data(), text.size()), texts)) {
        fail_data("data.json",
                  fmt::format("{}:{}: {}", *block.file, line,
                              error == simdjson::NO_SUCH_FIELD
                                  ? fmt::format("there is no key '{}'", training_.key)
                                  : std::string(simdjson::error_message(error))),
                  "each line has to be a JSON object with the text, or a list of texts, under "
                  "--key");
      }
      for (const std::string_view one : texts) count(one, pieces, buffer, counts);
    }
  }

  // Of a line: its text, or its list of them.
  simdjson::error_code texts_of(simdjson::simdjson_result<simdjson::dom::element> line,
                                std::vector<std::string_view>& texts) const {
    simdjson::dom::element value;
    simdjson::dom::array list;
    if (const auto error = line[training_.key].get(value)) return error;
    if (value.get(list)) return value.get(texts.emplace_back());
    for (const simdjson::dom::element one : list) {
      if (const auto error = one.get(texts.emplace_back())) return error;
    }
    return simdjson::SUCCESS;
  }

  void count(std::string_view text, tokenizer::Pieces& pieces, std::string& buffer,
             Counts& counts) {
    text = tokenizer::whole_utf8(text, buffer);
    pre_tokenizer_.split({text, tokenizer::Begins::text}, pieces);
    for (const tokenizer::Piece& piece : pieces.now) {
      const auto found = counts.find(piece.text);
      if (found == counts.end()) {
        counts.emplace(piece.text, 1);
      } else {
        ++found->second;
      }
    }
  }

  const TokenizerTraining& training_;
  const json pre_tokenizer_json_;
  const tokenizer::PreTokenizer pre_tokenizer_;
  const std::function<void(int64_t)>& progress_;
  int64_t bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> queue_;
  size_t limit_ = 2;
  bool ended_ = false;
  std::exception_ptr failure_;
};

}  // namespace

std::vector<std::string> tokenizer_patterns() {
  return {"gpt2", "llama3", "qwen2", "o200k"};
}

json pre_tokenizer_of(const std::string& pattern) {
  if (pattern == "gpt2") return tokenizer::hf_byte_level(true);
  return tokenizer::hf_split_to_bytes(std::string(pattern == "llama3"  ? tokenizer::kLlama3Pattern
                                                  : pattern == "qwen2" ? tokenizer::kQwen2Pattern
                                                                       : kO200kPattern));
}

WordCounts count_words(const std::vector<std::string>& names, const TokenizerTraining& training,
                       const std::function<void(int64_t)>& progress) {
  const TextInputs inputs = find_inputs(names, "");
  return Counting(training, progress).run(inputs.files);
}

}  // namespace mtl
