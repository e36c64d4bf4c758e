#include "worker/probe/probe.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/files.h"
#include "base/process.h"
#include "worker/probe/nvml.h"

namespace tutti::worker {
namespace {

std::string ReadOrEmpty(const std::string& path) {
  auto content = ReadFile(path, 1 << 22);
  return content.ok() ? *std::move(content) : std::string();
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// Value of the first "key<tabs>: value" line.
std::string CpuInfoField(const std::string& cpuinfo, const std::string& key) {
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (name == key) return colon + 2 <= line.size() ? line.substr(colon + 2) : "";
  }
  return "";
}

// Where the controller's files of our own cgroup are; v2 first. Empty when there is none.
std::vector<std::string> CgroupFolders(const std::string& controller) {
  std::vector<std::string> folders;
  std::istringstream lines(ReadOrEmpty("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (names.empty()) folders.push_back("/sys/fs/cgroup" + path);
    if (("," + names + ",").find("," + controller + ",") != std::string::npos) {
      folders.push_back("/sys/fs/cgroup/" + controller + path);
      folders.push_back("/sys/fs/cgroup/" + controller);  // inside a container the own group is mounted as the root
    }
  }
  folders.push_back("/sys/fs/cgroup");
  return folders;
}

int64_t ParseInt(const std::string& text, int64_t otherwise) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  return end == text.c_str() ? otherwise : value;
}

int64_t MemoryLimit() {
  int64_t limit = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  for (const std::string& folder : CgroupFolders("memory")) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      limit = std::min(limit, ParseInt(ReadOrEmpty(folder + file), limit));  // "max" is no number: no limit
    }
  }
  return limit;
}

int QuotaCores() {
  int cores = -1;
  const auto take = [&](int value) {
    if (value > 0) cores = cores < 0 ? value : std::min(cores, value);
  };
  for (const std::string& folder : CgroupFolders("cpu")) {
    take(CoresOfQuota(ReadOrEmpty(folder + "/cpu.max")));
    const std::string quota = FirstLine(ReadOrEmpty(folder + "/cpu.cfs_quota_us"));
    if (!quota.empty() && quota[0] != '-') take(CoresOfQuota(quota + " " + ReadOrEmpty(folder + "/cpu.cfs_period_us")));
  }
  return cores;
}

}  // namespace

std::string ProcessorName(const std::string& cpuinfo) {
  const std::string name = CpuInfoField(cpuinfo, "model name");
  return name.empty() ? "unknown processor" : name;
}

std::string InstructionSet(const std::string& cpuinfo) {
  const std::string flags = " " + CpuInfoField(cpuinfo, "flags") + " ";
  const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
  if (has("amx_tile") && has("amx_bf16")) return "amx";
  if (has("avx512f") && has("avx512bw") && has("avx512vl")) return "avx512";
  if (has("avx2") && has("fma")) return "avx2";
  return "baseline";
}

int CoresOfQuota(const std::string& cpu_max) {
  std::istringstream in(cpu_max);
  int64_t quota = 0, period = 0;
  if (!(in >> quota >> period) || quota <= 0 || period <= 0) return -1;
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, std::numeric_limits<int>::max()));
}

HostInventory ProbeHost() {
  HostInventory host;
  host.cores = AllowedCores();
  if (const int quota = QuotaCores(); quota > 0 && static_cast<size_t>(quota) < host.cores.size()) {
    host.cores.resize(static_cast<size_t>(quota));
  }
  const std::string cpuinfo = ReadOrEmpty("/proc/cpuinfo");
  host.processor = ProcessorName(cpuinfo);
  host.instruction_set = InstructionSet(cpuinfo);
  host.memory_bytes = MemoryLimit();
  host.boot_id = FirstLine(ReadOrEmpty("/proc/sys/kernel/random/boot_id"));
  host.gpus = ListGpus();
  return host;
}

StatusOr<std::vector<v1::Slot>> CpuSlots(const HostInventory& host, const SlotOptions& options) {
  const int cores = static_cast<int>(host.cores.size());
  if (cores == 0) return FailedPrecondition("this process may use no core");
  if (options.slots < 0 || options.slots > 4096)
    return InvalidArgument("{} slots: from 1 to 4096 are possible", options.slots);
  int per_slot = options.cores_per_slot;
  if (per_slot == 0) per_slot = options.slots > 0 ? std::max(1, cores / options.slots) : 1;
  if (per_slot < 1 || per_slot > cores) {
    return InvalidArgument("{} cores per slot: this process may use {} cores", per_slot, cores);
  }
  const int sets = cores / per_slot;
  const int count = options.slots > 0 ? options.slots : sets;
  std::vector<v1::Slot> slots(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    v1::Slot& slot = slots[static_cast<size_t>(i)];
    slot.set_id(fmt::format("cpu{}", i));
    slot.set_device(v1::DEVICE_KIND_CPU);
    for (int c = 0; c < per_slot; ++c) slot.add_cores(host.cores[static_cast<size_t>(i % sets * per_slot + c)]);
    slot.set_memory_bytes(host.memory_bytes / count);
  }
  return slots;
}

}  // namespace tutti::worker
