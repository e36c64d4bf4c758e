#include "worker/launch/launch.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

#include "base/files.h"
#include "base/framing.h"
#include "engine/comm/shm_region.h"
#include "worker/launch/layout.h"

namespace tutti::worker {
namespace {

// Set by torchrun, mpirun, srun and PMI for the processes that they start themselves.
constexpr std::array kLauncherVariables = {
    "RANK",      "WORLD_SIZE", "LOCAL_RANK",      "LOCAL_WORLD_SIZE", "GROUP_RANK",      "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_NAME",  "ROLE_WORLD_SIZE", "NODE_RANK",        "MASTER_ADDR",     "MASTER_PORT",
    "PMI_RANK",  "PMI_SIZE",   "PMI_FD",          "MPI_LOCALRANKID",  "MPI_LOCALNRANKS",
};
constexpr std::array kLauncherPrefixes = {"SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_", "PET_"};

// Room for a rank's gradients that peers read in place. Pages that are never touched cost nothing, so it is generous;
// what does not fit is staged.
constexpr int64_t kSharedWindowBytes = int64_t{1} << 30;

bool IsLauncherVariable(const std::string& name) {
  return std::any_of(kLauncherVariables.begin(), kLauncherVariables.end(), [&](const char* v) { return name == v; }) ||
         std::any_of(kLauncherPrefixes.begin(), kLauncherPrefixes.end(),
                     [&](const char* p) { return name.rfind(p, 0) == 0; });
}

const v1::NodeShare* FindShare(const v1::Assignment& assignment, const std::string& node) {
  for (const v1::NodeShare& share : assignment.nodes()) {
    if (share.node() == node) return &share;
  }
  return nullptr;
}

int32_t WorldSize(const v1::Assignment& assignment) {
  int32_t world = 0;
  for (const v1::NodeShare& share : assignment.nodes()) world += share.slots_size();
  return world;
}

// True when some core is used by more than one of the ranks: spinning at barriers would then slow everybody down.
bool CoresAreShared(const v1::ShimConfig& config) {
  std::set<int32_t> seen;
  for (const v1::RankLaunch& rank : config.ranks()) {
    for (const int32_t core : rank.cores()) {
      if (!seen.insert(core).second) return true;
    }
  }
  return false;
}

StatusOr<std::vector<int32_t>> CoresOf(const LaunchInputs& inputs, const std::string& slot_id, int32_t rank) {
  const auto slot =
      std::find_if(inputs.slots.begin(), inputs.slots.end(), [&](const v1::Slot& s) { return s.id() == slot_id; });
  if (slot == inputs.slots.end())
    return InvalidArgument("node {} has no slot '{}' for rank {}", inputs.node, slot_id, rank);
  std::vector<int32_t> cores(slot->cores().begin(), slot->cores().end());
  const auto wanted = static_cast<size_t>(inputs.start.spec().resources().cores_per_rank());
  if (wanted > cores.size()) {
    return FailedPrecondition(
        "rank {} wants {} cores, slot {} of node {} has {}: start tutti-worker with --cores-per-slot {}", rank, wanted,
        slot_id, inputs.node, cores.size(), wanted);
  }
  if (wanted > 0) cores.resize(wanted);
  return cores;
}

std::map<std::string, std::string> RankEnvironment(const std::map<std::string, std::string>& base,
                                                   const v1::RankLaunch& rank, int local_rank, int local_world,
                                                   int world, bool shared_cores) {
  std::map<std::string, std::string> environment = base;
  environment["RANK"] = std::to_string(rank.rank());
  environment["LOCAL_RANK"] = std::to_string(local_rank);
  environment["WORLD_SIZE"] = std::to_string(world);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(local_world);
  // try_emplace: what the user set stays.
  environment.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, rank.cores_size())));
  if (shared_cores) environment.try_emplace("OMP_WAIT_POLICY", "PASSIVE");
  return environment;
}

}  // namespace

std::map<std::string, std::string> WithoutLauncherVariables(const std::map<std::string, std::string>& environment,
                                                            std::vector<std::string>* removed) {
  std::map<std::string, std::string> kept;
  for (const auto& [name, value] : environment) {
    if (IsLauncherVariable(name)) {
      removed->push_back(name);
    } else {
      kept.emplace(name, value);
    }
  }
  return kept;
}

