#include "engine/passes/autodiff.h"

#include <algorithm>
#include <set>

#include "engine/graph/verify.h"
#include "engine/ops/builder.h"
#include "engine/passes/fusion.h"

namespace tutti {
namespace {

class Differentiator {
 public:
  Differentiator(const Graph& forward, const OpRegistry& ops)
      : builder_(forward, ops), forward_nodes_(forward.nodes().size()), gradients_(forward.values().size(), kNoValue) {
    MarkLeadingToParameters(forward);
  }

  StatusOr<Graph> Run(std::string_view loss_output) {
    TUTTI_ASSIGN_OR_RETURN(const NodeId loss, FindLoss(loss_output));
    for (size_t n = forward_nodes_; n-- > 0;) {
      const NodeId id(static_cast<int32_t>(n));
      TUTTI_RETURN_IF_ERROR(Visit(id, id == loss));
    }
    TUTTI_RETURN_IF_ERROR(AddOutputs());
    return EliminateDeadCode(builder_.Take());
  }

 private:
  // needs_: the value depends on a parameter, so its gradient is worth having.
  void MarkLeadingToParameters(const Graph& forward) {
    needs_.resize(forward.values().size(), false);
    for (ValueId id : forward.inputs()) needs_[Index(id)] = forward.value(id).value_class == ValueClass::kParameter;
    for (const Node& node : forward.nodes()) {
      const bool any =
          std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return needs_[Index(id)]; });
      for (ValueId output : node.outputs) needs_[Index(output)] = any;
    }
  }

  StatusOr<NodeId> FindLoss(std::string_view loss_output) const {
    for (const Output& output : builder_.graph().outputs()) {
      if (output.name != loss_output) continue;
      const NodeId id = builder_.graph().value(output.value).producer;
      const Node& node = builder_.graph().node(id);
      TUTTI_ASSIGN_OR_RETURN(const OpDef* def, builder_.ops().Find(node.op));
      if (!def->loss || node.outputs[0] != output.value)
        return InvalidArgument("output {} is made by {} {}, expected the first output of a loss", loss_output,
                               node.path, node.op);
      return id;
    }
    return InvalidArgument("graph {} has no output {} to differentiate", builder_.graph().name(), loss_output);
  }

  Status Visit(NodeId id, bool is_loss) {
    const Node node = builder_.graph().node(id);  // a copy: adding nodes moves the original
    std::vector<ValueId> output_gradients(node.outputs.size(), kNoValue);
    bool reached = is_loss;
    if (!is_loss) {
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        output_gradients[k] = gradients_[Index(node.outputs[k])];
        reached |= output_gradients[k] != kNoValue;
      }
    }
    if (!reached || !needs_[Index(node.outputs[0])]) return OkStatus();
    TUTTI_ASSIGN_OR_RETURN(const OpDef* def, builder_.ops().Find(node.op));
    if (!def->gradient) return InvalidArgument("{} {}: has no gradient", node.path, node.op);
    TUTTI_ASSIGN_OR_RETURN(const std::vector<ValueId> gradients, def->gradient({&builder_, &node, output_gradients}));
    if (gradients.size() != node.inputs.size())
      return Internal("{} {}: the gradient rule gives {} values for {} inputs", node.path, node.op, gradients.size(),
                      node.inputs.size());
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i] != kNoValue && needs_[Index(node.inputs[i])])
        TUTTI_RETURN_IF_ERROR(Accumulate(node, node.inputs[i], gradients[i]));
    return OkStatus();
  }

  // Readers of a value add to its gradient in the order of the backward walk.
  Status Accumulate(const Node& reader, ValueId value, ValueId gradient) {
    if (builder_.type(value) != builder_.type(gradient))
      return Internal("{} {}: gradient of %{} is {}, expected {}", reader.path, reader.op, value.value(),
                      ToString(builder_.type(gradient)), ToString(builder_.type(value)));
    ValueId& sum = gradients_[Index(value)];
    if (sum == kNoValue) {
      sum = gradient;
      return OkStatus();
    }
    TUTTI_ASSIGN_OR_RETURN(sum, builder_.Add1("add", reader.path, {sum, gradient}));
    return OkStatus();
  }

  Status AddOutputs() {
    std::set<ValueId> taken;  // a value is one output at most: a second one is a copy
    for (const Output& output : builder_.graph().outputs()) taken.insert(output.value);
    const std::vector<ValueId> inputs(builder_.graph().inputs().begin(), builder_.graph().inputs().end());
    for (ValueId id : inputs) {
      const Value value = builder_.graph().value(id);
      if (value.value_class != ValueClass::kParameter) continue;
      ValueId gradient = gradients_[Index(id)];
      if (gradient == kNoValue) return InvalidArgument("parameter {} does not reach the loss", value.name);
      if (builder_.graph().value(gradient).producer == kNoNode || !taken.insert(gradient).second) {
        TUTTI_ASSIGN_OR_RETURN(gradient, builder_.Add1("reshape", value.name, {gradient}, {{"dims", value.type.dims}}));
        taken.insert(gradient);
      }
      builder_.AddOutput(std::string(kGradientPrefix) + value.name, gradient);
    }
    return OkStatus();
  }

  static size_t Index(ValueId id) { return static_cast<size_t>(id.value()); }

  GraphBuilder builder_;
  size_t forward_nodes_;
  std::vector<ValueId> gradients_;  // of each forward value, so far
  std::vector<bool> needs_;
};

}  // namespace

StatusOr<Graph> Differentiate(const Graph& forward, std::string_view loss_output, const OpRegistry& ops) {
  TUTTI_RETURN_IF_ERROR(Verify(forward));
  return Differentiator(forward, ops).Run(loss_output);
}

}  // namespace tutti
