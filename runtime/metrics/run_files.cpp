#include "runtime/metrics/run_files.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace mtl {

namespace {

bool ends_inside_line(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || info.st_size == 0) return false;
  char last = '\n';
  return pread(fd, &last, 1, info.st_size - 1) == 1 && last != '\n';
}

bool keep_line(std::string_view line, int64_t step, const std::string& key) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto found = json.find("step");
  if (found == json.end() || !found->is_number_integer()) return false;
  const auto of = found->get<int64_t>();
  return of < step || (of == step && (key.empty() || !json.contains(key)));
}

}  // namespace

size_t write_some(int fd, std::string_view text, int& error) {
  size_t done = 0;
  error = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      error = errno;
      break;
    }
    done += static_cast<size_t>(n);
  }
  return done;
}

LineFile::LineFile(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {
  if (!fd_) {
    throw Error(Exit::environment,
                Diagnostic{.code = "file.open",
                           .what = "cannot open " + path_.string() + ": " + std::strerror(errno),
                           .help = "check the permissions of the run directory"});
  }
  torn_ = ends_inside_line(fd_.get());
}

int LineFile::append(const std::string& line) {
  const std::string text = (torn_ ? "\n" : "") + line + '\n';
  int error = 0;
  const size_t done = write_some(fd_.get(), text, error);
  if (done > 0) torn_ = done < text.size();
  return error;
}

void drop_steps_after(const std::filesystem::path& path, int64_t step, const std::string& key) {
  if (!std::filesystem::is_regular_file(path)) return;
  const std::string text = read_file(path);
  std::string kept;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (keep_line(line, step, key)) kept.append(line).push_back('\n');
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  if (kept != text) write_file_atomic(path, kept);
}

int replace_file(const std::filesystem::path& path, const std::string& content) {
  const std::string temporary = path.string() + ".tmp";
  const Fd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return errno;
  int error = 0;
  write_some(fd.get(), content, error);
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(temporary.c_str());
  return error;
}

}  // namespace mtl
