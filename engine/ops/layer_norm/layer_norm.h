// layer_norm(x (N, D...), scale (D...), shift (D...)) {epsilon} -> y (N, D...), mean (N), inverse_deviation (N): over
// all axes but the first, y = (x - mean) / sqrt(variance + epsilon) * scale + shift, biased variance (Ba, Kiros,
// Hinton: "Layer normalization"). layer_norm_grad(dy, x, scale, mean, inverse_deviation) -> dx, dscale, dshift. Rows
// add to dscale and dshift in order.
#pragma once

#include "engine/ops/op.h"

namespace tutti {

Status RegisterLayerNorm(OpRegistry* ops);

}  // namespace tutti
