// sweep [FIRST [LAST]]: draws a run for every seed and holds it to what the documentation says of
// layouts (docs/explain/parallelism.md, "What stays the same"). The first line of a failure is its
// seed; behind it stands the smallest case that was found to fail the same way.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "support/temp_dir.h"
#include "sweep/check_case.h"
#include "sweep/shrink.h"
#include "sweep/texts.h"

using namespace mtl;
using namespace mtl::sweep;

namespace {

constexpr const char* kUsage =
    "usage: sweep [--plans] [--keep-going] [--no-shrink] [--show] [--in FOLDER] [FIRST [LAST]]\n"
    "  FIRST, LAST    seeds, 1 and FIRST + 99 if they are not given\n"
    "  --plans        no runs: the forecasts alone, a thousand in seconds\n"
    "  --keep-going   do not stop at the first failure\n"
    "  --no-shrink    do not look for the smallest case\n"
    "  --in FOLDER    write texts and runs there, and leave the texts\n"
    "  --show         print what each seed draws, and run nothing\n";

struct Options {
  uint64_t first = 1, last = 0;
  bool keep_going = false, shrink = true, show = false;
  bool plans = false;
  std::string folder;  // "" = one that is removed in the end
};

bool read_options(int argc, char** argv, Options& options) {
  int numbers = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word == "--keep-going") {
      options.keep_going = true;
    } else if (word == "--no-shrink") {
      options.shrink = false;
    } else if (word == "--plans") {
      options.plans = true;
    } else if (word == "--in" && i + 1 < argc) {
      options.folder = argv[++i];
    } else if (word == "--show") {
      options.show = true;
    } else if (error == std::errc() && end == word.data() + word.size() && numbers < 2) {
      (numbers++ == 0 ? options.first : options.last) = number;
    } else {
      return false;
    }
  }
  if (numbers < 2) options.last = options.first + 99;
  return options.first <= options.last;
}

const char* claim_words(Claim claim) {
  switch (claim) {
    case Claim::same_again:
    case Claim::same_bits:
      return "the other has the bits of the first";
    case Claim::resumed_bits:
      return "the first, resumed as the other, keeps its bits";
    case Claim::resumed_near:
      return "the first, resumed as the other, is near one rank";
    case Claim::killed_bits:
      return "the other, ended at random moments and started again, has the bits of the first";
    case Claim::changed_bits:
      return "the first, resumed as it was and as the other with a change, has the same bits";
    case Claim::begun_bits:
      return "new runs that begin from the first have the same bits in both layouts";
  }
  return "";
}

const char* source_words(Source source) {
  switch (source) {
    case Source::run:
      return "its folder";
    case Source::checkpoint:
      return "its last checkpoint";
    case Source::resharded:
      return "that, resharded";
    case Source::hugging_face:
      return "its export";
    case Source::imported:
      return "its export, imported";
  }
  return "";
}

void print_case(const Case& drawn) {
  fmt::print("  {}\n  one rank: {}\n  first: {} ranks, {}\n  other: {} ranks, {}\n",
             claim_words(drawn.claim), words_of(drawn.common), drawn.first.world(),
             words_of(drawn.first), drawn.other.world(), words_of(drawn.other));
  if (!drawn.changed.all().empty()) fmt::print("  changed: {}\n", words_of(drawn.changed));
  if (drawn.counts_links) fmt::print("  the links of the first carry the planned bytes\n");
  if (drawn.claim == Claim::begun_bits) fmt::print("  from {}\n", source_words(drawn.source));
}

void print_tally(const Tally& tally, int64_t failed) {
  std::string refusals;
  for (const auto& [code, count] : tally.refusals) refusals += fmt::format(" {} {}", count, code);
  for (const auto& [dtype, moved] : tally.moved) {
    fmt::print(
        "{}: most that one rank was away: first loss {:.1e}, first norm {:.1e}, loss {:.1e}, "
        "moments {:.1e}\n",
        dtype, moved.first_loss, moved.first_norm, moved.loss, moved.moments);
  }
  fmt::print("most that a forecast of memory was away: {:.2f} %\n", 100 * tally.forecast);
  fmt::print("{} cases: {} agreed, {} refused{}{}{}, {} failed\n", tally.cases, tally.agreed,
             tally.refused, refusals.empty() ? "" : " (",
             refusals.empty() ? "" : refusals.substr(1), refusals.empty() ? "" : ")", failed);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!read_options(argc, argv, options)) {
    fmt::print(stderr, "{}", kUsage);
    return 2;
  }
  // OpenMP reads it before main.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    setenv("OMP_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
    std::perror("sweep cannot start itself again");
    return 4;
  }
  const test::TempDir temporary;
  const std::filesystem::path folder =
      options.folder.empty() ? temporary.path() : std::filesystem::absolute(options.folder);
  std::filesystem::create_directories(folder);
  write_texts(folder);
  const What what = options.plans ? What::plans : What::runs;
  Tally tally;
  int64_t failed = 0;
  for (uint64_t seed = options.first; seed <= options.last; ++seed) {
    const Case drawn = draw_case(seed, folder.string());
    if (options.show) {
      fmt::print("seed {}\n", seed);
      print_case(drawn);
      continue;
    }
    const auto failure = check_case(drawn, folder, what, tally);
    std::fflush(stdout);
    if (!failure) continue;
    ++failed;
    fmt::print("seed {}: {}: {}\n", seed, failure->kind, failure->words);
    print_case(drawn);
    std::fflush(stdout);
    if (options.shrink) {
      const Case smallest = shrink(drawn, *failure, folder, what);
      Tally ignored;
      const auto same = check_case(smallest, folder, what, ignored);
      fmt::print("  the smallest that was found: {}\n", same ? same->words : "none");
      print_case(smallest);
    }
    std::fflush(stdout);
    if (!options.keep_going) break;
  }
  if (!options.show) print_tally(tally, failed);
  return failed == 0 ? 0 : 1;
}
