// The static list of what one rank calls in one step: cells wave by wave, local additions between waves, then Reduce
// (engine/comm), footer and Update. Made once; the step loop only walks it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/comm/tree_reduce.h"
#include "tutti/v1/job.pb.h"

namespace tutti {

// One call of the Cell program: forward and backward of `micro` rows of one shard.
struct CellCall {
  int32_t shard = 0;        // of V
  int32_t micro_batch = 0;  // 0: writes the shard's gradient slot; later ones add to it, in order
  int32_t slot = 0;         // gradient slot
  int32_t cell = 0;         // local number: (shard - first local shard) * micro_batches + micro_batch
  int64_t first_row = 0;    // in the global batch: counts randomness
  int64_t local_row = 0;    // in this rank's batch
};

struct StepWave {
  std::vector<std::vector<CellCall>> lanes;  // by lane, in order
  std::vector<TreeMerge> merges;             // after all lanes are done
};

struct StepPlan {
  int32_t micro_batches = 1;
  int32_t local_cells = 0;
  std::vector<StepWave> waves;
};

StepPlan MakeStepPlan(const v1::Batch& batch, const TreeReducer& tree);

// "wave 0 lane 1: cell shard 1 micro 0 rows 32 -> slot 1", one line per call: golden tests, and the hash that ranks
// compare.
std::string Print(const StepPlan& plan);

}  // namespace tutti
