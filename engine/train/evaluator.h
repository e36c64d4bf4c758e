// Evaluation: every sample once, in cells of fixed size. Sums run over cells in data set order, so the metrics have
// equal bits for any number of ranks.
#pragma once

#include <memory>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/loader.h"
#include "engine/train/executable.h"
#include "engine/train/run_state.h"

namespace tutti {

class Evaluator {
 public:
  Evaluator(const v1::RankConfig& config, const Dataset& dataset, Executable& executable, RunState& state);

  // Collective. Uses the parameters and statistics as they are now.
  StatusOr<v1::EvalRecord> Run(int64_t step);

 private:
  Status RunCells();

  Executable& exe_;
  RunState& state_;
  EvalPlan plan_;
  int32_t rank_;
  std::vector<EvalReader> readers_;  // by lane
  std::vector<Status> statuses_;     // by lane
  std::vector<float> own_, all_;     // loss_sum and correct of each cell; ranks padded to the same length
  int64_t most_cells_ = 0;           // of one rank
};

}  // namespace tutti
