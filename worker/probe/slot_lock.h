// Host-wide reservation of cores: one flock file per core, held through descriptors that shim and ranks inherit. Free
// means unlocked, whoever died; two agents side by side each get what is free, even if they cut their slots
// differently.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/cluster.pb.h"

namespace tutti::worker {

// /run/tutti where it can be made and written, else /tmp/tutti-devices-UID. PERMISSION_DENIED when that is someone
// else's.
StatusOr<std::string> DefaultLockDirectory();

class SlotLocks {
 public:
  // `slots` as CpuSlots made them: the n-th slot that uses a core has the n-th lock of that core.
  static StatusOr<SlotLocks> Create(std::string directory, const std::vector<v1::Slot>& slots);

  // All locks of a slot, or none. FAILED_PRECONDITION when one is still held after `patience` (another agent's probe
  // may hold it for an instant, a dying rank for a little longer).
  StatusOr<std::vector<UniqueFd>> Lock(const std::string& slot_id,
                                       Nanos patience = std::chrono::milliseconds(500)) const;

  bool IsLocked(const std::string& slot_id) const;

 private:
  struct Entry {
    std::string slot_id;
    std::vector<std::string> paths;
  };
  const Entry* Find(const std::string& slot_id) const;
  std::vector<Entry> entries_;
};

}  // namespace tutti::worker
