#include "engine/ops/builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

Status OpRegistry::Register(OpDef def) {
  std::string name = def.name;
  if (!ops_.emplace(name, std::move(def)).second) return AlreadyExists("op {} is registered already", name);
  return OkStatus();
}

StatusOr<const OpDef*> OpRegistry::Find(std::string_view name) const {
  const auto found = ops_.find(name);
  if (found == ops_.end()) return NotFound("there is no op {}", name);
  return &found->second;
}

StatusOr<std::vector<ValueId>> GraphBuilder::Add(std::string_view op, std::string_view path,
                                                 std::vector<ValueId> inputs, Attributes attributes) {
  TUTTI_ASSIGN_OR_RETURN(const OpDef* def, ops_->Find(op));
  const Node node{std::string(op), std::string(path), inputs, {}, attributes};
  std::vector<TensorType> types;
  for (ValueId input : inputs) types.push_back(graph_.value(input).type);
  TUTTI_ASSIGN_OR_RETURN(std::vector<TensorType> outputs, def->infer(node, types));
  return graph_.AddNode(node.op, node.path, std::move(inputs), std::move(attributes), std::move(outputs));
}

StatusOr<ValueId> GraphBuilder::Add1(std::string_view op, std::string_view path, std::vector<ValueId> inputs,
                                     Attributes attributes) {
  TUTTI_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs, Add(op, path, std::move(inputs), std::move(attributes)));
  if (outputs.size() != 1) return Internal("{} {}: makes {} values, expected 1", path, op, outputs.size());
  return outputs[0];
}

Status VerifyOps(const Graph& graph, const OpRegistry& ops) {
  for (const Node& node : graph.nodes()) {
    TUTTI_ASSIGN_OR_RETURN(const OpDef* def, ops.Find(node.op));
    std::vector<TensorType> types;
    for (ValueId input : node.inputs) types.push_back(graph.value(input).type);
    TUTTI_ASSIGN_OR_RETURN(const std::vector<TensorType> inferred, def->infer(node, types));
    if (inferred.size() != node.outputs.size())
      return InvalidArgument("{} {}: has {} outputs, expected {}", node.path, node.op, node.outputs.size(),
                             inferred.size());
    for (size_t k = 0; k < inferred.size(); ++k) {
      const TensorType& found = graph.value(node.outputs[k]).type;
      if (found != inferred[k])
        return InvalidArgument("{} {}: output {} is {}, expected {}", node.path, node.op, k, ToString(found),
                               ToString(inferred[k]));
    }
  }
  for (const Output& output : graph.outputs()) {
    if (output.alias.empty()) continue;
    TUTTI_ASSIGN_OR_RETURN(const ValueId input, graph.FindInput(output.alias));
    const Node& node = graph.node(graph.value(output.value).producer);
    const auto read = std::find(node.inputs.begin(), node.inputs.end(), input);
    if (read == node.inputs.end()) continue;
    const std::pair<int, int> pair(
        static_cast<int>(std::find(node.outputs.begin(), node.outputs.end(), output.value) - node.outputs.begin()),
        static_cast<int>(read - node.inputs.begin()));
    TUTTI_ASSIGN_OR_RETURN(const OpDef* def, ops.Find(node.op));
    if (std::find(def->aliases.begin(), def->aliases.end(), pair) == def->aliases.end())
      return InvalidArgument("{} {}: output {} may not be written over input {} ({})", node.path, node.op, pair.first,
                             pair.second, output.alias);
  }
  return OkStatus();
}

Status ExpectInputs(const Node& node, size_t found, size_t at_least, size_t at_most) {
  if (found >= at_least && found <= at_most) return OkStatus();
  const std::string expected =
      at_least == at_most ? fmt::format("{}", at_least) : fmt::format("{} to {}", at_least, at_most);
  return InvalidArgument("{} {}: found {} inputs, expected {}", node.path, node.op, found, expected);
}

Status ExpectInputs(const Node& node, size_t found, size_t expected) {
  return ExpectInputs(node, found, expected, expected);
}

Status OpError(const Node& node, std::string_view message) {
  return InvalidArgument("{} {}: {}", node.path, node.op, message);
}

std::string ToString(const TensorType& type) {
  return fmt::format("{}[{}]", Name(type.dtype), fmt::join(type.dims, ","));
}

}  // namespace tutti
