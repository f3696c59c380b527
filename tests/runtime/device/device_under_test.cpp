#include "runtime/device/device_under_test.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string_view>

#include "common/error.h"
#include "runtime/device/load_cuda.h"

namespace mtl::test {

Device* gpu_under_test() {
  static const std::unique_ptr<Device> device = []() -> std::unique_ptr<Device> {
    const char* const wanted = std::getenv("MTL_TEST_DEVICE");
    if (wanted == nullptr || std::string_view(wanted) != "cuda") return nullptr;
    std::unique_ptr<Device> made = load_cuda().make_device(0);
    std::printf("device under test: %s\n", made->description().c_str());
    return made;
  }();
  return device.get();
}

TestMemory make_test_memory(size_t bytes) {
  TestMemory memory(nullptr, nullptr);
  if (gpu_under_test() != nullptr) {
    memory = TestMemory(static_cast<uint8_t*>(load_cuda().allocate_shared(bytes)),
                        [](uint8_t* shared) { load_cuda().free_shared(shared); });
  } else {
    constexpr std::align_val_t kAlignment{16};
    memory = TestMemory(static_cast<uint8_t*>(::operator new[](bytes, kAlignment)),
                        [](uint8_t* own) { ::operator delete[](own, kAlignment); });
  }
  std::memset(memory.get(), 0, bytes);
  return memory;
}

Dropout dropout_in_test_memory(float probability, int64_t first_sequence,
                               int64_t sequence_elements) {
  static std::map<int64_t, TestMemory> passes;
  const auto [found, is_new] =
      passes.try_emplace(first_sequence, TestMemory(nullptr, [](uint8_t*) {}));
  if (is_new) {
    found->second = make_test_memory(sizeof(DropoutPass));
    const DropoutPass pass = {0x123456789abcdef0u, first_sequence};
    std::memcpy(found->second.get(), &pass, sizeof pass);
  }
  return {.probability = probability,
          .layer = 3,
          .site = 4,
          .sequence_elements = sequence_elements,
          .pass = Tensor(found->second.get(), DType::u8, {sizeof(DropoutPass)})};
}

}  // namespace mtl::test
