#pragma once

#include "engine/ops/pointwise/program.h"
#include "engine/runtime/cpu/kernel.h"

namespace tutti {

Status RegisterPointwiseCpu(KernelRegistry* kernels);

// The program on one element; what the kernel does to each of a block.
float EvaluatePointwise(const PointwiseProgram& program, std::span<const float> inputs);

}  // namespace tutti
