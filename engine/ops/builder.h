// Adds nodes to a graph with inferred output types: what layers, gradient rules and passes build graphs with.
//
//   GraphBuilder builder(Graph("mlp"), ops);
//   ValueId x = builder.AddInput("x", ValueClass::kBatch, {DType::kF32, {32, 784}});
//   TUTTI_ASSIGN_OR_RETURN(ValueId y, builder.Add1("relu", "layers.1", {x}));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/ops/op.h"

namespace tutti {

inline constexpr ValueId kNoValue{-1};  // "no gradient" in gradient rules

class GraphBuilder {
 public:
  // `ops` must outlive the builder.
  GraphBuilder(Graph graph, const OpRegistry& ops) : graph_(std::move(graph)), ops_(&ops) {}

  ValueId AddInput(std::string name, ValueClass value_class, TensorType type) {
    return graph_.AddInput(std::move(name), value_class, std::move(type));
  }
  void AddOutput(std::string name, ValueId value, std::string alias = "") {
    graph_.AddOutput(std::move(name), value, std::move(alias));
  }

  // NOT_FOUND: no such op. INVALID_ARGUMENT: the op refuses the inputs; the message starts with path and op.
  StatusOr<std::vector<ValueId>> Add(std::string_view op, std::string_view path, std::vector<ValueId> inputs,
                                     Attributes attributes = {});
  // For ops of one output.
  StatusOr<ValueId> Add1(std::string_view op, std::string_view path, std::vector<ValueId> inputs,
                         Attributes attributes = {});

  const TensorType& type(ValueId value) const { return graph_.value(value).type; }
  const Graph& graph() const { return graph_; }
  const OpRegistry& ops() const { return *ops_; }
  Graph Take() { return std::move(graph_); }

 private:
  Graph graph_;
  const OpRegistry* ops_;
};

// The types that `ops` infers for each node agree with those in the graph, and aliases between an output and an input
// that its node reads are ones that the op allows. engine/graph/verify.h checks the structure.
Status VerifyOps(const Graph& graph, const OpRegistry& ops);

// Helpers of rooms. A wrong count is INVALID_ARGUMENT "<path> <op>: found 2 inputs, expected 1".
Status ExpectInputs(const Node& node, size_t found, size_t expected);
Status ExpectInputs(const Node& node, size_t found, size_t at_least, size_t at_most);
// "<path> <op>: <message>".
Status OpError(const Node& node, std::string_view message);
std::string ToString(const TensorType& type);  // "f32[32,784]"; a scalar is "f32[]"

}  // namespace tutti
