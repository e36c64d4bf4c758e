// Reverse-mode differentiation: a forward graph becomes one joint graph (forward + backward).
#pragma once

#include <string_view>

#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/ops/op.h"

namespace tutti {

inline constexpr std::string_view kGradientPrefix = "gradient/";

// The graph's outputs stay; "gradient/<parameter>" is added for every parameter, in graph order, with the parameter's
// type. The loss is the output named `loss_output`, made by an op with OpDef::loss. Only gradients that lead to a
// parameter are kept. INVALID_ARGUMENT: an op on the way has no gradient, or a parameter does not reach the loss (both
// named).
StatusOr<Graph> Differentiate(const Graph& forward, std::string_view loss_output, const OpRegistry& ops);

}  // namespace tutti
