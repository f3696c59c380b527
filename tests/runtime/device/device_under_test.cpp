#include "runtime/device/device_under_test.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"
#include "runtime/device/load_cuda.h"

namespace mtl::test {

Device* gpu_under_test() {
  // Never destroyed: libraries that it opens later (cuDNN) end before a static object would, and
  // it would close what is theirs behind them, when all tests have passed.
  static Device* const device = []() -> Device* {
    const char* const wanted = std::getenv("MTL_TEST_DEVICE");
    if (wanted == nullptr || std::string_view(wanted) != "cuda") return nullptr;
    std::unique_ptr<Device> made = load_cuda().make_device(0);
    std::printf("device under test: %s\n", made->description().c_str());
    return made.release();
  }();
  return device;
}

namespace {

// Shared memory, kept for who needs as much again: CUDA takes long to give and take it, and the
// tests ask tens of thousands of times for some two thousand sizes. Of the very size, so that
// compute-sanitizer sees what is read behind it. Never destroyed: static tensors may be later.
struct SharedBlocks {
  std::map<uint8_t*, size_t> size_of;
  std::map<size_t, std::vector<uint8_t*>> unused;
};
SharedBlocks& shared_blocks() {
  static auto& blocks = *new SharedBlocks;
  return blocks;
}

TestMemory take_shared(size_t bytes) {
  SharedBlocks& blocks = shared_blocks();
  std::vector<uint8_t*>& unused = blocks.unused[bytes];
  if (unused.empty()) {
    unused.push_back(static_cast<uint8_t*>(load_cuda().allocate_shared(bytes)));
    blocks.size_of[unused.back()] = bytes;
  }
  uint8_t* const block = unused.back();
  unused.pop_back();
  return {block, [](uint8_t* used) {
            shared_blocks().unused[shared_blocks().size_of.at(used)].push_back(used);
          }};
}

}  // namespace

TestMemory make_test_memory(size_t bytes) {
  TestMemory memory(nullptr, nullptr);
  if (gpu_under_test() != nullptr) {
    memory = take_shared(bytes);
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
  auto found = passes.find(first_sequence);
  if (found == passes.end()) {
    TestMemory memory = make_test_memory(sizeof(DropoutPass));
    const DropoutPass pass = {0x123456789abcdef0u, first_sequence};
    std::memcpy(memory.get(), &pass, sizeof pass);
    found = passes.emplace(first_sequence, std::move(memory)).first;
  }
  return {.probability = probability,
          .layer = 3,
          .site = 4,
          .sequence_elements = sequence_elements,
          .pass = Tensor(found->second.get(), DType::u8, {sizeof(DropoutPass)})};
}

}  // namespace mtl::test
