#include "ptx/fat_binary.h"

#include <cctype>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <zstd.h>

#include <fmt/format.h>

namespace mtl::ptx {

namespace {

// What is registered points to a container: a header, and entries each with a header of its own.
struct Registered {
  uint32_t magic, version;
  const unsigned char* container;
  const void* other;
};
constexpr uint32_t kRegistered = 0x466243b1;

struct Container {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // behind the header
};
constexpr uint32_t kContainer = 0xba55ed50;

struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;         // behind the header
  uint32_t packed_bytes;  // 0: it is not compressed
};
constexpr uint16_t kPtx = 1;

template <typename T>
T read(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

[[noreturn]] void refuse(const std::string& why) {
  throw std::runtime_error("a fat binary that is read in another way than nvcc " +
                           fmt::format("has written it: {} (tests/ptx/fat_binary.cpp)", why));
}

std::string unpacked(const unsigned char* data, size_t bytes) {
  constexpr uint32_t kZstd = 0xfd2fb528;
  if (bytes < 4 || read<uint32_t>(data) != kZstd) {
    refuse("its PTX is compressed, and not by zstd (nvcc --compress-mode=none leaves it as it is)");
  }
  const unsigned long long size = ZSTD_getFrameContentSize(data, bytes);
  if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size > 1u << 30) {
    refuse("zstd does not say how long its PTX is");
  }
  std::string text(size, '\0');
  const size_t got = ZSTD_decompress(text.data(), text.size(), data, bytes);
  if (ZSTD_isError(got) != 0) refuse(fmt::format("zstd: {}", ZSTD_getErrorName(got)));
  text.resize(got);
  return text;
}

}  // namespace

std::vector<std::string> texts_of(const void* registered) {
  const auto outer = read<Registered>(static_cast<const unsigned char*>(registered));
  if (outer.magic != kRegistered) refuse(fmt::format("it begins with {:#x}", outer.magic));
  const auto container = read<Container>(outer.container);
  if (container.magic != kContainer || container.header_bytes < sizeof(Container)) {
    refuse(fmt::format("its container begins with {:#x}", container.magic));
  }
  std::vector<std::string> texts;
  const unsigned char* at = outer.container + container.header_bytes;
  const unsigned char* const end = at + container.bytes;
  while (at < end) {
    const auto entry = read<Entry>(at);
    const auto left = static_cast<uint64_t>(end - at);
    if (entry.header_bytes < sizeof(Entry) || entry.header_bytes > left ||
        entry.bytes > left - entry.header_bytes || entry.packed_bytes > entry.bytes) {
      refuse(fmt::format("entry {} of {} bytes does not end in it", texts.size(), entry.bytes));
    }
    const unsigned char* const data = at + entry.header_bytes;
    if (entry.kind == kPtx) {
      std::string text = entry.packed_bytes > 0
                             ? unpacked(data, entry.packed_bytes)
                             : std::string(reinterpret_cast<const char*>(data), entry.bytes);
      // Some end with zeros, to a multiple of 8.
      text.resize(std::strlen(text.c_str()));
      if (text.find(".version ") == std::string::npos || target_of(text).capability == 0) {
        refuse("what should be PTX says no .version and .target");
      }
      texts.push_back(std::move(text));
    }
    at = data + entry.bytes;
  }
  return texts;
}

Target target_of(const std::string& text) {
  constexpr std::string_view kDirective = ".target sm_";
  size_t at = text.find(kDirective);
  if (at == std::string::npos) return {};
  Target target;
  for (at += kDirective.size(); at < text.size() && std::isdigit(text[at]) != 0; ++at) {
    target.capability = 10 * target.capability + (text[at] - '0');
  }
  target.only = at < text.size() && (text[at] == 'a' || text[at] == 'f');
  return target;
}

const std::string* text_for(const std::vector<std::string>& texts, int capability) {
  const std::string* best = nullptr;
  int newest = 0;
  for (const std::string& text : texts) {
    const Target target = target_of(text);
    if (target.only ? target.capability != capability : target.capability > capability) continue;
    if (target.capability < newest || (target.capability == newest && !target.only)) continue;
    newest = target.capability;
    best = &text;
  }
  return best;
}

}  // namespace mtl::ptx
