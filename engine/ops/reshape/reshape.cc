#include "engine/ops/reshape/reshape.h"

#include "engine/ops/attributes.h"
#include "engine/ops/builder.h"

namespace tutti {
namespace {

using Types = std::span<const TensorType>;

StatusOr<std::vector<TensorType>> InferReshape(const Node& node, Types inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 1));
  TensorType output{inputs[0].dtype, IntsAttribute(node, "dims")};
  if (output.elements() != inputs[0].elements())
    return OpError(node, fmt::format("found {}, expected {} elements for {}", ToString(inputs[0]), output.elements(),
                                     ToString(output)));
  return std::vector<TensorType>{std::move(output)};
}

StatusOr<std::vector<TensorType>> InferFlatten(const Node& node, Types inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 1));
  if (inputs[0].dims.empty()) return OpError(node, "found a scalar, expected at least one dim");
  const int64_t rows = inputs[0].dims[0];
  return std::vector<TensorType>{{inputs[0].dtype, {rows, inputs[0].elements() / rows}}};
}

StatusOr<std::vector<ValueId>> Gradient(const GradientContext& context) {
  const Node& node = *context.node;
  const std::vector<int64_t> dims = context.builder->type(node.inputs[0]).dims;
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx,
                         context.builder->Add1("reshape", node.path, {context.output_gradients[0]}, {{"dims", dims}}));
  return std::vector<ValueId>{dx};
}

OpCost Cost(const Node&, Types inputs, Types) { return {0, 2 * inputs[0].bytes()}; }

}  // namespace

Status RegisterReshape(OpRegistry* ops) {
  TUTTI_RETURN_IF_ERROR(ops->Register({"reshape", InferReshape, Gradient, Cost, {{0, 0}}}));
  return ops->Register({"flatten", InferFlatten, Gradient, Cost, {{0, 0}}});
}

}  // namespace tutti
