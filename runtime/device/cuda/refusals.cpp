#include "runtime/device/cuda/refusals.h"

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <regex>
#include <unistd.h>

#include <fmt/format.h>

namespace mtl::cuda {

namespace {

// The driver branch that a major version of CUDA needs at least (NVIDIA's table "CUDA Toolkit and
// Minimum Required Driver Version for CUDA Minor Version Compatibility").
std::string needed_driver(int runtime) {
  switch (runtime / 1000) {
    case 13:
      return "580";
    case 12:
      return "525";
    default:
      return "a newer one";
  }
}

std::string size_words(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30);
  if (gib >= 1) return fmt::format("{:.1f} GiB", gib);
  return fmt::format("{:.1f} MiB", gib * 1024);
}

const char* const kUseCpu = "; MTL_DEVICE=cpu (mtl launch --cpu) runs on the CPU";
const char* const kIntoContainer =
    "start the container with the GPUs: docker run --gpus all (NVIDIA container toolkit), podman "
    "run --device nvidia.com/gpu=all, apptainer --nv, Kubernetes: a limit of nvidia.com/gpu";

Diagnostic without_driver(int runtime, const DriverSigns& signs) {
  Diagnostic refusal{.code = "gpu.no_driver", .what = {}};
  if (!signs.kernel_module.empty()) {
    refusal.what =
        fmt::format("this machine has NVIDIA's driver {}, but its library libcuda.so.1 is not here",
                    signs.kernel_module);
    refusal.help = signs.in_container ? std::string(kIntoContainer)
                                      : "install the driver's libraries of that version (Debian: "
                                        "libcuda1), or run ldconfig";
  } else {
    refusal.what = "there is no NVIDIA driver";
    refusal.help = signs.in_container ? std::string(kIntoContainer)
                                      : fmt::format("install NVIDIA's driver, {} or newer",
                                                    needed_driver(runtime));
  }
  refusal.help += kUseCpu;
  return refusal;
}

Diagnostic no_device(const DriverSigns& signs) {
  Diagnostic refusal{.code = "gpu.no_device", .what = "CUDA sees no GPU"};
  if (signs.visible != nullptr) {
    refusal.what += fmt::format(": CUDA_VISIBLE_DEVICES is '{}'", signs.visible);
    refusal.help = "unset CUDA_VISIBLE_DEVICES, or name GPUs that nvidia-smi -L lists";
  } else if (!signs.control_file) {
    refusal.what += ": /dev/nvidiactl is not there";
    refusal.help = signs.in_container ? std::string(kIntoContainer)
                                      : "load the driver: nvidia-smi says whether it runs, "
                                        "nvidia-modprobe makes the files";
  } else if (!signs.may_open) {
    refusal.what += ": this user may not open /dev/nvidiactl";
    refusal.help =
        "give the user access (on many machines: the group video or render), or the "
        "container the devices";
  } else {
    refusal.help = "see what nvidia-smi says";
  }
  refusal.help += kUseCpu;
  return refusal;
}

}  // namespace

