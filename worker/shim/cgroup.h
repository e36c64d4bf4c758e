// A memory control group per rank, where we may make one (v2 or v1), for evidence: was the rank killed for want of
// memory?
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::worker {

struct MemoryEvidence {
  int64_t oom_kills = 0;     // processes of the group that the kernel killed for want of memory
  int64_t limit_bytes = -1;  // smallest limit of the group and those above it; -1: none is set
  int64_t peak_bytes = -1;   // -1: the kernel does not say
};

// Reads a group's files: memory.events, memory.max, memory.peak (v2) or memory.oom_control, memory.limit_in_bytes,
// memory.max_usage_in_bytes (v1); limits also of the folders above, up to `root`.
MemoryEvidence ReadMemoryEvidence(const std::string& directory, const std::string& root);

// "out of memory (cgroup limit 64.0 MiB, peak 64.0 MiB)", or empty when nothing says so.
std::string DescribeOutOfMemory(const MemoryEvidence& before, const MemoryEvidence& after);

// The group that this process is in, where memory is controlled. nullopt: none that can be seen.
struct MemoryGroup {
  std::string directory;
  std::string root;
};
std::optional<MemoryGroup> OwnMemoryGroup();

// A group below our own that is removed when dropped (nothing may be alive in it by then). Where none can be made,
// evidence is read from our own.
class RankCgroup {
 public:
  static std::string Name(const std::string& job_id, int64_t generation, int32_t rank);
  // What a killed shim left; nothing may be alive in it.
  static void RemoveLeftover(const std::string& name);

  explicit RankCgroup(const std::string& name);
  ~RankCgroup();
  RankCgroup(const RankCgroup&) = delete;
  RankCgroup& operator=(const RankCgroup&) = delete;

  void Add(pid_t pid);
  std::string DescribeOutOfMemory() const;  // since the start

 private:
  std::optional<MemoryGroup> group_;  // that is read
  bool own_ = false;                  // made by us
  MemoryEvidence before_;
};

}  // namespace tutti::worker
