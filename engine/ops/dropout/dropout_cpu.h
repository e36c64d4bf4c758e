#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

Status RegisterDropoutCpu(KernelRegistry* kernels);

}  // namespace tutti
