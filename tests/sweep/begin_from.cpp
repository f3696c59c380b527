#include "sweep/begin_from.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/import.h"

namespace mtl::sweep {

namespace fs = std::filesystem;

namespace {

// Files of another layout: of ranks, or of so many of one size.
fs::path reshard(const fs::path& checkpoint, uint64_t seed, const fs::path& out) {
  Draw draw(seed);
  const NewLayout layout = {.tp = draw.pick({1, 2, 4}),
                            .pp = draw.pick({1, 1, 2}),
                            .dp = draw.pick({1, 3}),
                            .shards = draw.pick({0, 0, 5})};
  try {
    reshard_checkpoint(checkpoint, layout, out);
  } catch (const Error& error) {
    if (error.diagnostics().front().code != "usage.value") throw;
    reshard_checkpoint(checkpoint, {.shards = 3}, out);  // what does not divide
  }
  return out;
}

}  // namespace

Begin begin_from(Source source, const Outcome& run, uint64_t seed, const fs::path& folder) {
  const fs::path checkpoint =
      checkpoint_path(run.dir / "checkpoints", checkpoint_steps(run.dir).back());
  const fs::path made = folder / "source";
  switch (source) {
    case Source::run:
      return {run.dir, {}};
    case Source::checkpoint:
      return {checkpoint, {}};
    case Source::resharded:
      return {reshard(checkpoint, seed, made), {}};
    case Source::hugging_face:
    case Source::imported:
      break;
  }
  try {
    export_hf({.checkpoint = checkpoint, .out = made, .max_shard_bytes = 20'000});
  } catch (const Error& error) {
    const Diagnostic& first = error.diagnostics().front();
    if (first.code != "export.family") throw;
    return {{}, render(first)};
  }
  if (source == Source::hugging_face) return {made, {}};
  import_model({.source = made, .out = folder / "imported", .tokenizer = {}});
  return {folder / "imported", {}};
}

}  // namespace mtl::sweep
