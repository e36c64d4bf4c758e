// Pooling over windows of NCHW images. Attributes: size (window height = width), stride (default: size), padding
// (default 0, at most size / 2, so that no window lies wholly in it). OH = floor((H + 2 padding - size) / stride) + 1.
//
//   max_pool(x (N, C, H, W)) -> (y (N, C, OH, OW), winner u8 of y's shape)   winner: row * size + column inside the
//   window of the
//                                                      first greatest element in row-major order; size at most 15
//   max_pool_grad(dy, winner) -> dx                    input_dims: x's
//   avg_pool(x) -> y                                   the mean of the elements inside the image: padding is not
//   counted avg_pool_grad(dy) -> dx                            input_dims global_avg_pool(x (N, C, H, W)) -> y (N, C)
//   global_avg_pool_grad(dy (N, C)) -> dx              input_dims
#pragma once

#include "engine/ops/op.h"

namespace tutti {
Status RegisterPool(OpRegistry* ops);
}  // namespace tutti
