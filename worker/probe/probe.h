// What this machine has: processor, memory, cores that we may use, GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tutti/v1/cluster.pb.h"

namespace tutti::worker {

struct Gpu {
  std::string uuid;  // "GPU-5d3c…"
  std::string name;
  int64_t memory_bytes = 0;
};

struct HostInventory {
  std::vector<int> cores;       // affinity, cut down to what the cgroup's CPU quota pays for
  std::string processor;        // model name
  std::string instruction_set;  // "avx2", "avx512", "amx", or "baseline"
  int64_t memory_bytes = 0;     // the smaller of the machine's and the cgroup's limit
  std::string boot_id;
  std::vector<Gpu> gpus;  // through NVML where its library is installed; GPUs are listed, no slot uses them yet
};
HostInventory ProbeHost();

// The pieces, for tests: `cpuinfo` as /proc/cpuinfo has it.
std::string ProcessorName(const std::string& cpuinfo);
std::string InstructionSet(const std::string& cpuinfo);
// Whole cores that a cgroup v2 "cpu.max" ("200000 100000", "max 100000") pays for, at least 1; -1: no limit.
int CoresOfQuota(const std::string& cpu_max);

struct SlotOptions {
  int cores_per_slot = 0;  // 0: one, or with `slots` the cores divided evenly
  int slots = 0;           // 0: as many as the cores give; more than that share cores
};
// "cpu0", "cpu1", ...: each with neighbouring cores and an equal part of the memory. INVALID_ARGUMENT when there are
// fewer cores than one slot wants.
StatusOr<std::vector<v1::Slot>> CpuSlots(const HostInventory& host, const SlotOptions& options);

}  // namespace tutti::worker
