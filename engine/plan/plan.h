// What a job needs, from the job file and the shape of its data alone: pure, same input -> same plan, no device
// library. The coordinator links this; tutti-rank --dry replaces the byte counts by those of the compiled programs
// (engine/train/executable.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tutti/v1/job.pb.h"
#include "tutti/v1/plan.pb.h"

namespace tutti {

struct DataShape {
  std::vector<int64_t> sample_dims;  // of one sample, (C, H, W)
  int64_t train_samples = 0;
  int64_t eval_samples = 0;    // 0: no evaluation
  int64_t resident_bytes = 0;  // that a rank keeps in memory for both sets
};

// The smallest slot that a rank may get; zero: not known.
struct SlotShape {
  int64_t memory_bytes = 0;
  int32_t cores = 0;
  double flops_per_core = 0;  // f32, sustained by the kernels; 0: a cautious default
};

// Upper bound of memory, cost and time of one job. INVALID_ARGUMENT: the model does not fit the samples (names the
// layer), or an epoch would have zero steps ("0 steps per epoch: 5 samples < 8").
StatusOr<v1::TrainPlan> PlanJob(const v1::JobSpec& spec, const DataShape& data, const SlotShape& slot);

// OK, or RESOURCE_EXHAUSTED with the table of EXPERIENCE "A plan that cannot fit": what is needed, by kind, what the
// slot has, and what would fit. OK where slot.memory_bytes is 0.
Status CheckFits(const v1::JobSpec& spec, const DataShape& data, const SlotShape& slot, const v1::TrainPlan& plan);

// Shards that a rank computes side by side: as many as it has cores for, at most its own.
int32_t LanesOf(const v1::JobSpec& spec, int32_t local_shards, int32_t cores);

// Adds up arena_bytes and resident_bytes from the parts that are filled in already. `process_bytes`: of a rank's
// process beside arena and data set, that is code, libraries, generated kernels, stacks.
void SumMemory(const v1::JobSpec& spec, int64_t arena_bytes, int64_t process_bytes, v1::MemoryPlan* memory);

}  // namespace tutti
