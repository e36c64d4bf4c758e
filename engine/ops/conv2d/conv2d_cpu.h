#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {
Status RegisterConv2dCpu(KernelRegistry* kernels);
}  // namespace tutti
