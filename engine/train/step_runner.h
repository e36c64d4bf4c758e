// Runs the StepPlan: cells on the lanes, the exchange beside backward, the footer, the update.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/loader.h"
#include "engine/optim/update.h"
#include "engine/train/executable.h"
#include "engine/train/footer.h"
#include "engine/train/run_state.h"

namespace tutti {

struct StepTimings {                 // milliseconds
  double forward = 0, backward = 0;  // of the first lane
  double exchange = 0, exposed_exchange = 0;
  double optimizer = 0;
};

struct StepOutcome {
  FooterOutcome footer;
  bool finite = true;        // every element of the whole gradient
  double gradient_norm = 0;  // before clipping
  bool clipped = false;
  double learning_rate = 0;
  std::string skip_cause;  // where finite is false: "rank 1, shard 3, layers.0.weight"
  StepTimings timings;
};

class StepRunner {
 public:
  StepRunner(const v1::RankConfig& config, Executable& executable, RunState& state);
  ~StepRunner();

  // One atomic step on `batch`; `update` is the number of this update if it is applied. Nothing is changed unless the
  // footer succeeds and every rank's gradient is finite. Errors: the communicator's, or the footer's.
  // `checkpoint_slow` is for the footer.
  StatusOr<StepOutcome> Run(const Batch& batch, int64_t update, bool checkpoint_slow);

 private:
  struct Lane {
    std::function<void(size_t)> on_output;
    const CellCall* call = nullptr;
    bool starts_buckets = false;  // the call completes its shard, in the last wave
    Nanos cell_start{0}, forward_end{0};
    Nanos forward{0}, backward{0};  // of this step
  };

  void RunWaves(const Batch& batch);
  void RunCell(int lane, const CellCall& call, const Batch& batch, bool starts_buckets);
  void OnOutput(int lane, size_t external);
  void Merge(const std::vector<TreeMerge>& merges);
  Status Reduce(StepTimings* timings);
  void MakeExchanger();
  void Measure();
  // Where there are other ranks, each measures its part of every bucket; the footer carries the sums to the others.
  std::pair<int64_t, int64_t> BlocksOf(int32_t bucket, int32_t rank) const;
  int64_t BlocksOf(int32_t rank) const;  // in all buckets
  template <typename Copy>               // copy(sums of the update program, where they begin in the footer), by bucket
  void ForBlocksOf(int32_t rank, Copy copy);
  void Apply(const StepOutcome& outcome, int64_t update);
  // After a non-finite gradient: the cells are computed again, one by one, to find the first that made it.
  StatusOr<std::string> FindCause(const Batch& batch, const GradientMeasure& measure);

  const v1::RankConfig& config_;
  Executable& exe_;
  RunState& state_;
  std::unique_ptr<UpdateProgram> update_;
  std::unique_ptr<Footer> footer_;
  std::unique_ptr<BucketExchanger> exchanger_;  // where there are other ranks
  std::vector<int32_t> bucket_of_;              // by parameter
  std::vector<int64_t> bucket_blocks_;          // of the update program: first of each bucket, and the end
  std::vector<int32_t> gradients_in_bucket_;
  std::vector<std::atomic<int32_t>> missing_;  // by bucket: gradients of the last wave that are not there yet
  std::mutex start_mutex_;
  bool measures_at_once_ = false;  // one cell is the whole gradient: measured while it is still in the cache
  std::vector<Lane> lanes_;
  int64_t sample_elements_ = 1;
};

}  // namespace tutti
