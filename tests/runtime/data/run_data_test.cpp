// From data.* to samples: sources of every kind, splits, blends, what is refused, and what a
// resumed run notices.
#include "runtime/run_data.h"

#include <fstream>
#include <numeric>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "runtime/data/inputs.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using test::inputs_of;
using test::TempDir;
namespace fs = std::filesystem;

// A corpus of `documents` of 1 to 40 tokens; token ids below 100, 99 ends each.
void write_corpus(const fs::path& prefix, int documents, int first) {
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(d * 7 % 40 + 1));
    std::iota(tokens.begin(), tokens.end(), first + d);
    for (int32_t& token : tokens) token %= 99;
    tokens.back() = 99;
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.finish();
}

ResolvedSpec spec_of(const std::string& train) {
  ResolvedSpec resolved;
  resolved.spec.data.train = train;
  resolved.spec.data.vocab = 100;
  resolved.spec.train.seq_len = 16;
  return resolved;
}

RunData load(const ResolvedSpec& resolved, int64_t samples,
             const nlohmann::json& before = nlohmann::json::object()) {
  Diagnostics diagnostics;
  RunData data = load_run_data(resolved, diagnostics);
  diagnostics.throw_if_errors(Exit::data);
  order_samples(data, resolved, samples, diagnostics, before);
  diagnostics.throw_if_errors(Exit::data);
  return data;
}

std::string refusal(const ResolvedSpec& resolved, int64_t samples = 100) {
  try {
    load(resolved, samples);
  } catch (const Error& error) {
    return error.diagnostics().front().code + ": " + error.diagnostics().front().what;
  }
  return "nothing";
}

TEST_CASE("run data: every sampler over every kind of source") {
  const TempDir dir;
  write_corpus(dir.path() / "corpus", 200, 0);
  {
    std::ofstream out(dir.path() / "raw.bin", std::ios::binary);
    for (uint16_t i = 0; i < 4000; ++i) {
      const uint16_t id = i % 100;
      out.write(reinterpret_cast<const char*>(&id), 2);
    }
  }
  std::ofstream(dir.path() / "text.txt") << std::string(4000, 'x');
  for (const char* name : {"corpus", "raw.bin", "text.txt"}) {
    for (const char* sampler :
         {"random", "sequential", "megatron", "single", "cyclic", "feistel"}) {
      CAPTURE(name);
      CAPTURE(sampler);
      ResolvedSpec resolved = spec_of((dir.path() / name).string());
      if (name == std::string("text.txt")) resolved.spec.data.vocab = 0;
      resolved.spec.data.sampler = sampler;
      const RunData data = load(resolved, 600);
      CHECK(data.train_tokens > 3000);
      CHECK(data.valid_tokens > 300);
      const std::vector<int32_t> all = inputs_of(*data.train, 0, 600, 16);
      const RunData again = load(resolved, 600);
      // A part at a time is the same.
      CHECK(inputs_of(*again.train, 590, 7, 16) ==
            std::vector<int32_t>(all.begin() + 590 * 16, all.begin() + 597 * 16));
      CHECK(data.valid->size() == (data.valid_tokens - 1) / 16);
      inputs_of(*data.valid, 0, data.valid->size(), 16);
      CHECK(data_differences(data.identity(), again.identity()).empty());
    }
  }
}

TEST_CASE("run data: blends by list, by Megatron's words, and without weights") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 200, 0);
  write_corpus(dir.path() / "b", 300, 5);
  const std::string a = (dir.path() / "a").string(), b = (dir.path() / "b").string();
  for (const char* sampler : {"megatron", "random", "sequential", "feistel", "cyclic"}) {
    CAPTURE(sampler);
    ResolvedSpec words = spec_of("0.3 " + a + " 0.7 " + b), list = spec_of("");
    list.spec.data.train_list = {{a, 3}, {b, 7}};
    words.spec.data.sampler = list.spec.data.sampler = sampler;
    const RunData one = load(words, 1000), two = load(list, 1000);
    CHECK(inputs_of(*one.train, 0, 1000, 16) == inputs_of(*two.train, 0, 1000, 16));
    CHECK(one.train->size() >= 1000);
  }
  // Without weights one pass over all: what is longer than that is refused at once.
  ResolvedSpec plain = spec_of(a + " " + b);
  plain.spec.data.sampler = "megatron";
  const RunData once = load(plain, 300);
  CHECK(once.train->size() == 300);
  CHECK(refusal(plain, 1000).starts_with("data.exhausted: samples 0..999 are asked for"));
  plain.spec.data.sampler = "random";
  CHECK(load(plain, 1000).train->size() == 1000);
}

