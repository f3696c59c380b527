// A stand-in for NVIDIA's driver library, as much of it as cuDNN needs to make a plan for a GPU
// that is not there: modules load and have kernels, everything else fails. Nothing can run on it.
// Called libcuda.so.1, so that it is the driver of a process that has loaded it before.

namespace {
constexpr int kWorks = 0, kStub = 34;  // CUDA_SUCCESS, CUDA_ERROR_STUB_LIBRARY
}

extern "C" {

#define MTL_FAKE_MAKES(name)                 \
  int name(void** made) {                    \
    *made = reinterpret_cast<void*>(0x1000); \
    return kWorks;                           \
  }
MTL_FAKE_MAKES(cuLibraryLoadData)
MTL_FAKE_MAKES(cuLibraryGetKernel)
MTL_FAKE_MAKES(cuKernelGetFunction)
MTL_FAKE_MAKES(cuModuleLoadData)
MTL_FAKE_MAKES(cuModuleLoadDataEx)
MTL_FAKE_MAKES(cuModuleGetFunction)

#define MTL_FAKE_WORKS(name) \
  int name() {               \
    return kWorks;           \
  }
MTL_FAKE_WORKS(cuFuncSetAttribute)
MTL_FAKE_WORKS(cuKernelSetAttribute)
MTL_FAKE_WORKS(cuLibraryUnload)
MTL_FAKE_WORKS(cuModuleUnload)

// What cuDNN looks for when it opens the library.
#define MTL_FAKE_FAILS(name) \
  int name() {               \
    return kStub;            \
  }
MTL_FAKE_FAILS(cuInit)
MTL_FAKE_FAILS(cuDriverGetVersion)
MTL_FAKE_FAILS(cuGetErrorName)
MTL_FAKE_FAILS(cuGetErrorString)
MTL_FAKE_FAILS(cuDeviceGet)
MTL_FAKE_FAILS(cuDeviceGetAttribute)
MTL_FAKE_FAILS(cuDeviceGetCount)
MTL_FAKE_FAILS(cuDevicePrimaryCtxRetain)
MTL_FAKE_FAILS(cuDevicePrimaryCtxRelease)
MTL_FAKE_FAILS(cuDevicePrimaryCtxReset)
MTL_FAKE_FAILS(cuCtxGetCurrent)
MTL_FAKE_FAILS(cuCtxGetDevice)
MTL_FAKE_FAILS(cuCtxGetLimit)
MTL_FAKE_FAILS(cuCtxPushCurrent)
MTL_FAKE_FAILS(cuCtxPopCurrent)
MTL_FAKE_FAILS(cuFuncGetAttribute)
MTL_FAKE_FAILS(cuKernelGetAttribute)
MTL_FAKE_FAILS(cuLaunchKernel)
MTL_FAKE_FAILS(cuLaunchKernelEx)
MTL_FAKE_FAILS(cuLaunchCooperativeKernel)
MTL_FAKE_FAILS(cuLibraryLoadFromFile)
MTL_FAKE_FAILS(cuLinkCreate)
MTL_FAKE_FAILS(cuLinkCreate_v2)
MTL_FAKE_FAILS(cuLinkAddData)
MTL_FAKE_FAILS(cuLinkAddData_v2)
MTL_FAKE_FAILS(cuLinkAddFile_v2)
MTL_FAKE_FAILS(cuLinkComplete)
MTL_FAKE_FAILS(cuLinkDestroy)
MTL_FAKE_FAILS(cuMemcpyDtoH_v2)
MTL_FAKE_FAILS(cuModuleLoadFatBinary)
MTL_FAKE_FAILS(cuModuleGetGlobal_v2)
MTL_FAKE_FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
MTL_FAKE_FAILS(cuOccupancyMaxPotentialClusterSize)
MTL_FAKE_FAILS(cuStreamGetCtx)
MTL_FAKE_FAILS(cuStreamSynchronize)
MTL_FAKE_FAILS(cuTensorMapEncodeTiled)

}  // extern "C"
