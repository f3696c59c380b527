// What torch.save writes (since 1.6): a zip archive of stored entries, with a pickle that describes
// objects (NAME/data.pkl) and the bytes of each storage beside it (NAME/data/KEY). The pickle is
// read as data (torch_pickle.h); of the calls in it only those that describe a tensor mean anything
// here. (Format: torch/serialization.py, torch/_utils.py; zip: PKWARE's APPNOTE.)
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/interchange/foreign_model.h"
#include "runtime/interchange/torch_pickle.h"

namespace mtl {

// The stored entries of a zip file: name -> where its bytes are. Throws Error (Exit::data)
// import.file.
struct ZipEntry {
  int64_t begin = 0;
  int64_t bytes = 0;
};
std::map<std::string, ZipEntry> zip_entries(std::string_view file, const std::string& name);

class TorchFile {
 public:
  // Throws import.unreadable, import.file, import.pickle.
  explicit TorchFile(const std::filesystem::path& path);

  const Pickle& pickle() const { return *pickle_; }
  const Pickle::Value& root() const { return (*pickle_)[pickle_->root()]; }
  // The tensor that `value` describes: a call of torch's rebuilding functions, or a parameter
  // around one. Nothing if it is no tensor; `other` gets its type if that is no floating-point
  // number. Throws import.file if it does not lie inside its storage.
  std::optional<StridedTensor> tensor(Pickle::Id id, std::string& other) const;
  // The attributes of an object (argparse.Namespace): the dict that is its state. nullptr if none.
  const Pickle::Value* attributes(const Pickle::Value& object) const;
  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::string prefix_;  // "archive/"
  std::map<std::string, ZipEntry> entries_;
  std::unique_ptr<Pickle> pickle_;
};

// A file whose object is a dict of tensors (pytorch_model.bin).
ForeignTensors read_torch_tensors(const std::filesystem::path& path);

}  // namespace mtl
