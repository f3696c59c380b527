// All weights in files that everybody reads (rewrite.h).
#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/elements_as_double.h"
#include "runtime/checkpoint/fp16_range.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/checkpoint/whole_tensor.h"
#include "runtime/checkpoint/write_error.h"
#include "runtime/checkpoint/write_parts.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

// One weight, in the type that is wanted.
CheckpointTensor weight(CheckpointReader& reader, const TensorInfo& tensor, DType stored,
                        DType wanted) {
  return streamed(tensor, wanted,
                  [&reader, tensor, stored, wanted](int64_t at, int64_t n, void* to) {
                    if (stored == wanted) return read_elements(reader, tensor, stored, at, n, to);
                    std::vector<char> piece;
                    for (int64_t done = 0; done < n; done += kPieceElements) {
                      const int64_t count = std::min(kPieceElements, n - done);
                      piece.resize(static_cast<size_t>(count * bytes_of(stored)));
                      read_elements(reader, tensor, stored, at + done, count, piece.data());
                      for (int64_t i = 0; i < count; ++i) {
                        const double value = element_as_double(stored, piece.data(), i);
                        if (wanted == DType::f16) require_fp16(tensor.name, value);
                        store_double(wanted, value, to, done + i);
                      }
                    }
                  });
}

// Beside `path`, and under its name when it is complete.
void write_atomic(const fs::path& path, const std::vector<CheckpointTensor>& tensors) {
  std::optional<Replacement> replacement;
  as_write_error(path, [&] { replacement.emplace(path); });
  write_safetensors(replacement->written(), path, tensors);
  as_write_error(path, [&] { replacement->finish(); });
}

// A checkpoint's own file may be what is named; and weights beside an index, or a whole file, of
// other weights would be read as one model with them.
void refuse_existing(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    std::error_code unknown;
    if (!fs::exists(fs::symlink_status(file, unknown))) continue;
    throw Error(Exit::usage, {.code = "ckpt.exists",
                              .what = file.string() + " is there already",
                              .help = "give the name of a new file, or remove this one"});
  }
}

}  // namespace

std::vector<fs::path> merge_weights(const fs::path& checkpoint, const fs::path& out,
                                    std::optional<DType> dtype, int64_t max_file_bytes) {
  CheckpointReader reader(checkpoint);
  refuse_adapters(reader, checkpoint.string() +
                              " has adapters beside its weights, which others would read as a "
                              "model without them");
  std::vector<std::vector<CheckpointTensor>> files(1);
  int64_t total = 0, in_file = 0;
  for (const TensorInfo& tensor : tensors_of(reader)) {
    if (tensor.optimizer) continue;
    const DType stored = dtype_of(tensor, checkpoint.string());
    const bool number = stored != DType::i32 && stored != DType::u8;
    const DType wanted = dtype && number ? *dtype : stored;
    const int64_t bytes = tensor.elements * bytes_of(wanted);
    if (max_file_bytes > 0 && in_file > 0 && in_file + bytes > max_file_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(weight(reader, tensor, stored, wanted));
    in_file += bytes;
    total += bytes;
  }
  const fs::path whole = fs::absolute(out);
  const fs::path folder = whole.parent_path();
  const std::string index = whole.stem().string() + ".safetensors.index.json";
  std::vector<std::string> names;
  for (size_t i = 0; i < files.size(); ++i) {
    names.push_back(
        fmt::format("{}-{:05d}-of-{:05d}.safetensors", whole.stem().string(), i + 1, files.size()));
  }
  std::vector<fs::path> made = {whole, folder / index};
  for (const std::string& name : names) made.push_back(folder / name);
  refuse_existing(made);
  as_write_error(whole, [&] { make_directories(folder); });
  if (files.size() == 1) {
    write_atomic(whole, files[0]);
    return {out};
  }
  std::vector<fs::path> written;
  nlohmann::json map = nlohmann::json::object();
  try {
    for (size_t i = 0; i < files.size(); ++i) {
      write_atomic(folder / names[i], files[i]);
      for (const CheckpointTensor& tensor : files[i]) map[tensor.name] = names[i];
      written.push_back(out.parent_path() / names[i]);
    }
    const nlohmann::json json = {{"metadata", {{"total_size", total}}},
                                 {"weight_map", std::move(map)}};
    as_write_error(folder / index, [&] { write_file_atomic(folder / index, json.dump(2) + "\n"); });
  } catch (...) {
    // Without the rest they are nothing, and would be in the way of the same command again.
    std::error_code ignored;
    for (const fs::path& file : written) fs::remove(folder / file.filename(), ignored);
    throw;
  }
  written.push_back(out.parent_path() / index);
  return written;
}

}  // namespace mtl