TEST_CASE("run data: validation of its own leaves all of data.train to train on") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 200, 0);
  write_corpus(dir.path() / "b", 100, 5);
  ResolvedSpec resolved = spec_of((dir.path() / "a").string());
  const RunData split = load(resolved, 10);
  resolved.spec.data.valid = (dir.path() / "b").string();
  const RunData own = load(resolved, 10);
  CHECK(own.train_tokens == split.train_tokens + split.valid_tokens);
  CHECK(own.valid_tokens > 1000);
  resolved.spec.data.valid.clear();
  resolved.spec.data.split = {1};
  const RunData none = load(resolved, 10);
  CHECK(none.train_tokens == own.train_tokens);
  CHECK(none.valid->size() == 0);
  // What is named is evaluated on, or said not to be.
  write_corpus(dir.path() / "short", 3, 0);
  for (const char* valid : {"short", "b short"}) {
    std::string paths;
    std::istringstream names(valid);
    for (std::string name; names >> name;) paths += (dir.path() / name).string() + " ";
    paths.pop_back();
    resolved.spec.data.valid = paths;
    resolved.spec.train.seq_len = 40;
    const std::string said = refusal(resolved);
    CAPTURE(said);
    CHECK(said.find("short' of data.valid has no sequence of train.seq_len 40") !=
          std::string::npos);
  }
  resolved.spec.data.valid.clear();
  resolved.spec.data.valid_list = {{(dir.path() / "b").string(), 0.5}};
  Diagnostics diagnostics;
  load_run_data(resolved, diagnostics);
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all().front().code == "config.no_effect");
}

TEST_CASE("run data: a cache is used and made again when it is damaged") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 200, 0);
  ResolvedSpec resolved = spec_of((dir.path() / "a").string());
  resolved.spec.data.sampler = "megatron";
  const std::vector<int32_t> want = inputs_of(*load(resolved, 500).train, 0, 500, 16);
  resolved.spec.data.cache = (dir.path() / "cache").string();
  const auto files = [&] {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(dir.path() / "cache")) all.push_back(entry);
    return all;
  };
  CHECK(inputs_of(*load(resolved, 500).train, 0, 500, 16) == want);
  REQUIRE(files().size() == 1);
  CHECK(inputs_of(*load(resolved, 500).train, 0, 500, 16) == want);
  // A file that says something else shows that it is read.
  const fs::path file = files().front();
  const auto damaged = [&](int64_t at) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(at);
    out.put('\x7f');
  };
  for (const int64_t at : {int64_t{2}, int64_t{20}, int64_t{70}, int64_t{2000}}) {
    damaged(at);
    CHECK(inputs_of(*load(resolved, 500).train, 0, 500, 16) == want);
  }
  fs::resize_file(file, 1000);
  CHECK(inputs_of(*load(resolved, 500).train, 0, 500, 16) == want);
  fs::resize_file(file, 3);
  CHECK(inputs_of(*load(resolved, 500).train, 0, 500, 16) == want);
  CHECK(files().size() == 1);
}

TEST_CASE("run data: another split of a text is no other text") {
  const TempDir dir;
  ResolvedSpec resolved = spec_of(dir.file("a.txt", std::string(4000, 'x')));
  resolved.spec.data.vocab = 0;
  const nlohmann::json before = load(resolved, 10).identity();
  const auto keys = [&] {
    std::string all;
    for (const DataDifference& one : data_differences(load(resolved, 10).identity(), before)) {
      all += one.key + " ";
    }
    return all;
  };
  resolved.spec.data.split = {80, 20};
  CHECK(keys() == "data.split ");
  dir.file("a.txt", std::string(4001, 'x'));
  CHECK(keys() == "data.train data.split ");
  resolved.spec.data.split = {90, 10};
  dir.file("a.txt", std::string(4000, 'y'));
  CHECK(keys() == "data.train ");
}

