#pragma once

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

Status RegisterReshapeCpu(KernelRegistry* kernels);

}  // namespace tutti
