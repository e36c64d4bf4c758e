// engine/plan as the coordinator's services see it.
#pragma once

#include <memory>

#include "coordinator/rpc/planner.h"

namespace tutti::coordinator {

std::unique_ptr<Planner> NewEnginePlanner();

}  // namespace tutti::coordinator
