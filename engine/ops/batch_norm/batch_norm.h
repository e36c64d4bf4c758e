// Batch normalisation per channel (axis 1) over all other axes (Ioffe, Szegedy 2015).
//
//   batch_norm(x (N, C, ...), scale (C), shift (C)) -> (y, mean (C), variance (C))          epsilon
//     mean and variance of this call's x; the variance is the biased one (sum of squares / n). Running statistics are
//     the caller's; no gradient flows through the outputs mean and variance. y = (x - mean) / sqrt(variance + epsilon)
//     * scale + shift
//   batch_norm_grad(dy, x, scale, mean, variance) -> (dx, dscale (C), dshift (C))            epsilon
//   batch_norm_inference(x, scale, shift, mean, variance) -> y                               epsilon
#pragma once

#include "engine/ops/op.h"

namespace tutti {
Status RegisterBatchNorm(OpRegistry* ops);
}  // namespace tutti
