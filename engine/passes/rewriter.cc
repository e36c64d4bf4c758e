#include "engine/passes/rewriter.h"

#include "base/check.h"

namespace tutti {
namespace {

constexpr ValueId kUnknown{-1};

}  // namespace

Rewriter::Rewriter(const Graph& old) : old_(&old), fresh_(old.name()), map_(old.values().size(), kUnknown) {
  for (ValueId id : old.inputs()) {
    const Value& value = old.value(id);
    map_[static_cast<size_t>(id.value())] = fresh_.AddInput(value.name, value.value_class, value.type);
  }
}

void Rewriter::Copy(const Node& node) { Emit(node.op, node.path, node.inputs, node.outputs, node.attributes); }

void Rewriter::Emit(const std::string& op, const std::string& path, const std::vector<ValueId>& inputs,
                    const std::vector<ValueId>& outputs, const Attributes& attributes) {
  std::vector<ValueId> new_inputs;
  for (ValueId input : inputs) new_inputs.push_back(Map(input));
  std::vector<TensorType> types;
  for (ValueId output : outputs) types.push_back(old_->value(output).type);
  const std::vector<ValueId> made = fresh_.AddNode(op, path, std::move(new_inputs), attributes, std::move(types));
  for (size_t k = 0; k < outputs.size(); ++k) map_[static_cast<size_t>(outputs[k].value())] = made[k];
}

ValueId Rewriter::Map(ValueId old) const {
  const ValueId mapped = map_[static_cast<size_t>(old.value())];
  TUTTI_CHECK(mapped != kUnknown, "graph {}: a pass reads %{} before it placed its node", old_->name(), old.value());
  return mapped;
}

Graph Rewriter::Finish() {
  for (const Output& output : old_->outputs()) fresh_.AddOutput(output.name, Map(output.value), output.alias);
  return std::move(fresh_);
}

std::vector<int> CountReaders(const Graph& graph) {
  std::vector<int> readers(graph.values().size(), 0);
  for (const Node& node : graph.nodes())
    for (ValueId input : node.inputs) ++readers[static_cast<size_t>(input.value())];
  for (const Output& output : graph.outputs()) ++readers[static_cast<size_t>(output.value.value())];
  return readers;
}

const Node* Producer(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  return producer == kNoNode ? nullptr : &graph.node(producer);
}

}  // namespace tutti
