// Models of others as runs of ours.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

struct ImportOptions {
  std::filesystem::path source;  // as open_foreign_model() takes it
  std::filesystem::path out;
  std::string tokenizer;  // a file, a folder, or "bytes"; empty: what the source has
};
struct ImportReport {
  std::string kind;
  ModelShape shape = {};
  int64_t parameters = 0;
  std::filesystem::path checkpoint = {};
  bool tokenizer = false;
  std::vector<Diagnostic> warnings;
};

// Makes the run directory `out`: a checkpoint of step 0 with the model and its tokenizer, which
// `mtl generate` reads, and a train.yaml with the model's settings, whose init.from is this
// directory. The vocabulary is cut to the tokenizer's. Throws Error: as open_foreign_model();
// export.exists, ckpt.write; import.vocab when the tokenizer has more tokens than the model.
ImportReport import_model(const ImportOptions& options);

// The train.yaml of a model. `tokenizer`: what data.tokenizer says, as YAML; empty: nothing.
std::string train_yaml_of(const ModelShape& shape, const std::string& name,
                          const std::filesystem::path& init_from, const std::string& tokenizer,
                          const std::string& comment);

}  // namespace mtl