TEST_CASE("run data: what is refused") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 200, 0);
  std::ofstream(dir.path() / "text.txt") << std::string(4000, 'x');
  ResolvedSpec resolved = spec_of((dir.path() / "a").string());
  resolved.spec.data.vocab = 0;
  CHECK(refusal(resolved).find("does not say which tokenizer") != std::string::npos);
  resolved.spec.data.vocab = 50;
  // Not when they are read, hours later.
  CHECK(refusal(resolved).find("outside the vocabulary of 50") != std::string::npos);
  std::vector<int32_t> inputs(16 * 100), targets(16 * 100);
  resolved.spec.data.vocab = 100;
  resolved.spec.data.mask_eod_loss = true;
  CHECK(refusal(resolved) == "data.tokenizer: the tokenizer has no token that ends a document");
  resolved.spec.data.eod = 100;
  CHECK(refusal(resolved).starts_with("data.token: data.eod 100 is outside"));
  resolved.spec.data.eod = 99;
  load(resolved, 100).train->fill(0, 100, {inputs, targets});
  for (size_t i = 0; i < inputs.size(); ++i) {
    if ((inputs[i] == 99) != (targets[i] == -1)) FAIL_CHECK("at " << i);
  }
  resolved.spec.train.seq_len = 1'000'000;
  CHECK(refusal(resolved).starts_with("data.too_short"));
  ResolvedSpec missing = spec_of((dir.path() / "none").string());
  CHECK(refusal(missing).starts_with("data.missing"));
  ResolvedSpec chars =
      spec_of((dir.path() / "text.txt").string() + " " + (dir.path() / "text.txt").string());
  chars.spec.data.vocab = 0;
  chars.spec.data.tokenizer.type = "chars";
  CHECK(refusal(chars).find("takes the characters of one text") != std::string::npos);
}

TEST_CASE("run data: a resumed run names each difference") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 200, 0);
  write_corpus(dir.path() / "b", 200, 5);
  ResolvedSpec resolved = spec_of("");
  const std::string a = (dir.path() / "a").string(), b = (dir.path() / "b").string();
  resolved.spec.data.train_list = {{a, 0.5}, {b, 0.5}};
  resolved.spec.data.sampler = "megatron";
  const nlohmann::json before = load(resolved, 500).identity();
  const auto keys = [&](const ResolvedSpec& changed, int64_t samples = 500) {
    std::string all;
    for (const DataDifference& difference :
         data_differences(load(changed, samples).identity(), before)) {
      all += difference.key + " ";
    }
    return all;
  };
  CHECK(keys(resolved) == "");
  ResolvedSpec changed = resolved;
  changed.spec.data.cache = (dir.path() / "cache").string();
  changed.spec.data.workers = 0;
  changed.spec.train.micro_batch = 7;
  CHECK(keys(changed) == "");
  changed.spec.data.split = {80, 20};
  CHECK(keys(changed).find("data.split") != std::string::npos);
  // With data to evaluate on, all of what is trained on, unless it was that before.
  changed = resolved;
  changed.spec.data.valid = b;
  CHECK(keys(changed) == "data.valid ");
  changed.spec.data.split = {80, 20};
  CHECK(keys(changed) == "data.valid ");
  changed = resolved;
  changed.spec.data.train_list[0].weight = 0.25;
  CHECK(keys(changed) == "data.train ");
  changed = resolved;
  std::swap(changed.spec.data.train_list[0], changed.spec.data.train_list[1]);
  CHECK(keys(changed) == "data.train data.train ");
  changed = resolved;
  changed.spec.train.seq_len = 15;
  CHECK(keys(changed).find("train.seq_len") != std::string::npos);
  changed = resolved;
  changed.spec.data.sampler = "random";
  CHECK(keys(changed).find("data.sampler") != std::string::npos);
  CHECK(keys(resolved, 5000) == "");  // more epochs come behind those that there are
  changed = resolved;
  changed.spec.data.eod = 99;
  changed.spec.data.mask_eod_loss = true;
  CHECK(keys(changed) == "data.mask_eod_loss ");
  // The same content elsewhere is the same corpus; other content at the same place is not.
  for (const char* end : {".bin", ".idx"}) fs::copy(a + end, (dir.path() / "c").string() + end);
  changed = resolved;
  changed.spec.data.train_list[0].path = (dir.path() / "c").string();
  CHECK(keys(changed) == "");
  write_corpus(dir.path() / "a", 200, 1);
  CHECK(keys(resolved) == "data.train ");
}

TEST_CASE("run data: a text that is trained on whole from now on is still the same text") {
  const TempDir dir;
  std::ofstream(dir.path() / "a.txt") << std::string(600, 'x') << std::string(400, 'y');
  std::ofstream(dir.path() / "b.txt") << std::string(100, 'z');
  ResolvedSpec resolved = spec_of((dir.path() / "a.txt").string());
  resolved.spec.data.vocab = 0;
  const nlohmann::json before = load(resolved, 10).identity();
  resolved.spec.data.valid = (dir.path() / "b.txt").string();
  const auto differences = data_differences(load(resolved, 10).identity(), before);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].key == "data.valid");
  // What was trained on whole stays so, however it is said.
  ResolvedSpec whole = resolved;
  whole.spec.data.valid.clear();
  whole.spec.data.split = {100, 0};
  CHECK(data_differences(load(whole, 10).identity(), load(resolved, 10).identity()).empty());
}

