// The cluster as the scheduler sees it.
#pragma once

#include "coordinator/core/state.h"
#include "coordinator/schedule/schedule.h"

namespace tutti::coordinator {

ClusterView ViewCluster(const State& state);
// `memory_bytes` of a rank by the plan; 0: none was made.
PlacementRequest RequestOf(const std::string& job_id, const v1::JobSpec& spec, int64_t memory_bytes);

}  // namespace tutti::coordinator
