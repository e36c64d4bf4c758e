#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {
Status RegisterDenseCpu(KernelRegistry* kernels);
}  // namespace tutti
