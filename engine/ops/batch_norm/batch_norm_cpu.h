#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {
Status RegisterBatchNormCpu(KernelRegistry* kernels);
}  // namespace tutti
