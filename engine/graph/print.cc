#include "engine/graph/print.h"

#include <fmt/format.h>

namespace tutti {
namespace {

std::string TypeText(const TensorType& type) {
  return fmt::format("{}[{}]", Name(type.dtype), fmt::join(type.dims, ","));
}

std::string ValueList(const std::vector<ValueId>& ids) {
  std::string text;
  for (ValueId id : ids) text += fmt::format("{}%{}", text.empty() ? "" : ", ", id.value());
  return text;
}

struct AttributeText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return fmt::format("\"{}\"", value); }
  std::string operator()(const std::vector<int64_t>& value) const { return fmt::format("[{}]", fmt::join(value, ",")); }
};

}  // namespace

std::string Print(const Attribute& attribute) { return std::visit(AttributeText(), attribute); }

std::string PrintNode(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::string text;
  for (ValueId output : node.outputs)
    text += fmt::format("{}%{}: {}", text.empty() ? "" : ", ", output.value(), TypeText(graph.value(output).type));
  text += fmt::format(" = {}({})", node.op, ValueList(node.inputs));
  if (!node.attributes.empty()) {
    std::string attributes;
    for (const auto& [name, value] : node.attributes)
      attributes += fmt::format("{}{}: {}", attributes.empty() ? "" : ", ", name, Print(value));
    text += " {" + attributes + "}";
  }
  return text + " @" + node.path;
}

std::string Print(const Graph& graph) {
  std::string text = fmt::format("graph {}\n", graph.name());
  for (ValueId id : graph.inputs()) {
    const Value& value = graph.value(id);
    text += fmt::format("input %{} {}: {} {}\n", id.value(), value.name, Name(value.value_class), TypeText(value.type));
  }
  for (size_t i = 0; i < graph.nodes().size(); ++i) text += PrintNode(graph, NodeId(static_cast<int32_t>(i))) + "\n";
  for (const Output& output : graph.outputs()) {
    text += fmt::format("output {} = %{}", output.name, output.value.value());
    if (!output.alias.empty()) text += " -> " + output.alias;
    text += "\n";
  }
  return text;
}

}  // namespace tutti