TEST_CASE("run data: a corpus has no characters to make a vocabulary of") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 40, 0);
  ResolvedSpec resolved = spec_of((dir.path() / "a").string());
  resolved.spec.data.vocab = 0;
  resolved.spec.data.tokenizer.type = "chars";
  CHECK(refusal(resolved).find("no text, of whose characters") != std::string::npos);
}

// Of the samples [0, count): their inputs.
std::vector<std::vector<int32_t>> first_samples(const RunData& data, int64_t count) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t k = 0; k < count; ++k) all.push_back(inputs_of(*data.train, k, 1, 16));
  return all;
}

TEST_CASE("run data: a run that is made longer or shorter keeps the samples that it has seen") {
  const TempDir dir;
  write_corpus(dir.path() / "a", 200, 0);
  write_corpus(dir.path() / "b", 100, 5);
  const std::string a = (dir.path() / "a").string(), b = (dir.path() / "b").string();
  ResolvedSpec one = spec_of(a), weighted = spec_of(""), plain = spec_of("");
  weighted.spec.data.train_list = {{a, 0.7}, {b, 0.3}};
  plain.spec.data.train_list = {{a, 0}, {b, 0}};
  for (ResolvedSpec resolved : {one, weighted, plain}) {
    for (const char* sampler : {"megatron", "cyclic"}) {
      CAPTURE(resolved.spec.data.train);
      CAPTURE(resolved.spec.data.train_list.size());
      CAPTURE(std::string(sampler));
      resolved.spec.data.sampler = sampler;
      // Without weights there is an epoch of each, and no more.
      const bool ends = resolved.spec.data.train_list.size() > 1 &&
                        resolved.spec.data.train_list[0].weight == 0 && *sampler == 'm';
      const RunData first = load(resolved, 300);
      // From run to run: longer, much longer, shorter, longer again.
      nlohmann::json before = first.identity();
      int64_t seen = 300;
      auto samples = first_samples(first, seen);
      for (const int64_t longer : {320, 1500, 340, 2500}) {
        CAPTURE(longer);
        const int64_t length = ends ? std::min<int64_t>(longer, 340) : longer;
        const RunData next = load(resolved, length, before);
        const auto here = first_samples(next, length);
        const auto both = static_cast<size_t>(std::min(seen, length));
        CHECK(std::equal(samples.begin(), samples.begin() + static_cast<long>(both), here.begin()));
        // What a checkpoint says is enough to make it again.
        const RunData again = load(resolved, length, next.identity());
        CHECK(first_samples(again, length) == here);
        CHECK(again.identity() == next.identity());
        before = next.identity();
        if (length > seen) samples = here;
        seen = std::max(seen, length);
      }
    }
  }
}

TEST_CASE("run data: epochs behind those of a shorter run have every sample once") {
  const TempDir dir;
  // Every token of the corpus is another, but for two epochs that follow each other.
  IndexedDatasetWriter writer(dir.path() / "corpus", TokenType::u16);
  std::vector<int32_t> tokens(16 * 50 + 1);
  std::iota(tokens.begin(), tokens.end(), 0);
  writer.add_sequence(tokens);
  writer.end_document();
  writer.finish();
  ResolvedSpec resolved = spec_of((dir.path() / "corpus").string());
  resolved.spec.data.vocab = 1000;
  resolved.spec.data.sampler = "megatron";
  const RunData whole = load(resolved, 50);
  const RunData longer = load(resolved, 150, whole.identity());
  // 50 samples of one epoch, then more than two epochs of their own; each half has each once.
  const auto count = [&](int64_t from, int64_t to, int32_t token) {
    int64_t seen = 0;
    for (int64_t k = from; k < to; ++k) {
      const std::vector<int32_t> inputs = inputs_of(*longer.train, k, 1, 16);
      seen += std::count(inputs.begin(), inputs.end(), token);
    }
    return seen;
  };
  REQUIRE(longer.train->size() >= 150);
  for (const int32_t token : {0, 7, 399, 798}) {
    CAPTURE(token);
    CHECK(count(0, 50, token) == 1);
    CHECK(count(50, 150, token) == 2);
  }
  // Another shuffle than the first one's.
  CHECK(first_samples(longer, 100) != [&] {
    auto twice = first_samples(whole, 50);
    const auto once = twice;
    twice.insert(twice.end(), once.begin(), once.end());
    return twice;
  }());
}

}  // namespace
}  // namespace mtl
