#include "runtime/device/load_cuda.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/version.h"

namespace mtl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "libmtl_cuda.so";

[[noreturn]] void refuse(Diagnostic diagnostic) {
  throw Error(Exit::environment, std::move(diagnostic));
}

}  // namespace

std::vector<std::string> cuda_library_places() {
  if (const char* named = std::getenv("MTL_CUDA_LIBRARY"); named != nullptr && *named != '\0') {
    return {named};
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  return {program / kName, program.parent_path() / "lib" / "mtl" / kName};
}

bool has_cuda_library() {
  std::error_code ignored;
  for (const std::string& place : cuda_library_places()) {
    if (fs::exists(place, ignored)) return true;
  }
  return false;
}

Diagnostic library_refusal(const std::string& path, const std::string& loader_words) {
  if (loader_words.find("libcublasLt") != std::string::npos) {
    return {.code = "gpu.cublas",
            .what = path + " needs NVIDIA's cuBLASLt, which is not on this machine",
            .notes = {loader_words},
            .help =
                "install it (Debian and Ubuntu: NVIDIA's package libcublas-13-0; or the CUDA "
                "toolkit), or put its folder into LD_LIBRARY_PATH"};
  }
  return {.code = "gpu.library",
          .what = path + " cannot be loaded",
          .notes = {loader_words},
          .help = "install mtl again, both the program and the library"};
}

const CudaPlugin& load_cuda() {
  const std::vector<std::string> places = cuda_library_places();
  std::string path;
  std::error_code ignored;
  for (const std::string& place : places) {
    if (path.empty() && fs::exists(place, ignored)) path = place;
  }
  if (path.empty()) {
    refuse({.code = "gpu.library",
            .what = fmt::format("the GPU engine {} is not there (looked for {})", kName,
                                fmt::join(places, ", ")),
            .help = "install the package mtl-cuda, build mtl where the CUDA toolkit is (cmake "
                    "-DMTL_CUDA=ON), copy the library beside the program, or name it in "
                    "MTL_CUDA_LIBRARY"});
  }
  // Local: the library brings its own copies of mtl's functions, and they are not to mix.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* words = dlerror();
    refuse(library_refusal(path, words != nullptr ? words : "unknown"));
  }
  const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginEntry));
  const CudaPlugin* const plugin = entry != nullptr ? entry() : nullptr;
  const std::string theirs = plugin != nullptr ? plugin->version : "unknown";
  if (theirs != version()) {
    // A library of another version is not used any more: what its code left behind goes with it.
    dlclose(library);
    refuse({.code = "gpu.library_version",
            .what = fmt::format("{} is of mtl {}, and this is mtl {}", path, theirs, version()),
            .help = "install the program and the library of one version"});
  }
  return *plugin;
}

}  // namespace mtl
