// Which engine a rank computes on: the CPU's, or a GPU's by libmtl_cuda.so.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/device/cuda_plugin.h"

namespace mtl {

struct DeviceRequest {
  int local_rank = 0;
  int world = 1;
  bool rank_threads = false;  // all ranks are threads of one process
};

// What there is to know before anything is loaded.
struct DeviceSigns {
  std::string wanted;             // MTL_DEVICE; "" = auto
  bool use_cpu = false;           // ACCELERATE_USE_CPU, as mtl launch --cpu sets it
  bool gpu_files = false;         // /dev/nvidiactl is there
  const char* visible = nullptr;  // CUDA_VISIBLE_DEVICES
  bool library = false;           // libmtl_cuda.so is there
};
DeviceSigns device_signs();

// What is wrong with an MTL_DEVICE: device.name (Exit::usage).
std::optional<Error> wrong_device_name(const std::string& wanted);

struct DeviceChoice {
  bool gpu = false;
  std::string why;  // not the other one; empty where somebody asked for this one
};
// `auto` takes the GPU where this machine has one and the library is there: a GPU that then does
// not work is an error, never a run on the CPU that nobody wanted. Throws Error (Exit::usage)
// device.name for an MTL_DEVICE that is none, (Exit::environment) gpu.ranks where ranks in threads
// ask for GPUs.
DeviceChoice choose_device(const DeviceSigns& signs, const DeviceRequest& request);

struct MadeDevice {
  std::unique_ptr<Device> device;
  std::string why;                   // as chosen
  const CudaPlugin* cuda = nullptr;  // null: the CPU
  int index = 0;                     // among the visible GPUs
  // "cpu: 2 threads, ... (no NVIDIA GPU here)"
  std::string description() const;
};
// In the thread that uses it. Throws what choose_device() and CudaPlugin::make_device do.
MadeDevice make_device(const DeviceRequest& request);

// What a rank computes on, in words that the ranks of a run compare: they have a transport in
// common only if all are alike. Throws Error (Exit::environment) gpu.ranks naming the first other
// one.
std::string kind_of(const MadeDevice& made);
void check_alike(const std::vector<std::string>& kinds, int rank, const MadeDevice& own);

}  // namespace mtl
