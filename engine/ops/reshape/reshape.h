// reshape(x) {dims}: the same elements in logical row-major order under other dims. flatten(x): (N, ...) -> (N,
// product). Any dtype.
#pragma once

#include "engine/ops/op.h"

namespace tutti {

Status RegisterReshape(OpRegistry* ops);

}  // namespace tutti
