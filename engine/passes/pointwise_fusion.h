// Chains and small trees of pointwise nodes of one shape, each value read once, become one `pointwise` node: one pass
// over memory.
#pragma once

#include "base/status.h"
#include "engine/graph/graph.h"

namespace tutti {

StatusOr<Graph> FusePointwise(const Graph& graph);

}  // namespace tutti
