// Launches of kernels in PTX by the CUDA of tests/host_cuda, as nvcc's stubs ask for them, with
// fat binaries made by hand.
#if defined(MTL_TEST_CUDA_LIBRARY)

#include <cstdint>
#include <cuda_runtime_api.h>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "host_cuda/memory.h"
#include "ptx/made_fat_binary.h"

extern "C" {
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream);
}

namespace {

// to[thread] = to[thread] * times + add + the low byte of small, for threads of one block; `fixed`
// is static shared memory, `open` the dynamic one, of which nothing is used.
const char* const kText = R"(.version 9.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 open[];
.visible .entry combine(.param .u8 small, .param .u64 to, .param .align 4 .b8 both[8])
.maxntid 64
{
.shared .align 4 .b8 fixed[1024];
.reg .b16 %rs<4>;
.reg .b32 %r<12>;
.reg .b64 %rd<8>;
ld.param.u64 %rd1, [to];
cvta.to.global.u64 %rd2, %rd1;
ld.param.u32 %r1, [both];
ld.param.u32 %r2, [both+4];
ld.param.u8 %rs1, [small];
cvt.u32.u16 %r3, %rs1;
mov.u32 %r4, %tid.x;
mul.wide.u32 %rd3, %r4, 4;
add.s64 %rd4, %rd2, %rd3;
ld.global.u32 %r5, [%rd4];
mad.lo.s32 %r6, %r5, %r1, %r2;
add.s32 %r7, %r6, %r3;
mov.u32 %r8, fixed;
st.shared.u32 [%r8], %r7;
mov.u32 %r9, open;
st.global.u32 [%rd4], %r7;
ret;
}
)";

// As nvcc's objects do at the start of a program.
struct Program {
  static constexpr char kCombine = 0, kMissing = 0, kOther = 0;
  mtl::ptx::FatBinary fat, other;

  Program() {
    fat.add(1, kText, true);
    std::string newer = kText;
    newer.replace(newer.find("sm_90"), 5, "sm_100");
    other.add(1, newer);
    void** const binary = __cudaRegisterFatBinary(fat.registration());
    add(binary, kCombine, "combine");
    add(binary, kMissing, "missing");
    add(__cudaRegisterFatBinary(other.registration()), kOther, "combine");
  }
  static void add(void** binary, const char& function, const char* name) {
    __cudaRegisterFunction(binary, &function, nullptr, name, -1, nullptr, nullptr, nullptr, nullptr,
                           nullptr);
  }
  static const Program& one() {
    static const Program program;
    return program;
  }
};

struct Pair {
  uint32_t times, add;
};

struct Launcher {
  cudaStream_t stream = nullptr;
  uint32_t* memory = nullptr;

  Launcher() {
    Program::one();
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&memory), 64 * sizeof(uint32_t)) == cudaSuccess);
    for (uint32_t i = 0; i < 64; ++i) memory[i] = i;
  }
  ~Launcher() {
    cudaStreamSynchronize(stream);
    cudaFree(memory);
    cudaStreamDestroy(stream);
  }
  // As kernel<<<...>>>(...) and its stub do.
  cudaError_t operator()(dim3 grid, dim3 block, size_t shared_bytes = 0, Pair both = {10, 3},
                         const char& function = Program::kCombine) {
    cudaKernel_t kernel = nullptr;
    if (const cudaError_t error = __cudaGetKernel(&kernel, &function); error != cudaSuccess) {
      return error;
    }
    CHECK(__cudaPushCallConfiguration(grid, block, shared_bytes, stream) == 0);
    dim3 popped_grid, popped_block;
    size_t popped_bytes = 0;
    cudaStream_t popped_stream = nullptr;
    CHECK(__cudaPopCallConfiguration(&popped_grid, &popped_block, &popped_bytes, &popped_stream) ==
          cudaSuccess);
    uint8_t small = 200;
    void* arguments[] = {&small, &memory, &both};
    const cudaError_t error = __cudaLaunchKernel(kernel, popped_grid, popped_block, arguments,
                                                 popped_bytes, popped_stream);
    // They are the caller's: a launch has its own.
    small = 0;
    both = {};
    return error;
  }
};

}  // namespace

TEST_CASE(
    "cuda device: kernels in PTX are launched with their arguments, in their stream's order") {
  Launcher launch;
  CHECK(launch(1, 64) == cudaSuccess);
  CHECK(launch(1, 32, 0, {1, 1000}) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(launch.stream) == cudaSuccess);
  for (uint32_t i = 0; i < 64; ++i) {
    CHECK(launch.memory[i] == 10 * i + 203 + (i < 32 ? 1200 : 0));
  }
  // Recorded, they run when they are replayed.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  REQUIRE(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(launch(1, 64, 0, {0, 5}) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(launch.stream, &graph) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(launch.stream) == cudaSuccess);
  CHECK(launch.memory[63] == 10 * 63 + 203);
  REQUIRE(cudaGraphInstantiate(&made, graph, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(made, launch.stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(launch.stream) == cudaSuccess);
  CHECK(launch.memory[63] == 205);
  CHECK(cudaGraphExecDestroy(made) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("cuda device: what CUDA does not launch is refused") {
  Launcher launch;
  CHECK(launch(0, 32) == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(launch(1, 1025) == cudaErrorInvalidConfiguration);
  CHECK(launch(dim3(1, 65536), 32) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 65) == cudaErrorLaunchOutOfResources);  // than .maxntid
  // 48 KiB with the static ones, unless more is asked for; of 227.
  const void* const combine = &Program::kCombine;
  const auto allow = [&](int bytes) {
    return cudaFuncSetAttribute(combine, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  CHECK(launch(1, 64, 47 << 10) == cudaSuccess);
  CHECK(launch(1, 64, (47 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(allow((226 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(launch(1, 64, 50 << 10) == cudaErrorInvalidValue);
  CHECK(allow(226 << 10) == cudaSuccess);
  CHECK(launch(1, 64, 226 << 10) == cudaSuccess);
  CHECK(allow(1000) == cudaSuccess);
  CHECK(launch(1, 64, 1001) == cudaErrorInvalidValue);
  CHECK(launch(1, 64, 0, {}, Program::kMissing) == cudaErrorInvalidDeviceFunction);
  CHECK(launch(1, 64, 0, {}, Program::kOther) == cudaErrorNoKernelImageForDevice);
  static const char nobodys = 0;
  CHECK(launch(1, 64, 0, {}, nobodys) == cudaErrorInvalidDeviceFunction);
  while (cudaGetLastError() != cudaSuccess) continue;
}

TEST_CASE("cuda device: what it knows of addresses follows what is freed") {
  char* first = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&first), 1000) == cudaSuccess);
  CHECK(mtl::host_cuda::knows(first, 1000));
  CHECK(mtl::host_cuda::knows(first + 999, 1));
  CHECK_FALSE(mtl::host_cuda::knows(first, 1001));
  CHECK_FALSE(mtl::host_cuda::knows(first - 1, 1));
  // More pieces than it remembers.
  std::vector<char*> more(20);
  for (char*& piece : more) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&piece), 16) == cudaSuccess);
    CHECK(mtl::host_cuda::knows(piece, 16));
  }
  CHECK(mtl::host_cuda::knows(first, 1000));
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK_FALSE(mtl::host_cuda::knows(first, 1));
  for (char* const piece : more) {
    CHECK(cudaFree(piece) == cudaSuccess);
    CHECK_FALSE(mtl::host_cuda::knows(piece, 1));
  }
}

#endif
