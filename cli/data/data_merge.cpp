// mtl data merge: several corpora into one.
#include <cstdio>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/data/data.h"
#include "common/error.h"
#include "runtime/data/corpus_tools.h"
#include "runtime/metrics/format.h"

namespace mtl {

int command_data_merge(const Arguments& args) {
  std::vector<std::string> prefixes;
  std::string output;
  bool fresh = false;
  CommandLine line({"data merge [options] A B ... -o PREFIX"},
                   "Puts corpora one after the other into a new one. They must have tokens of one "
                   "type and, as far as it is known, of one tokenizer.");
  line.example("mtl data merge shard-0 shard-1 shard-2 -o all",
               "what Megatron's merge_datasets does");
  line.rest("PREFIX", prefixes, "the corpora, in this order");
  line.option("output,o", "PREFIX", output, "the new one");
  line.flag("fresh", fresh, "also over an existing corpus");
  line.footnote("To train on a mixture, weights in data.train of train.yaml do without a copy.");
  if (!line.parse(args)) return 0;
  if (prefixes.empty() || output.empty()) {
    throw Error(Exit::usage,
                {.code = "usage.missing",
                 .what = prefixes.empty() ? "no corpus is given" : "no output is given",
                 .help = "mtl data merge A B -o PREFIX"});
  }
  const std::filesystem::path to = output_prefix(output);
  const CorpusMeta meta = merge_corpora({prefixes.begin(), prefixes.end()}, to, fresh);
  fmt::print(stderr, "{}: {} documents, {} tokens\n", to.string(), grouped(meta.documents),
             grouped(meta.tokens));
  return 0;
}

}  // namespace mtl
