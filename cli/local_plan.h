// What this machine alone would do with a job: the same planner as the coordinator's, without one.
#pragma once

#include "base/status.h"
#include "tutti/v1/job.pb.h"
#include "tutti/v1/plan.pb.h"

namespace tutti::cli {

struct LocalPlan {
  v1::TrainPlan plan;
  int64_t slot_bytes = 0;  // memory that each rank of the job gets here
  Status fits;             // RESOURCE_EXHAUSTED: what is needed, what there is, what would fit
};

// Errors: those of the planner, about the layers.
StatusOr<LocalPlan> PlanHere(const v1::JobSpec& spec, const v1::DataFacts& data);

}  // namespace tutti::cli
