#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

Status RegisterLayerNormCpu(KernelRegistry* kernels);

}  // namespace tutti
