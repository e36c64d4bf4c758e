// Rewrites graph -> graph that make the same numbers with fewer passes over memory. Each keeps the graph's inputs and
// outputs.
#pragma once

#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/ops/op.h"

namespace tutti {

// Nodes whose outputs nobody reads are dropped.
Graph EliminateDeadCode(const Graph& graph);

// Before differentiation: dense(flatten(x)) reads x itself (the weight's order is the same), and a relu that is the
// only reader of a conv2d or dense becomes its attribute activation = "relu".
StatusOr<Graph> FuseForward(const Graph& graph, const OpRegistry& ops);

// After differentiation: relu_grad(max_pool_grad(d, workspace), y) becomes max_pool_grad(relu_grad(d, pooled),
// workspace), where pooled = max_pool(y): a maximum of relu'd values is positive exactly where the element that it came
// from is, and the pooled tensor is smaller. Then chains of pointwise nodes of one shape become one `pointwise` node
// (engine/ops/pointwise).
StatusOr<Graph> FuseJoint(const Graph& graph, const OpRegistry& ops);

// The whole way from a forward graph to what is compiled: FuseForward, Differentiate, FuseJoint, EliminateDeadCode.
StatusOr<Graph> BuildTrainingGraph(const Graph& forward, std::string_view loss_output, const OpRegistry& ops);
// FuseForward, pointwise fusion, EliminateDeadCode.
StatusOr<Graph> BuildInferenceGraph(const Graph& forward, const OpRegistry& ops);

}  // namespace tutti