std::string version_words(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

DriverSigns driver_signs() {
  DriverSigns signs;
  std::ifstream in("/proc/driver/nvidia/version");
  std::string line;
  std::smatch found;
  if (std::getline(in, line) && std::regex_search(line, found, std::regex(R"((\d+\.\d+[.\d]*))"))) {
    signs.kernel_module = found[1];
  }
  signs.control_file = access("/dev/nvidiactl", F_OK) == 0;
  signs.may_open = access("/dev/nvidiactl", R_OK | W_OK) == 0;
  for (const char* sign : {"/.dockerenv", "/run/.containerenv", "/.singularity.d"}) {
    signs.in_container = signs.in_container || access(sign, F_OK) == 0;
  }
  signs.in_container = signs.in_container || std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  signs.visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return signs;
}

Diagnostic start_refusal(int error, const std::string& words, int driver, int runtime,
                         const DriverSigns& signs) {
  if (driver == 0 || error == kStubLibrary) {
    Diagnostic refusal = without_driver(runtime, signs);
    if (error == kStubLibrary) {
      refusal.notes = {
          "the libcuda.so.1 that was found is the toolkit's stub: take its folder out "
          "of LD_LIBRARY_PATH"};
    }
    return refusal;
  }
  if (error == kInsufficientDriver || driver / 1000 < runtime / 1000) {
    return {
        .code = "gpu.driver_old",
        .what = fmt::format("NVIDIA's driver {}supports CUDA {}, and mtl is built with CUDA {}",
                            signs.kernel_module.empty() ? "" : signs.kernel_module + " ",
                            version_words(driver), version_words(runtime)),
        .help = fmt::format("update the driver to {} or newer, or build mtl with the toolkit of "
                            "CUDA {}{}",
                            needed_driver(runtime), driver / 1000, kUseCpu)};
  }
  if (error == kNoDevice) return no_device(signs);
  std::string help = "see what nvidia-smi says";
  switch (error) {
    case kInitialization:
    case kOperatingSystem:
      help = signs.control_file && !signs.may_open
                 ? "this user may not open /dev/nvidiactl: give access (the group video or render)"
                 : "see what nvidia-smi and dmesg say; in a container, that all of /dev/nvidia* is "
                   "there, /dev/nvidia-uvm too";
      break;
    case kDevicesUnavailable:
      help =
          "another process has the GPU for itself: nvidia-smi names it; or its compute mode "
          "forbids sharing (nvidia-smi -c DEFAULT)";
      break;
    case kSystemNotReady:
      help =
          "machines with NVSwitch need the service nvidia-fabricmanager of the driver's version "
          "running";
      break;
    case kDriverMismatch:
      help =
          "the driver's libraries are of another version than its kernel module: reboot after "
          "the update, or reload the module";
      break;
    case kCompatNotSupported:
      help =
          "the forward compatibility package of CUDA does not work with this GPU: take its "
          "folder out of LD_LIBRARY_PATH and update the driver";
      break;
    default:
      break;
  }
  return {.code = "gpu.driver",
          .what = "CUDA does not start: " + words,
          .notes = {fmt::format("driver {} for CUDA {}, mtl built with CUDA {}",
                                signs.kernel_module.empty() ? "unknown" : signs.kernel_module,
                                version_words(driver), version_words(runtime))},
          .help = help + kUseCpu};
}

Diagnostic index_refusal(int index, int count, bool mig, const char* visible) {
  Diagnostic refusal{.code = "gpu.index",
                     .what = fmt::format("local rank {} has no GPU: {} {} visible to it", index,
                                         count, count == 1 ? "is" : "are")};
  if (visible != nullptr) {
    refusal.notes.push_back(fmt::format("CUDA_VISIBLE_DEVICES is '{}'", visible));
  }
  if (mig) {
    refusal.notes.emplace_back(
        "what is visible is an instance of a divided GPU (MIG), of which CUDA shows a process one");
    refusal.help =
        "start one rank, or give each rank an instance of its own: CUDA_VISIBLE_DEVICES=MIG-... "
        "and "
        "LOCAL_RANK=0 (nvidia-smi -L names them)";
  } else {
    refusal.help = fmt::format(
        "start {} on this machine (--nproc_per_node {}), or make more GPUs "
        "visible to it (--gpu_ids, CUDA_VISIBLE_DEVICES)",
        count == 1 ? "one rank" : fmt::format("{} ranks", count), count);
  }
  return refusal;
}

std::string capability_refusal(const std::string& name, int major, int minor,
                               std::span<const int> built) {
  const int own = 10 * major + minor;
  std::string all;
  for (const int one : built) {
    // Code runs on devices of the same major capability and the same or a later minor one.
    if (one <= own && (one / 10 == major || one == built.back())) return {};
    all += fmt::format("{}{}.{}", all.empty() ? "" : ", ", one / 10, one % 10);
  }
  return fmt::format(
      "{} has compute capability {}.{}; this libmtl_cuda.so is for {} and newer than "
      "the last",
      name, major, minor, all);
}

bool is_mig(const std::string& name) {
  return name.find(" MIG ") != std::string::npos;
}

std::string uuid_words(const char (&bytes)[16], bool mig) {
  std::string words = mig ? "MIG" : "GPU";
  for (size_t i = 0; i < sizeof bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) words += '-';
    words += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return words;
}

Diagnostic memory_refusal(const MemoryFacts& facts) {
  Diagnostic refusal{
      .code = "device.out_of_memory",
      .what = fmt::format("{} gives no {}: {} of {} are free", facts.name, size_words(facts.asked),
                          size_words(facts.free), size_words(facts.total)),
      .help =
          "use a smaller micro-batch or sequence, more recompute, more ranks per model "
          "(parallel.tp, parallel.pp) or optimizer.offload=cpu: mtl plan shows what fits"};
  if (facts.mig) {
    refusal.notes.emplace_back(
        "it is an instance of a divided GPU (MIG): a larger instance, or the whole GPU, has more");
  }
  // What the display and the like take is less.
  if (facts.total - facts.free > facts.total / 10 && facts.asked <= facts.total) {
    refusal.notes.emplace_back("others use memory of this GPU too: nvidia-smi names them");
  }
  return refusal;
}

Diagnostic pinned_refusal(int64_t bytes) {
  return {.code = "device.pinned_memory",
          .what = fmt::format("the host gives no {} of pinned memory", size_words(bytes)),
          .help =
              "give the job or container that much more memory, divide the state over more "
              "ranks (parallel.zero), or use optimizer.offload=none"};
}

Diagnostic failure(int error, const std::string& words, const std::string& what) {
  Diagnostic found{.code = "device.cuda",
                   .what = fmt::format("{}: CUDA says: {} ({})", what, words, error)};
  switch (error) {
    case kNoKernelImage:
    case kUnsupportedPtx:
      found.help =
          "this GPU is newer than mtl's kernels and the driver cannot translate them: "
          "update the driver, or build mtl with a newer CUDA toolkit";
      break;
    case kEccUncorrectable:
      found.help =
          "the GPU's memory is faulty: take the machine out (nvidia-smi -q -d ECC, dmesg), "
          "go on with another one from the last checkpoint";
      break;
    default:
      found.help =
          "see dmesg for \"NVRM: Xid\": a fault of the hardware or its driver goes away on "
          "another GPU; one that comes again there is a defect of mtl, please report it";
  }
  return found;
}

}  // namespace mtl::cuda
