#include "worker/probe/nvml.h"

#include <dlfcn.h>

#include <memory>

namespace tutti::worker {
namespace {

// NVML's C interface (developer.nvidia.com, "NVML API Reference"): 0 is NVML_SUCCESS, handles are opaque pointers.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};

struct Nvml {
  int (*init)();
  int (*shutdown)();
  int (*device_count)(unsigned* count);
  int (*device_by_index)(unsigned index, Device* device);
  int (*device_uuid)(Device device, char* out, unsigned length);
  int (*device_name)(Device device, char* out, unsigned length);
  int (*device_memory)(Device device, Memory* out);
};

template <typename Function>
bool Find(void* library, const char* name, Function** out) {
  *out = reinterpret_cast<Function*>(::dlsym(library, name));
  return *out != nullptr;
}

}  // namespace

std::vector<Gpu> ListGpus() {
  std::vector<Gpu> gpus;
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  const std::unique_ptr<void, Close> library(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return gpus;
  Nvml nvml{};
  void* const l = library.get();
  const bool complete = Find(l, "nvmlInit_v2", &nvml.init) && Find(l, "nvmlShutdown", &nvml.shutdown) &&
                        Find(l, "nvmlDeviceGetCount_v2", &nvml.device_count) &&
                        Find(l, "nvmlDeviceGetHandleByIndex_v2", &nvml.device_by_index) &&
                        Find(l, "nvmlDeviceGetUUID", &nvml.device_uuid) &&
                        Find(l, "nvmlDeviceGetName", &nvml.device_name) &&
                        Find(l, "nvmlDeviceGetMemoryInfo", &nvml.device_memory);
  if (!complete || nvml.init() != 0) return gpus;
  unsigned count = 0;
  if (nvml.device_count(&count) != 0) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    char uuid[96] = {}, name[96] = {};
    Memory memory{};
    if (nvml.device_by_index(i, &device) != 0 || nvml.device_uuid(device, uuid, sizeof uuid) != 0) continue;
    if (nvml.device_name(device, name, sizeof name) != 0) name[0] = '\0';
    if (nvml.device_memory(device, &memory) != 0) memory = {};
    gpus.push_back({uuid, name, static_cast<int64_t>(memory.total)});
  }
  nvml.shutdown();
  return gpus;
}

}  // namespace tutti::worker
