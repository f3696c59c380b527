// The CPU engine's threads, memory and name.
#include "runtime/device/cpu/cpu_device.h"

#include <cassert>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl_version.h>

#include "common/error.h"
#include "runtime/device/cpu/threads.h"

namespace mtl {

kernels::VectorKernels vector_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return kernels::avx512::table();
    case Isa::avx2:
      return kernels::avx2::table();
    case Isa::base:
      break;
  }
  return kernels::base::table();
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads, cpu_isa());
}

CpuDevice::CpuDevice(int threads, Isa isa)
    : threads_(use_threads(threads)), isa_(isa), kernels_(vector_kernels(isa)), attention_(isa) {}

CpuDevice::~CpuDevice() {
  for (const auto& [pointer, bytes] : allocations_) munmap(pointer, bytes);
}

std::string CpuDevice::description() const {
  return fmt::format("cpu: {} {}, {}, bf16 by {} (oneDNN {}.{}.{})", threads_,
                     threads_ == 1 ? "thread" : "threads", name_of(isa_),
                     has_amx_bf16() ? "AMX" : "f32 arithmetic", DNNL_VERSION_MAJOR,
                     DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
}

// Pages come zeroed from the kernel when they are first touched. Huge pages, where the machine
// allows them, save most of the address translation in passes over gigabytes.
void* CpuDevice::allocate(size_t bytes) {
  const size_t size = std::max<size_t>(bytes, 1);
  void* pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED) {
    throw Error(Exit::out_of_memory,
                {.code = "device.out_of_memory",
                 .what = fmt::format("the system gives no {} bytes of memory: {}", bytes,
                                     std::strerror(errno)),
                 .help = "use a smaller micro-batch or sequence, more ranks per model "
                         "(parallel.tp, parallel.pp), or raise the limit of address space "
                         "(ulimit -v)"});
  }
  madvise(pointer, size, MADV_HUGEPAGE);
  allocations_.emplace(pointer, size);
  return pointer;
}

void CpuDevice::free(void* pointer) {
  if (!pointer) return;
  const auto found = allocations_.find(pointer);
  assert(found != allocations_.end());
  munmap(found->first, found->second);
  allocations_.erase(found);
}

void CpuDevice::copy_from_host(Tensor destination, const void* source) {
  const auto* from = static_cast<const char*>(source);
  split(destination.bytes(), 1 << 20, [&](int64_t begin, int64_t end) {
    std::memcpy(destination.as<char>() + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void CpuDevice::copy_to_host(void* destination, Tensor source) {
  auto* to = static_cast<char*>(destination);
  split(source.bytes(), 1 << 20, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, source.as<const char>() + begin, static_cast<size_t>(end - begin));
  });
}

void CpuDevice::split(int64_t n, int64_t grain, const Work& work) const {
  const int64_t units = (n + grain - 1) / grain;
  const int64_t pieces = std::min<int64_t>(threads_, units);
  if (pieces <= 1) {
    if (n > 0) work(0, n);
    return;
  }
  // Always the whole team: gomp makes new threads when a team grows again after a smaller one.
#pragma omp parallel for schedule(static, 1) num_threads(threads_)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t begin = units * piece / pieces * grain;
    const int64_t end = std::min(n, units * (piece + 1) / pieces * grain);
    if (begin < end) work(begin, end);
  }
}

void CpuDevice::split_rows(int64_t rows, int64_t cols, const Work& work) const {
  split(rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, cols)), work);
}

float* CpuDevice::workspace(int64_t count) {
  if (static_cast<int64_t>(workspace_.size()) < count) {
    workspace_.resize(static_cast<size_t>(count));
  }
  return workspace_.data();
}

}  // namespace mtl
