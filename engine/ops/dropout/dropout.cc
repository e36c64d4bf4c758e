#include "engine/ops/dropout/dropout.h"

#include "engine/ops/builder.h"

namespace tutti {
namespace {

using Types = std::span<const TensorType>;

StatusOr<std::vector<TensorType>> Infer(const Node& node, Types inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 4));
  const double rate = DoubleAttribute(node, "rate");
  if (!(rate >= 0 && rate < 1)) return OpError(node, fmt::format("found rate {}, expected 0 <= rate < 1", rate));
  if (StringAttribute(node, "key").empty()) return OpError(node, "found an empty key, expected the layer's path");
  if (inputs[0].dtype != DType::kF32 || inputs[0].dims.empty())
    return OpError(node, fmt::format("found {}, expected f32 rows", ToString(inputs[0])));
  const DType expected[] = {DType::kU64, DType::kI64, DType::kI64};
  for (size_t i = 1; i < 4; ++i)
    if (inputs[i].dtype != expected[i - 1] || inputs[i].elements() != 1)
      return OpError(
          node, fmt::format("found input {} {}, expected a scalar {}", i, ToString(inputs[i]), Name(expected[i - 1])));
  return std::vector<TensorType>{inputs[0]};
}

StatusOr<std::vector<ValueId>> Gradient(const GradientContext& context) {
  const Node& node = *context.node;
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx, context.builder->Add1("dropout", node.path,
                                                                 {context.output_gradients[0], node.inputs[1],
                                                                  node.inputs[2], node.inputs[3]},
                                                                 node.attributes));
  return std::vector<ValueId>{dx, kNoValue, kNoValue, kNoValue};
}

// Ten rounds of Philox, two wide products each, for four elements.
OpCost Cost(const Node&, Types inputs, Types) {
  return {20.0 * static_cast<double>(inputs[0].elements()), 2 * inputs[0].bytes()};
}

}  // namespace

Status RegisterDropout(OpRegistry* ops) { return ops->Register({"dropout", Infer, Gradient, Cost, {{0, 0}}}); }

}  // namespace tutti
