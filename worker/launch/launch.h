// From an assignment to what a shim and its ranks are told. Pure but for StartShim.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/agent.pb.h"
#include "tutti/v1/rank.pb.h"
#include "tutti/v1/shim.pb.h"

namespace tutti::worker {

struct LaunchInputs {
  v1::StartJob start;
  std::string node;
  std::string run_directory;
  std::vector<v1::Slot> slots;                     // of this node
  std::map<std::string, std::string> environment;  // the agent's own
  std::string rank_program;
  std::string advertise_address;
  int64_t orphan_grace_ms = 600'000;
};

// The ranks of this node's share with their cores and environments. INVALID_ARGUMENT when the assignment has no share
// for `node`, names an unknown slot or one slot twice; FAILED_PRECONDITION when a rank wants more cores than its slot
// has.
StatusOr<v1::ShimConfig> MakeShimConfig(const LaunchInputs& inputs);

// What rank `config.ranks(index)` gets as its first frame.
v1::RankConfig MakeRankConfig(const v1::ShimConfig& config, int index);

// `environment` without what an outer launcher (torchrun, mpirun, srun) set for its own ranks; the removed names,
// sorted, are added to `*removed`. What users set for libraries (OMP_NUM_THREADS, ...) stays.
std::map<std::string, std::string> WithoutLauncherVariables(const std::map<std::string, std::string>& environment,
                                                            std::vector<std::string>* removed);

// Descriptor numbers of a shim.
inline constexpr int kShimLockDescriptor = 3;    // shim.lock
inline constexpr int kShimSocketDescriptor = 4;  // listening on shim.sock
inline constexpr int kShimFirstSlotLock = 5;     // locks of the slots, in the order of config.ranks

// Starts tutti-shim in a session of its own, after filling in each rank's lock_descriptors. `slot_locks[i]` are the
// locks of config.ranks(i); `run_lock` is shim.lock, `listener` listens on shim.sock (so that a connection never comes
// too early). The child inherits all; the caller's copies close with its objects. The caller waits for the pid when it
// ends.
StatusOr<pid_t> StartShim(const std::string& shim_program, v1::ShimConfig config, const UniqueFd& run_lock,
                          const UniqueFd& listener, const std::vector<std::vector<UniqueFd>>& slot_locks);

}  // namespace tutti::worker
