#include "engine/graph/verify.h"

#include <map>
#include <set>

namespace tutti {
namespace {

std::string Where(const Graph& graph, size_t node) {
  const Node& n = graph.nodes()[node];
  return fmt::format("graph {}: node {} ({} @{})", graph.name(), node, n.op, n.path);
}

bool InRange(const Graph& graph, ValueId id) {
  return id.value() >= 0 && static_cast<size_t>(id.value()) < graph.values().size();
}

Status VerifyType(const Graph& graph, size_t id) {
  for (int64_t dim : graph.values()[id].type.dims)
    if (dim < 1)
      return InvalidArgument("graph {}: value %{} has a dim of {}, expected at least 1", graph.name(), id, dim);
  return OkStatus();
}

Status VerifyInputs(const Graph& graph) {
  std::set<std::string_view> names;
  for (ValueId id : graph.inputs()) {
    if (!InRange(graph, id)) return InvalidArgument("graph {}: input %{} does not exist", graph.name(), id.value());
    const Value& value = graph.value(id);
    if (value.name.empty()) return InvalidArgument("graph {}: input %{} has no name", graph.name(), id.value());
    if (!names.insert(value.name).second)
      return InvalidArgument("graph {}: two inputs are named {}", graph.name(), value.name);
    if (value.producer != kNoNode)
      return InvalidArgument("graph {}: input {} is made by node {}", graph.name(), value.name, value.producer.value());
    if (value.value_class == ValueClass::kIntermediate)
      return InvalidArgument("graph {}: input {} has class intermediate, expected a class that lives outside",
                             graph.name(), value.name);
    if (value.value_class == ValueClass::kHostScalar && value.type.elements() != 1)
      return InvalidArgument("graph {}: host scalar {} has {} elements, expected 1", graph.name(), value.name,
                             value.type.elements());
  }
  return OkStatus();
}

// Every value has exactly one maker, and makers stand before readers.
Status VerifyNodes(const Graph& graph) {
  std::vector<bool> made(graph.values().size(), false);
  for (ValueId id : graph.inputs()) made[static_cast<size_t>(id.value())] = true;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (node.outputs.empty()) return InvalidArgument("{}: makes no value", Where(graph, n));
    for (ValueId input : node.inputs) {
      if (!InRange(graph, input))
        return InvalidArgument("{}: input %{} does not exist", Where(graph, n), input.value());
      if (!made[static_cast<size_t>(input.value())])
        return InvalidArgument("{}: reads %{} before it is made", Where(graph, n), input.value());
    }
    for (ValueId output : node.outputs) {
      if (!InRange(graph, output))
        return InvalidArgument("{}: output %{} does not exist", Where(graph, n), output.value());
      const Value& value = graph.value(output);
      if (made[static_cast<size_t>(output.value())])
        return InvalidArgument("{}: makes %{}, which has another maker", Where(graph, n), output.value());
      if (value.producer != NodeId(static_cast<int32_t>(n)))
        return InvalidArgument("{}: %{} names node {} as its maker", Where(graph, n), output.value(),
                               value.producer.value());
      if (value.value_class != ValueClass::kIntermediate)
        return InvalidArgument("{}: %{} has class {}, expected intermediate", Where(graph, n), output.value(),
                               Name(value.value_class));
      made[static_cast<size_t>(output.value())] = true;
    }
  }
  for (size_t id = 0; id < made.size(); ++id)
    if (!made[id]) return InvalidArgument("graph {}: value %{} has no maker", graph.name(), id);
  return OkStatus();
}

Status VerifyAlias(const Graph& graph, const Output& output) {
  const StatusOr<ValueId> input = graph.FindInput(output.alias);
  if (!input.ok())
    return InvalidArgument("graph {}: output {} is the next version of {}, which is no input", graph.name(),
                           output.name, output.alias);
  if (graph.value(*input).type != graph.value(output.value).type)
    return InvalidArgument("graph {}: output {} and its alias {} differ in type", graph.name(), output.name,
                           output.alias);
  const auto maker = static_cast<size_t>(graph.value(output.value).producer.value());
  for (size_t n = maker + 1; n < graph.nodes().size(); ++n)
    for (ValueId read : graph.nodes()[n].inputs)
      if (read == *input)
        return InvalidArgument("{}: reads {} after node {} wrote its next version", Where(graph, n), output.alias,
                               maker);
  return OkStatus();
}

Status VerifyOutputs(const Graph& graph) {
  std::set<std::string_view> names, aliases;
  std::set<ValueId> values;
  for (const Output& output : graph.outputs()) {
    if (output.name.empty()) return InvalidArgument("graph {}: an output has no name", graph.name());
    if (!names.insert(output.name).second)
      return InvalidArgument("graph {}: two outputs are named {}", graph.name(), output.name);
    if (!InRange(graph, output.value))
      return InvalidArgument("graph {}: output {} is %{}, which does not exist", graph.name(), output.name,
                             output.value.value());
    if (graph.value(output.value).producer == kNoNode)
      return InvalidArgument("graph {}: output {} is the input {}, expected a value that a node makes", graph.name(),
                             output.name, graph.value(output.value).name);
    if (!values.insert(output.value).second)
      return InvalidArgument("graph {}: output {} is %{}, which is another output already", graph.name(), output.name,
                             output.value.value());
    if (output.alias.empty()) continue;
    if (!aliases.insert(output.alias).second)
      return InvalidArgument("graph {}: input {} has two next versions", graph.name(), output.alias);
    TUTTI_RETURN_IF_ERROR(VerifyAlias(graph, output));
  }
  return OkStatus();
}

}  // namespace

Status Verify(const Graph& graph) {
  for (size_t id = 0; id < graph.values().size(); ++id) TUTTI_RETURN_IF_ERROR(VerifyType(graph, id));
  TUTTI_RETURN_IF_ERROR(VerifyInputs(graph));
  TUTTI_RETURN_IF_ERROR(VerifyNodes(graph));
  return VerifyOutputs(graph);
}

}  // namespace tutti