StatusOr<v1::ShimConfig> MakeShimConfig(const LaunchInputs& inputs) {
  const v1::Assignment& assignment = inputs.start.assignment();
  TUTTI_RETURN_IF_ERROR(CheckJobId(assignment.job_id()));
  if (assignment.generation() < 1) return InvalidArgument("generation {} is not at least 1", assignment.generation());
  const v1::NodeShare* share = FindShare(assignment, inputs.node);
  if (share == nullptr || share->slots_size() == 0) {
    return InvalidArgument("the assignment of {} has no rank for node {}", ToString(KeyOf(assignment)), inputs.node);
  }
  v1::ShimConfig config;
  config.set_job_id(assignment.job_id());
  config.set_directory(inputs.run_directory);
  *config.mutable_assignment() = assignment;
  config.set_node(inputs.node);
  *config.mutable_spec() = inputs.start.spec();
  config.set_uid(inputs.start.uid());
  config.set_orphan_grace_ms(inputs.orphan_grace_ms);
  config.set_rank_program(inputs.rank_program);
  config.set_advertise_address(inputs.advertise_address);
  config.set_attempt(assignment.generation());

  std::set<std::string> used;
  for (int i = 0; i < share->slots_size(); ++i) {
    v1::RankLaunch* rank = config.add_ranks();
    rank->set_rank(share->first_rank() + i);
    if (!used.insert(share->slots(i)).second)
      return InvalidArgument("slot '{}' is assigned to two ranks", share->slots(i));
    TUTTI_ASSIGN_OR_RETURN(const std::vector<int32_t> cores, CoresOf(inputs, share->slots(i), rank->rank()));
    rank->mutable_cores()->Assign(cores.begin(), cores.end());
  }
  const int32_t world = WorldSize(assignment);
  const bool one_node = share->slots_size() == world;
  config.set_comm(one_node ? v1::COMM_BACKEND_SHM : v1::COMM_BACKEND_GLOO);
  if (one_node) {
    config.set_shared_window_bytes(kSharedWindowBytes);
    config.set_shared_memory_bytes(ShmRegionBytes(world, kSharedWindowBytes));
  }

  std::vector<std::string> removed;
  const auto base = WithoutLauncherVariables(inputs.environment, &removed);
  config.mutable_overridden_variables()->Assign(removed.begin(), removed.end());
  const bool shared_cores = CoresAreShared(config);
  for (int i = 0; i < config.ranks_size(); ++i) {
    v1::RankLaunch* rank = config.mutable_ranks(i);
    const auto environment = RankEnvironment(base, *rank, i, config.ranks_size(), world, shared_cores);
    rank->mutable_environment()->insert(environment.begin(), environment.end());
  }
  return config;
}

v1::RankConfig MakeRankConfig(const v1::ShimConfig& config, int index) {
  const v1::RankLaunch& launch = config.ranks(index);
  const v1::Assignment& assignment = config.assignment();
  v1::RankConfig rank;
  rank.set_job_id(config.job_id());
  *rank.mutable_spec() = config.spec();
  rank.set_generation(assignment.generation());
  rank.set_rank(launch.rank());
  rank.set_world_size(WorldSize(assignment));
  rank.set_local_rank(index);
  rank.set_local_world_size(config.ranks_size());
  *rank.mutable_cores() = launch.cores();
  rank.set_comm(config.comm());
  rank.set_shared_memory_bytes(config.shared_memory_bytes());
  rank.set_shared_window_bytes(config.shared_window_bytes());
  rank.set_advertise_address(config.advertise_address());
  rank.set_base_step(assignment.base_step());
  *rank.mutable_bases() = assignment.bases();
  rank.set_uid(config.uid());
  rank.set_attempt(config.attempt());
  return rank;
}

StatusOr<pid_t> StartShim(const std::string& shim_program, v1::ShimConfig config, const UniqueFd& run_lock,
                          const UniqueFd& listener, const std::vector<std::vector<UniqueFd>>& slot_locks) {
  SpawnOptions options;
  options.argv = {shim_program, config.job_id()};  // the id is for people who read ps
  options.environment = CurrentEnvironment();
  options.new_session = true;
  options.descriptors = {{kShimLockDescriptor, run_lock.get()}, {kShimSocketDescriptor, listener.get()}};
  int next = kShimFirstSlotLock;
  for (size_t i = 0; i < slot_locks.size(); ++i) {
    for (const UniqueFd& lock : slot_locks[i]) {
      options.descriptors[next] = lock.get();
      config.mutable_ranks(static_cast<int>(i))->add_lock_descriptors(next++);
    }
  }
  // A memory file and no pipe: nobody has to write while the shim reads.
  const UniqueFd input(::memfd_create("tutti-shim-config", MFD_CLOEXEC));
  if (!input.valid()) return ErrnoStatus(errno, "make a memory file");
  std::string frame;
  AppendFrame(config.SerializeAsString(), &frame);
  TUTTI_RETURN_IF_ERROR(WriteAll(input.get(), frame));
  if (::lseek(input.get(), 0, SEEK_SET) != 0) return ErrnoStatus(errno, "rewind a memory file");
  const std::string log_path = JoinPath(config.directory(), kShimLogFile);
  const UniqueFd log(::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoStatus(errno, fmt::format("open {}", log_path));
  options.descriptors[0] = input.get();
  options.descriptors[1] = log.get();
  options.descriptors[2] = log.get();
  return Spawn(options);
}

}  // namespace tutti::worker
