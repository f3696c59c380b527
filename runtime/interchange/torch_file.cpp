#include "runtime/interchange/torch_file.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace mtl {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void bad_file(const std::string& file, const std::string& what) {
  throw Error(Exit::data,
              {.code = "import.file",
               .what = file + ": " + what,
               .help = "the file is damaged or of another kind; in Python, "
                       "safetensors.torch.save_file(torch.load(...), ...) makes one that can be "
                       "read"});
}

template <class T>
T number(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Directory {
  uint64_t entries = 0, bytes = 0, offset = 0;
};

// The end record, behind which nothing but a comment of at most 64 KiB may follow.
Directory find_directory(std::string_view file, const std::string& name) {
  constexpr size_t kEnd = 22, kEnd64 = 56, kLocator = 20;
  if (file.size() < kEnd) bad_file(name, "it is too short for a zip archive");
  const size_t lowest = file.size() - kEnd - std::min<size_t>(file.size() - kEnd, 0xffff);
  for (size_t at = file.size() - kEnd;; --at) {
    if (number<uint32_t>(file, at) == 0x06054b50 &&
        at + kEnd + number<uint16_t>(file, at + 20) == file.size()) {
      Directory found{.entries = number<uint16_t>(file, at + 10),
                      .bytes = number<uint32_t>(file, at + 12),
                      .offset = number<uint32_t>(file, at + 16)};
      // Zip64: a locator before it leads to the record with the large numbers.
      if (at >= kLocator && number<uint32_t>(file, at - kLocator) == 0x07064b50) {
        const auto at64 = number<uint64_t>(file, at - kLocator + 8);
        if (file.size() < kEnd64 || at64 > file.size() - kEnd64 ||
            number<uint32_t>(file, at64) != 0x06064b50) {
          bad_file(name, "its zip64 end record is not where it should be");
        }
        found = {.entries = number<uint64_t>(file, at64 + 32),
                 .bytes = number<uint64_t>(file, at64 + 40),
                 .offset = number<uint64_t>(file, at64 + 48)};
      }
      if (found.offset > at || found.bytes > at - found.offset) {
        bad_file(name, "its directory lies outside it");
      }
      return found;
    }
    if (at == lowest) break;
  }
  // Before 1.6 torch wrote bare pickles.
  bad_file(name, "it is no zip archive, as torch.save has written since PyTorch 1.6");
}

// Sizes and offset that do not fit 32 bits stand in an extra field, in this order.
void read_zip64(std::string_view extra, uint64_t& size, uint64_t& packed, uint64_t& offset,
                const std::string& file) {
  while (extra.size() >= 4) {
    const auto id = number<uint16_t>(extra, 0);
    const auto length = number<uint16_t>(extra, 2);
    if (length > extra.size() - 4u) bad_file(file, "a zip entry's extra field is cut");
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4u + length);
    if (id != 1) continue;
    for (uint64_t* value : {&size, &packed, &offset}) {
      if (*value != 0xffffffff) continue;
      if (field.size() < 8) bad_file(file, "a zip64 entry without its size");
      *value = number<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
  }
}

}  // namespace

