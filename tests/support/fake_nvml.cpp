// A stand-in for NVIDIA's management library, called libnvidia-ml.so.1: one GPU, the one that
// fake_cuda.cpp or tests/host_cuda has, at work and too hot.
#include <cstring>

extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  *gpu = nullptr;
  const bool known = std::strcmp(uuid, "GPU-0") == 0 ||
                     std::strcmp(uuid, "GPU-00000000-0000-0000-0000-000000000001") == 0;
  return known ? 0 : 6;  // NVML_ERROR_NOT_FOUND
}
struct Memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {.total = 1ULL << 30, .free = 1ULL << 29, .used = 1ULL << 29};
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatt) {
  *milliwatt = 690'000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatt) {
  *milliwatt = 700'000;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1005;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) {
  *celsius = 91;
  return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* reasons) {
  *reasons = 0x44;  // power limit, heat (hardware)
  return 0;
}

}  // extern "C"
