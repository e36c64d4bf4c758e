#include "engine/ops/registry.h"

#include "base/check.h"
#include "engine/ops/batch_norm/batch_norm.h"
#include "engine/ops/conv2d/conv2d.h"
#include "engine/ops/dense/dense.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/layer_norm/layer_norm.h"
#include "engine/ops/loss/loss.h"
#include "engine/ops/pointwise/pointwise.h"
#include "engine/ops/pool/pool.h"
#include "engine/ops/reshape/reshape.h"

namespace tutti {

OpRegistry StandardOps() {
  OpRegistry ops;
  TUTTI_CHECK_OK(RegisterBatchNorm(&ops));
  TUTTI_CHECK_OK(RegisterConv2d(&ops));
  TUTTI_CHECK_OK(RegisterDense(&ops));
  TUTTI_CHECK_OK(RegisterDropout(&ops));
  TUTTI_CHECK_OK(RegisterLayerNorm(&ops));
  TUTTI_CHECK_OK(RegisterLoss(&ops));
  TUTTI_CHECK_OK(RegisterPointwise(&ops));
  TUTTI_CHECK_OK(RegisterPool(&ops));
  TUTTI_CHECK_OK(RegisterReshape(&ops));
  return ops;
}

}  // namespace tutti
