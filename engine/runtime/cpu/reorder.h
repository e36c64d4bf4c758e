// A kernel that copies one tensor from a layout to another. Internal to the runtime.
#pragma once

#include "base/status.h"
#include "engine/runtime/cpu/kernel.h"

namespace tutti {

// A plan with one input and one output. INTERNAL: layouts of other sizes, or of a dtype that has plain layout only.
StatusOr<KernelPlan> PlanReorder(const CpuLayout& from, const CpuLayout& to);

}  // namespace tutti
