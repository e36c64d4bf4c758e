// Stable text form of a graph, for golden tests and people:
//
//   graph mlp
//   input %0 x: batch f32[32,784]
//   input %1 layers.0.weight: parameter f32[10,784]
//   %2: f32[32,10] = dense(%0, %1) {activation: "relu"} @layers.0
//   output loss = %2
//   output layers.0.weight = %7 -> layers.0.weight
#pragma once

#include <string>

#include "engine/graph/graph.h"

namespace tutti {

std::string Print(const Graph& graph);
std::string PrintNode(const Graph& graph, NodeId id);  // one line, no newline
std::string Print(const Attribute& attribute);

}  // namespace tutti
