// Writes checkpoints beside training. The step loop pays for one copy of this rank's tensors into a staging buffer; a
// thread writes them, syncs, and leaves a receipt; rank 0's thread waits for all receipts and commits the manifest.
// Ranks talk through the store alone, so a commit needs no collective and no coordinator.
//
// State that every rank has is written once: tensors are dealt to ranks by bytes, in name order (PartitionTensors).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "engine/checkpoint/store.h"
#include "engine/data/ledger.h"

namespace tutti {

// A logical tensor of the training state, equal on every rank.
struct TensorRef {
  std::string name;  // canonical: "layers.0.weight", "optimizer/layers.0.weight/m"
  int role = 0;      // v1::TensorRole
  std::vector<int64_t> shape;
  std::function<void(float* plain)> copy_to_plain;  // logical order; called in Begin, on the caller's thread
};

// Owner of each tensor (given in name order, by bytes) among `ranks`: neighbouring tensors, near-equal bytes. Pure.
std::vector<int32_t> PartitionTensors(std::span<const int64_t> bytes, int32_t ranks);

// Identity of trained weights. SHA-256 over, for each parameter and statistic in byte-wise name order: the name, a zero
// byte, the number of axes and each dimension as int64 little-endian, and the 32 bytes of the SHA-256 of its elements
// as little-endian f32 in logical order. Depends on no rank, layout or generation. Other roles are left out.
struct TensorDigest {
  std::string name;
  int role = 0;
  std::vector<int64_t> shape;
  std::string sha256;  // hexadecimal, of the elements
};
std::string WeightsSha256(std::vector<TensorDigest> tensors);
std::string WeightsSha256(const std::map<std::string, LoadedTensor>& tensors);

struct CheckpointResult {
  Status status;  // RESOURCE_EXHAUSTED: disk or quota full, with path; ABORTED: fenced; DEADLINE_EXCEEDED: rank missing
  Step step;
  std::string path;                  // absolute step folder
  std::string weights_sha256;        // rank 0 only
  int64_t bytes = 0;                 // of all ranks' files; of the own one on other ranks
  std::vector<std::string> notices;  // what went wrong beside it: an old checkpoint that could not be removed, ...
  double seconds = 0;                // from copy to commit (rank 0) or receipt
  bool committed = false;            // rank 0, or a caller that asked to wait for the commit
};

class AsyncCheckpointWriter {
 public:
  struct Options {
    JobIdentity self;
    Rank rank;
    int32_t world_size = 1;
    int64_t receipt_timeout_ms = 60'000;   // rank 0: for the other ranks' receipts; others: for the commit
    CheckpointStore::Retention retention;  // rank 0 applies it after each commit; best_step is updated by SetBest
    const Clock* clock = nullptr;          // null: the system's
  };
  // `tensors` names all logical tensors of the job, in any order; the same on every rank. Allocates the staging buffer.
  static StatusOr<std::unique_ptr<AsyncCheckpointWriter>> Create(const CheckpointStore& store, const Options& options,
                                                                 std::vector<TensorRef> tensors);
  virtual ~AsyncCheckpointWriter() = default;  // waits for the one in flight (it is abandoned after Abort)

  static int64_t StagingBytes(const std::vector<TensorRef>& tensors, Rank rank, int32_t world_size);

  // Copies and returns. Every rank calls it for the same steps. `manifest` has what only the trainer knows (spec, step,
  // update, position, bases, data_digest, best, kernel choices, ...); format_version, job_id, generation, world_size,
  // files, tensors, weights_sha256 and ledger are filled in here. `ledger.steps()` is the step. Waits while an earlier
  // one is in flight. `wait_for_commit`: on ranks other than 0 the result comes only after the manifest is there (final
  // checkpoints).
  virtual void Begin(const v1::Manifest& manifest, const Ledger& ledger, bool wait_for_commit) = 0;
  virtual bool busy() const = 0;
  // Results of finished checkpoints, oldest first; nullopt when there is none now.
  virtual std::optional<CheckpointResult> Poll() = 0;
  // Waits for the one in flight and returns the last result not yet polled; nullopt when nothing was.
  virtual std::optional<CheckpointResult> Finish() = 0;
  virtual void SetBest(std::optional<int64_t> step) = 0;
  // The waits of the one in flight end at once with ABORTED.
  virtual void Abort() = 0;
};

}  // namespace tutti
