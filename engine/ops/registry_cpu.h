// The CPU kernels of every operator in engine/ops/registry.h.
#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

KernelRegistry StandardCpuKernels();

}  // namespace tutti
