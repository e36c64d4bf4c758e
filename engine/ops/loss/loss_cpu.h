#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

Status RegisterLossCpu(KernelRegistry* kernels);

}  // namespace tutti
