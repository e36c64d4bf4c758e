// Fully connected layers.
//
//   dense(x (N, ...), w (U, K) [, b (U)]) -> y (N, U)      activation: "none" (default) | "relu"
//     y = activation(x w^T + b), K = elements of one sample of x in row-major order: a flatten in front is absorbed.
//   dense_grad_input(dy (N, U), w (U, K)) -> dx            input_dims: x's
//   dense_grad_weights(x (N, ...), dy (N, U)) -> (dw (U, K) [, db (U)])    has_bias: bool
#pragma once

#include "engine/ops/op.h"

namespace tutti {
Status RegisterDense(OpRegistry* ops);
}  // namespace tutti
