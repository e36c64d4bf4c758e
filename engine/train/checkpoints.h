// Between the trainer's memory and engine/checkpoint: where a generation starts, what a manifest says, what became of
// each write.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/store.h"
#include "engine/checkpoint/writer.h"
#include "engine/data/dataset.h"
#include "engine/data/ledger.h"
#include "engine/train/executable.h"
#include "engine/train/run_state.h"
#include "tutti/v1/checkpoint.pb.h"

namespace tutti {

// The training state beside tensors. Saved with every checkpoint, rewound with it.
struct Progress {
  int64_t step = 0;    // completed batches
  int64_t update = 0;  // applied updates
  int64_t skipped_in_row = 0;
  int64_t best_step = 0;  // 0: no evaluation yet
  double best_metric = 0;
  v1::EvalRecord evaluation;  // newest
  Ledger ledger;
};

class Checkpoints {
 public:
  Checkpoints(const v1::RankConfig& config, Executable& executable, const Dataset& dataset, RunState& state);
  ~Checkpoints();

  // Collective. Rank 0 decides which checkpoint all resume from; tensors and progress are filled from it, or from the
  // seed. `resumed_from`: its folder, empty from scratch.
  Status Start(Progress* progress, std::string* resumed_from);

  // Collective in the sense that every rank calls it for the same steps; no communication. The step loop pays for a
  // copy.
  void Begin(const Progress& progress, bool is_final);
  // One has been in flight for so long that Begin would hold this rank up, and its peers with it.
  bool slow() const;
  // Reports finished writes; an error is returned where the policy says that it fails the job.
  Status Poll();
  // Waits for the final one. The result of rank 0 names weights and folder.
  StatusOr<CheckpointResult> Finish();
  // Ends the waits of a write in flight.
  void Abort();

 private:
  StatusOr<std::optional<CheckpointInfo>> Decide();
  StatusOr<std::string> AgreeOnFolder();
  Status Load(const std::string& folder, Progress* progress);
  void Initialise();
  Status CreateWriter();
  std::vector<TensorRef> Tensors();
  v1::Manifest MakeManifest(const Progress& progress) const;
  Status Report(const CheckpointResult& result, bool is_final);

  const v1::RankConfig& config_;
  Executable& exe_;
  RunState& state_;
  uint64_t data_digest_;
  JobIdentity self_;
  std::optional<CheckpointStore> store_;
  std::unique_ptr<AsyncCheckpointWriter> writer_;
  int64_t base_step_ = 0;  // that this generation resumed from
  int64_t final_step_ = -1;
  Nanos begun_{0};  // when the newest was
  std::optional<CheckpointResult> final_;
};

}  // namespace tutti
