// With MTL_FUZZ_SEEDS=DIRECTORY a target writes its seeds there and ends; scripts/fuzz does it
// once.
#include "fuzz/seeds.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace mtl::fuzz {

__attribute__((weak)) std::vector<std::string> seeds() {
  return {};
}

}  // namespace mtl::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* directory = std::getenv("MTL_FUZZ_SEEDS");
  if (directory == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : mtl::fuzz::seeds()) {
    const auto path = std::filesystem::path(directory) / ("seed-" + std::to_string(number++));
    std::ofstream(path, std::ios::binary) << seed;
  }
  std::exit(0);
}
