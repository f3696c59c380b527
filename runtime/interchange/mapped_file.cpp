#include "runtime/interchange/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <system_error>

#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"

namespace mtl {

namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, const std::string& why) {
  throw Error(Exit::data, {.code = "import.unreadable",
                           .what = fmt::format("cannot read {}: {}", path.string(), why),
                           .help = "check the path and its permissions"});
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK a pipe in the place of a file would be waited for.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0)
    cannot_read(path, std::generic_category().message(errno));
  if (!S_ISREG(info.st_mode)) cannot_read(path, "not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) cannot_read(path, std::generic_category().message(errno));
  data_ = static_cast<const char*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace mtl
