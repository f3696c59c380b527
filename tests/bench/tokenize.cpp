// How fast a tokenizer is on one core:
//   tokenize TOKENIZER DOCUMENTS [OUT] [repeats]
// TOKENIZER: bytes, a tokenizer.json or a folder with one, a *.model, or VOCAB.json+MERGES.txt.
// DOCUMENTS: of each its length (u32, little-endian) and its bytes; or any text file: one document.
// OUT ("-" for none): of each document the number of its ids (u32), and the ids (i32), for
// tests/reference/tokenizers_reference.py. The peers are in tests/bench/peers/tokenize.py: run both
// with `taskset -c 0`, one after the other.
#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/load_tokenizer.h"

namespace mtl {
namespace {

// Of the processor, so that neighbours on the machine count less. All is one thread.
double seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::vector<std::string_view> documents_of(std::string_view file) {
  std::vector<std::string_view> documents;
  std::string_view rest = file;
  while (rest.size() >= 4) {
    uint32_t length = 0;
    std::memcpy(&length, rest.data(), 4);
    if (length > rest.size() - 4) break;
    documents.push_back(rest.substr(4, length));
    rest.remove_prefix(4 + length);
  }
  if (rest.empty()) return documents;
  return {file};
}

int run(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenize TOKENIZER DOCUMENTS [OUT] [repeats]\n");
    return 2;
  }
  const std::string name = argv[1];
  TokenizerOptions options;
  if (const size_t plus = name.find('+'); plus != std::string::npos) {
    options = {.type = "gpt2-bpe", .vocab = name.substr(0, plus), .merges = name.substr(plus + 1)};
  } else if (name == "bytes") {
    options.type = name;
  } else {
    options.file = name;
  }
  const double before_load = seconds();
  const auto tokenizer = load_tokenizer(options);
  const double load_s = seconds() - before_load;
  const std::string file = read_file(argv[2]);
  const auto documents = documents_of(file);
  const int repeats = argc > 4 ? std::atoi(argv[4]) : 3;
  double best_s = 1e30;
  size_t bytes = 0, tokens = 0;
  for (int i = 0; i < repeats; ++i) {
    bytes = tokens = 0;
    const double begin = seconds();
    for (const std::string_view document : documents) {
      bytes += document.size();
      tokens += tokenizer->encode(document).size();
    }
    best_s = std::min(best_s, seconds() - begin);
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(
      "{:.1f} MB/s  {:.2f} M tokens/s  {:.2f} bytes/token  load {:.2f} s  peak {} MB beside "
      "the text\n",
      static_cast<double>(bytes) / best_s / 1e6, static_cast<double>(tokens) / best_s / 1e6,
      static_cast<double>(bytes) / static_cast<double>(tokens), load_s,
      (usage.ru_maxrss * 1024 - static_cast<long>(file.size())) / 1000000);
  if (argc > 3 && std::string_view(argv[3]) != "-") {
    std::ofstream out(argv[3], std::ios::binary);
    for (const std::string_view document : documents) {
      const auto ids = tokenizer->encode(document);
      const auto count = static_cast<uint32_t>(ids.size());
      out.write(reinterpret_cast<const char*>(&count), 4);
      out.write(reinterpret_cast<const char*>(ids.data()),
                static_cast<std::streamsize>(ids.size() * 4));
    }
    if (!out.flush()) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace mtl

int main(int argc, char** argv) {
  try {
    return mtl::run(argc, argv);
  } catch (const mtl::Error& error) {
    fmt::print(stderr, "{}", error.what());
    return static_cast<int>(error.exit());
  }
}
