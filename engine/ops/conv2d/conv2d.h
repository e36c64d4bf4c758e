// Two-dimensional convolution (cross-correlation), NCHW.
//
//   conv2d(x (N, C, H, W), w (O, C, KH, KW) [, b (O)]) -> y (N, O, OH, OW)
//     stride (default 1), padding (zeros on each side, default 0), activation: "none" (default) | "relu"
//     OH = floor((H + 2 padding - KH) / stride) + 1
//   conv2d_grad_input(dy, w) -> dx                             input_dims: x's; stride, padding
//   conv2d_grad_weights(x, dy) -> (dw [, db])                  kernel: [KH, KW]; stride, padding; has_bias: bool
#pragma once

#include "engine/ops/op.h"

namespace tutti {
Status RegisterConv2d(OpRegistry* ops);
}  // namespace tutti
