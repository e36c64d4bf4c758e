// Planning as the services see it; the program's main wires engine/plan behind it. Thread-safe.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tutti/v1/job.pb.h"
#include "tutti/v1/plan.pb.h"

namespace tutti::coordinator {

// The smallest slot that a rank may get; zeros: not known.
struct SlotFacts {
  int64_t memory_bytes = 0;
  int32_t cores = 0;
};

class Planner {
 public:
  virtual ~Planner() = default;
  // INVALID_ARGUMENT: the model does not fit the samples.
  virtual StatusOr<v1::TrainPlan> Plan(const v1::JobSpec& spec, const v1::DataFacts& data,
                                       const SlotFacts& slot) const = 0;
  // RESOURCE_EXHAUSTED: what it needs, what the slot has, what would fit.
  virtual Status CheckFits(const v1::JobSpec& spec, const v1::DataFacts& data, const SlotFacts& slot,
                           const v1::TrainPlan& plan) const = 0;
};

}  // namespace tutti::coordinator
