#include "engine/ops/registry_cpu.h"

#include "base/check.h"
#include "engine/ops/batch_norm/batch_norm_cpu.h"
#include "engine/ops/conv2d/conv2d_cpu.h"
#include "engine/ops/dense/dense_cpu.h"
#include "engine/ops/dropout/dropout_cpu.h"
#include "engine/ops/layer_norm/layer_norm_cpu.h"
#include "engine/ops/loss/loss_cpu.h"
#include "engine/ops/pointwise/pointwise_cpu.h"
#include "engine/ops/pool/pool_cpu.h"
#include "engine/ops/reshape/reshape_cpu.h"

namespace tutti {

KernelRegistry StandardCpuKernels() {
  KernelRegistry kernels;
  TUTTI_CHECK_OK(RegisterBatchNormCpu(&kernels));
  TUTTI_CHECK_OK(RegisterConv2dCpu(&kernels));
  TUTTI_CHECK_OK(RegisterDenseCpu(&kernels));
  TUTTI_CHECK_OK(RegisterDropoutCpu(&kernels));
  TUTTI_CHECK_OK(RegisterLayerNormCpu(&kernels));
  TUTTI_CHECK_OK(RegisterLossCpu(&kernels));
  TUTTI_CHECK_OK(RegisterPointwiseCpu(&kernels));
  TUTTI_CHECK_OK(RegisterPoolCpu(&kernels));
  TUTTI_CHECK_OK(RegisterReshapeCpu(&kernels));
  return kernels;
}

}  // namespace tutti
