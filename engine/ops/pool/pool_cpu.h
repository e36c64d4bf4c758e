#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {
Status RegisterPoolCpu(KernelRegistry* kernels);
}  // namespace tutti
