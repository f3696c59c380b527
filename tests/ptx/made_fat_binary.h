// A fat binary made by hand, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <zstd.h>

namespace mtl::ptx {

// As nvcc has it: a pointer in what is registered, and in the container an entry behind the other.
struct FatBinary {
  std::string container;
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const char* container = nullptr;
    const void* other = nullptr;
  } registered;

  FatBinary() { header(0); }

  template <typename T>
  static void put(std::string& to, size_t at, T value) {
    std::memcpy(&to.at(at), &value, sizeof value);
  }
  void header(uint64_t bytes) {
    if (container.empty()) container.resize(16);
    put<uint32_t>(container, 0, 0xba55ed50);
    put<uint16_t>(container, 4, 1);
    put<uint16_t>(container, 6, 16);
    put<uint64_t>(container, 8, bytes);
  }
  // `more`: of options, which some entries have in their headers.
  void add(uint16_t kind, std::string data, bool packed = false, size_t more = 0) {
    std::string entry(64 + more, '\0');
    put<uint16_t>(entry, 0, kind);
    put<uint16_t>(entry, 2, 0x101);
    put<uint32_t>(entry, 4, static_cast<uint32_t>(entry.size()));
    if (packed) {
      std::string small(ZSTD_compressBound(data.size()), '\0');
      small.resize(ZSTD_compress(small.data(), small.size(), data.data(), data.size(), 3));
      data = small;
      put<uint32_t>(entry, 16, static_cast<uint32_t>(data.size()));
    }
    data.resize((data.size() + 7) / 8 * 8);
    put<uint64_t>(entry, 8, data.size());
    container += entry + data;
    header(container.size() - 16);
  }
  void* registration() {
    registered.container = container.data();
    return &registered;
  }
};

}  // namespace mtl::ptx
