// Elementwise operators on f32 tensors of one shape (no broadcasting):
//   add(a, b), mul(a, b), scale(x) {factor}, relu(x), gelu(x), tanh(x), sigmoid(x), their gradients relu_grad(dy, y),
//   gelu_grad(dy, x), tanh_grad(dy, y), sigmoid_grad(dy, y), and pointwise(x0, x1, ...) {program}: a fused chain of
//   these (engine/ops/pointwise/program.h), made by engine/passes after differentiation, so without a gradient of its
//   own.
#pragma once

#include "engine/ops/op.h"

namespace tutti {

Status RegisterPointwise(OpRegistry* ops);

}  // namespace tutti
