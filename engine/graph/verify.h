// Structural invariants of a graph. Every pass keeps them; the CPU compiler checks them again.
#pragma once

#include "base/status.h"
#include "engine/graph/graph.h"

namespace tutti {

// INVALID_ARGUMENT names the node (number, op, path), what was found and what is expected:
//  - every value has one producer or is a graph input, ids are in range, nodes stand in topological order;
//  - inputs of the graph are named, names are unique, no input is an intermediate, host scalars have one element, dims
//  are >= 1;
//  - outputs are named, unique, produced by nodes, and no value is output twice;
//  - an alias names an input of the same type, each input has one next version at most, and no node reads the old
//  version after
//    the node that makes the new one.
Status Verify(const Graph& graph);

}  // namespace tutti
