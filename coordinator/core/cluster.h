// The cluster as the scheduler sees it.
#pragma once

#include "coordinator/core/state.h"
#include "coordinator/schedule/schedule.h"

namespace tutti::coordinator {

ClusterView ViewCluster(const State& state);
PlacementRequest RequestOf(const std::string& job_id, const v1::JobSpec& spec);

}  // namespace tutti::coordinator