std::map<std::string, ZipEntry> zip_entries(std::string_view file, const std::string& name) {
  constexpr size_t kCentral = 46, kLocal = 30;
  const Directory directory = find_directory(file, name);
  std::string_view rest = file.substr(directory.offset, directory.bytes);
  std::map<std::string, ZipEntry> entries;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (rest.size() < kCentral || number<uint32_t>(rest, 0) != 0x02014b50) {
      bad_file(name, "its directory is damaged");
    }
    const auto flags = number<uint16_t>(rest, 8), method = number<uint16_t>(rest, 10);
    uint64_t packed = number<uint32_t>(rest, 20), size = number<uint32_t>(rest, 24);
    const size_t name_bytes = number<uint16_t>(rest, 28), extra = number<uint16_t>(rest, 30);
    const size_t comment = number<uint16_t>(rest, 32);
    uint64_t offset = number<uint32_t>(rest, 42);
    if (rest.size() - kCentral < name_bytes + extra + comment) {
      bad_file(name, "its directory is damaged");
    }
    const std::string entry(rest.substr(kCentral, name_bytes));
    read_zip64(rest.substr(kCentral + name_bytes, extra), size, packed, offset, name);
    rest.remove_prefix(kCentral + name_bytes + extra + comment);
    if ((flags & 1) != 0) bad_file(name, fmt::format("'{}' is encrypted", entry));
    if (method != 0 || size != packed) {
      bad_file(name, fmt::format("'{}' is compressed, and torch.save stores", entry));
    }
    if (offset > file.size() - kLocal || number<uint32_t>(file, offset) != 0x04034b50) {
      bad_file(name, fmt::format("'{}' is not where its directory says", entry));
    }
    const uint64_t begin =
        offset + kLocal + number<uint16_t>(file, offset + 26) + number<uint16_t>(file, offset + 28);
    if (begin > file.size() || size > file.size() - begin) {
      bad_file(name, fmt::format("'{}' lies outside it", entry));
    }
    const ZipEntry where{static_cast<int64_t>(begin), static_cast<int64_t>(size)};
    if (!entries.emplace(entry, where).second) {
      bad_file(name, fmt::format("two entries are named '{}'", entry));
    }
  }
  return entries;
}

TorchFile::TorchFile(const fs::path& path) : file_(std::make_shared<const MappedFile>(path)) {
  const std::string name = path.string();
  entries_ = zip_entries(file_->bytes(), name);
  constexpr std::string_view kPickle = "data.pkl";
  for (const auto& [entry, where] : entries_) {
    const size_t slash = entry.find('/');
    if (slash == std::string::npos || entry.substr(slash + 1) != kPickle) continue;
    if (!prefix_.empty()) bad_file(name, "two pickles are in it");
    prefix_ = entry.substr(0, slash + 1);
  }
  if (prefix_.empty()) bad_file(name, "a zip archive without data.pkl is not from torch.save");
  const auto text = [&](const ZipEntry& entry) {
    return file_->bytes().substr(static_cast<size_t>(entry.begin),
                                 static_cast<size_t>(entry.bytes));
  };
  if (const auto order = entries_.find(prefix_ + "byteorder"); order != entries_.end()) {
    if (text(order->second) != "little") bad_file(name, "its numbers are not little-endian");
  }
  pickle_ = std::make_unique<Pickle>(text(entries_.at(prefix_ + std::string(kPickle))), name);
}

namespace {

// torch's storage classes, and the dtypes of untyped ones, with the safetensors name.
std::string element_type(const std::string& global) {
  static const std::map<std::string, std::string> kTypes = {
      {"torch.FloatStorage", "F32"}, {"torch.BFloat16Storage", "BF16"},
      {"torch.HalfStorage", "F16"},  {"torch.DoubleStorage", "F64"},
      {"torch.LongStorage", "I64"},  {"torch.IntStorage", "I32"},
      {"torch.ShortStorage", "I16"}, {"torch.CharStorage", "I8"},
      {"torch.ByteStorage", "U8"},   {"torch.BoolStorage", "BOOL"},
      {"torch.float32", "F32"},      {"torch.bfloat16", "BF16"},
      {"torch.float16", "F16"},      {"torch.float64", "F64"}};
  const auto found = kTypes.find(global);
  return found == kTypes.end() ? "" : found->second;
}

}  // namespace

