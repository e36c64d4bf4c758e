// Checkpoints on disk. One folder per run directory, shared by all ranks (and by the jobs that resume there):
//
//   runs/cnn/step-1407.g2.5d1f09ac/     step, generation, XXH3 tag of the job id: no other writer ever has this name
//     rank-0.safetensors  rank-0.done   each rank's tensors and, once they are durable, its receipt
//     ledger.bin                        v1.StepDigests of all steps so far
//     manifest.json                     v1.Manifest: its existence is the commit
//   runs/cnn/step-1407 -> step-1407.g2.5d1f09ac       for people; not trusted
//   runs/cnn/claim.g2.5d1f09ac          generation 2 of this job has started: older ones delete and commit no more
//   runs/cnn/base.g2.5d1f09ac           the step that it started from (v1.GenerationBase)
//
// Nothing that was committed is overwritten. The fence at reading keeps a late zombie's history out: a manifest (g, s)
// counts only if s <= the base step of every later generation of its job. Each generation writes its own base here before
// it trains, and into its manifests: the directory alone is the whole fence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/data/ledger.h"

namespace tutti::v1 {
class CheckpointPolicy;
class JobSpec;
class Manifest;
}  // namespace tutti::v1

namespace tutti {

// Which (generation, step) pairs may be resumed.
class Fence {
 public:
  // A generation and the step that it started from; the lowest base wins when a generation is told twice.
  void Add(Generation generation, Step base);
  void Add(const Fence& other);
  bool Admits(Generation generation, Step step) const;

 private:
  std::map<int64_t, int64_t> bases_;
};

struct JobIdentity {
  std::string job_id;
  Generation generation;
};

struct CheckpointInfo {
  std::string path;  // absolute step folder
  Step step;
  Generation generation;
  std::shared_ptr<const v1::Manifest> manifest;
};

// A logical tensor in plain order.
struct LoadedTensor {
  int role = 0;  // v1::TensorRole
  std::vector<int64_t> shape;
  std::vector<float> data;
};
struct LoadedCheckpoint {
  CheckpointInfo info;
  std::map<std::string, LoadedTensor> tensors;  // by canonical name
  Ledger ledger;
};

class CheckpointStore {
 public:
  // Creates the directory (race-free) when it is absent.
  static StatusOr<CheckpointStore> Open(const std::string& directory);
  // Does not create: NOT_FOUND with the path.
  static StatusOr<CheckpointStore> OpenExisting(const std::string& directory);
  const std::string& directory() const { return directory_; }

  // Newest checkpoint (by number) that counts: committed, admitted by the fence, undamaged (every file's size and XXH3
  // is checked). `job_id` empty: of any job. nullopt when there is none. What was passed over, and why, is appended to
  // `notices`.
  StatusOr<std::optional<CheckpointInfo>> Latest(const std::string& job_id, const Fence& known,
                                                 std::vector<std::string>* notices) const;

  // Where a generation starts, decided by one rank for all (its own job's newest first; else as the policy says):
  //   NEVER  another job's checkpoints here: FAILED_PRECONDITION, else from scratch
  //   AUTO   the newest of any job, else from scratch
  //   PATH   policy.resume_from, a step folder or a run folder: NOT_FOUND with the path when it is absent or holds none
  // nullopt: from scratch. Claims the directory first, and records the decision as this generation's base before it
  // returns. A generation trains only after that, so what the directory says is the whole fence: what a coordinator
  // last heard of may be older than the checkpoints that retention has kept, and would fence off all of them.
  StatusOr<std::optional<CheckpointInfo>> FindStart(const v1::CheckpointPolicy& policy, const JobIdentity& self,
                                                    std::vector<std::string>* notices) const;

  // Older generations of this job stop deleting and committing. Durable on return; OK when it was claimed before.
  Status Claim(const JobIdentity& self) const;
  // ABORTED when a later generation of the job has claimed.
  Status CheckCurrent(const JobIdentity& self) const;

  struct Retention {
    int64_t keep = 2;                  // newest that stay, >= 2
    std::optional<int64_t> best_step;  // stays too
    Step base;                         // of this generation: stays
  };
  // By rank 0 after a commit: removes this job's committed folders beyond the policy and the leftovers of dead
  // generations and interrupted writes. Other jobs' folders are never touched. ABORTED when this generation is no
  // longer the current one.
  Status Retain(const JobIdentity& self, const Retention& retention) const;

  // By rank 0 after a write that failed: frees what it took and leaves a mark with the reason, so that ranks that come
  // late give up too. The next Retain removes the folder. It must not be committed.
  Status Discard(const JobIdentity& self, Step step, std::string_view reason) const;

  // Step folder of this job, generation and step (absolute).
  std::string StepFolder(const JobIdentity& self, Step step) const;
  // Points the friendly name step-N at that folder.
  Status LinkFriendlyName(const JobIdentity& self, Step step) const;

 private:
  Status RecordBase(const JobIdentity& self, Step base) const;
  explicit CheckpointStore(std::string directory) : directory_(std::move(directory)) {}
  std::string directory_;
};

// The manifest of one step folder. NOT_FOUND: not committed. DATA_LOSS: damaged, or not of this folder.
StatusOr<CheckpointInfo> ReadManifest(const std::string& folder);
// Size and XXH3 of every file that the manifest names. DATA_LOSS names the file, what was expected and what was found.
Status VerifyFiles(const CheckpointInfo& info);
// All tensors and the ledger, digests checked; any number of ranks may have written it. `folder` may be the friendly
// name.
StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& folder);
// Tensors of a foreign or own safetensors file, names made canonical (safetensors.h).
StatusOr<std::map<std::string, LoadedTensor>> ImportTensors(const std::string& path);
// INVALID_ARGUMENT with the difference when training cannot go on from `manifest` exactly: other data, seed, shuffling
// or global batch.
Status CheckResumable(const v1::Manifest& manifest, const v1::JobSpec& spec, uint64_t data_digest);

}  // namespace tutti
