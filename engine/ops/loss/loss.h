// The loss of one cell. Both ops have the same form:
//
//   softmax_cross_entropy(logits (N, K) f32, labels (N) i32, weights (N) f32, inverse_valid f32)
//   mean_squared_error(predictions (N, D) f32, targets, weights (N) f32, inverse_valid f32), targets (N) i32 class
//   numbers, read as
//     one-hot rows of D, or (N, D) f32; a row's loss is the mean over D of (prediction - target)^2
//   -> loss f32: sum over rows of weight * row loss, in row order; not divided by anything
//      correct f32: sum of weights of the rows whose first largest entry is the label (0 for f32 targets)
//      gradient (N, K) f32: of sum * inverse_valid with respect to input 0. May be written over it.
//
// inverse_valid is 1 / (valid rows of the whole global batch), so gradients added over all cells are those of the mean
// loss. Rows of weight zero give exact zeros, whatever they hold. Labels are checked where data is read; one out of
// range ends the process.
#pragma once

#include "engine/ops/op.h"

namespace tutti {

Status RegisterLoss(OpRegistry* ops);

}  // namespace tutti