std::optional<StridedTensor> TorchFile::tensor(Pickle::Id id, std::string& other) const {
  const Pickle& pickle = *pickle_;
  const std::string name = file_->path().string();
  const auto bad = [&](const std::string& what) { bad_file(name, "a tensor in it " + what); };
  using Kind = Pickle::Kind;
  const Pickle::Value* call = &pickle[id];
  if (call->kind != Kind::call) return std::nullopt;
  std::string function = pickle.global_name(call->items[0]);
  if (function == "torch._utils._rebuild_parameter") {
    const Pickle::Value& arguments = pickle[call->items[1]];
    if (arguments.items.empty()) bad("is a parameter of nothing");
    call = &pickle[arguments.items[0]];
    if (call->kind != Kind::call) bad("is a parameter of no tensor");
    function = pickle.global_name(call->items[0]);
  }
  const bool v3 = function == "torch._utils._rebuild_tensor_v3";
  if (function != "torch._utils._rebuild_tensor_v2" && !v3) return std::nullopt;
  const std::vector<Pickle::Id>& arguments = pickle[call->items[1]].items;
  if (arguments.size() < (v3 ? 7u : 6u)) bad("has too few arguments");
  const Pickle::Value& storage = pickle[arguments[0]];
  if (storage.kind != Kind::persistent) bad("has no storage");
  // ("storage", class, key, place, elements)
  const std::vector<Pickle::Id>& parts = pickle[storage.items[0]].items;
  if (parts.size() != 5 || pickle[parts[0]].text != "storage" ||
      pickle[parts[2]].kind != Kind::text) {
    bad("has a storage of another kind");
  }
  const std::string type = element_type(pickle.global_name(v3 ? arguments[6] : parts[1]));
  StridedTensor tensor;
  if (!float_dtype(type, tensor.dtype)) {
    other = type.empty() ? pickle.global_name(parts[1]) : type;
    return std::nullopt;
  }
  const std::string key = prefix_ + "data/" + std::string(pickle[parts[2]].text);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) bad(fmt::format("is in '{}', which is not there", key));
  const auto integer = [&](Pickle::Id value) {
    if (pickle[value].kind != Kind::integer || pickle[value].integer < 0) {
      bad("has a size that is none");
    }
    return pickle[value].integer;
  };
  const auto integers = [&](Pickle::Id value) {
    if (pickle[value].kind != Kind::tuple) bad("has a shape that is none");
    Dims dims;
    for (const Pickle::Id item : pickle[value].items) dims.push_back(integer(item));
    return dims;
  };
  const int64_t element = bytes_of(tensor.dtype);
  const int64_t first = integer(arguments[1]);
  tensor.shape = integers(arguments[2]);
  tensor.strides = integers(arguments[3]);
  if (tensor.strides.size() != tensor.shape.size() || !volume(tensor.shape)) {
    bad("has an impossible shape");
  }
  const int64_t there = entry->second.bytes / element;
  if (*volume(tensor.shape) > 0) {
    const auto last = last_element(tensor.shape, tensor.strides);
    if (!last || first >= there || *last >= there - first) {
      bad(fmt::format("does not lie inside the {} elements of '{}'", there, key));
    }
  }
  tensor.file = file_;
  tensor.byte_offset = entry->second.begin;
  if (*volume(tensor.shape) > 0) tensor.byte_offset += first * element;
  return tensor;
}

const Pickle::Value* TorchFile::attributes(const Pickle::Value& object) const {
  if (object.kind == Pickle::Kind::dict) return &object;
  if (object.kind != Pickle::Kind::call || object.items.size() < 3) return nullptr;
  const Pickle::Value& state = (*pickle_)[object.items[2]];
  return state.kind == Pickle::Kind::dict ? &state : nullptr;
}

ForeignTensors read_torch_tensors(const fs::path& path) {
  const TorchFile file(path);
  const Pickle::Value& root = file.root();
  if (root.kind != Pickle::Kind::dict) bad_file(path.string(), "it holds no dict of tensors");
  ForeignTensors all;
  for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
    const Pickle::Value& key = file.pickle()[root.items[i]];
    if (key.kind != Pickle::Kind::text) continue;
    const std::string name(key.text);
    std::string other;
    if (auto tensor = file.tensor(root.items[i + 1], other)) {
      all.tensors.insert_or_assign(name, std::move(*tensor));
    } else if (!other.empty()) {
      all.others.insert_or_assign(name, other);
    } else {
      bad_file(path.string(), fmt::format("'{}' is no tensor", name));
    }
  }
  return all;
}

}  // namespace mtl
