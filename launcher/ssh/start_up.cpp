#include "launcher/ssh/start_up.h"

namespace mtl::ssh {

namespace {

constexpr size_t kNoise = 64 * 1024;
constexpr size_t kTailBytes = 8 * 1024;
constexpr size_t kTailLines = 20;

}  // namespace

std::string last_lines(std::string_view text, size_t lines) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  size_t start = text.size();
  for (size_t seen = 0; start > 0; --start) {
    if (text[start - 1] == '\n' && ++seen == lines) break;
  }
  std::string clean;
  for (char c : text.substr(start)) {
    if (c == '\r') continue;
    const bool control =
        (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 127;
    clean += control ? '?' : c;
  }
  return clean;
}

bool MagicFilter::feed(std::string_view bytes, std::string_view& rest) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (end == std::string_view::npos) {
      // Only its end can matter; a program that is not ours may print without any newline.
      if (line_.size() > kNoise) {
        keep(std::string_view(line_).substr(0, line_.size() - magic_.size() - 1));
        line_.erase(0, line_.size() - magic_.size() - 1);
      }
      return false;
    }
    bytes.remove_prefix(end + 1);
    std::string_view line = line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.ends_with(magic_)) {
      keep(line.substr(0, line.size() - magic_.size()));
      line_ = {};
      rest = bytes;
      return true;
    }
    line_ += '\n';
    keep(line_);
    line_.clear();
  }
  return false;
}

void MagicFilter::keep(std::string_view bytes) {
  noise_.append(bytes);
  if (noise_.size() > kNoise) noise_.erase(0, noise_.size() - kNoise);
}

std::string MagicFilter::noise() const {
  return last_lines(noise_ + line_, kNoise);
}

void Tail::add(std::string_view bytes) {
  kept_.append(bytes);
  if (kept_.size() > 2 * kTailBytes) kept_.erase(0, kept_.size() - kTailBytes);
}

std::string Tail::text() const {
  std::string_view text = kept_;
  if (text.size() > kTailBytes) text.remove_prefix(text.size() - kTailBytes);
  return last_lines(text, kTailLines);
}

}  // namespace mtl::ssh
