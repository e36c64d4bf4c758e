#include "engine/ops/layer_norm/layer_norm.h"

#include "engine/ops/builder.h"

namespace tutti {
namespace {

using Types = std::span<const TensorType>;

Status ExpectType(const Node& node, Types inputs, size_t i, const TensorType& expected) {
  if (inputs[i] == expected) return OkStatus();
  return OpError(node, fmt::format("found input {} {}, expected {}", i, ToString(inputs[i]), ToString(expected)));
}

// The type of scale and shift for an input x.
StatusOr<TensorType> SampleType(const Node& node, const TensorType& x) {
  if (x.dtype != DType::kF32 || x.dims.size() < 2)
    return OpError(node, fmt::format("found {}, expected f32 with at least two dims", ToString(x)));
  return TensorType{DType::kF32, {x.dims.begin() + 1, x.dims.end()}};
}

StatusOr<std::vector<TensorType>> Infer(const Node& node, Types inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 3));
  TUTTI_ASSIGN_OR_RETURN(const TensorType sample, SampleType(node, inputs[0]));
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 1, sample));
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 2, sample));
  if (!(DoubleAttribute(node, "epsilon") > 0)) return OpError(node, "found an epsilon that is not above zero");
  const TensorType rows{DType::kF32, {inputs[0].dims[0]}};
  return std::vector<TensorType>{inputs[0], rows, rows};
}

StatusOr<std::vector<TensorType>> InferGrad(const Node& node, Types inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 5));
  TUTTI_ASSIGN_OR_RETURN(const TensorType sample, SampleType(node, inputs[1]));
  const TensorType rows{DType::kF32, {inputs[1].dims[0]}};
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 0, inputs[1]));
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 2, sample));
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 3, rows));
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 4, rows));
  return std::vector<TensorType>{inputs[1], sample, sample};
}

StatusOr<std::vector<ValueId>> Gradient(const GradientContext& context) {
  const Node& node = *context.node;
  if (context.output_gradients[0] == kNoValue || context.output_gradients[1] != kNoValue ||
      context.output_gradients[2] != kNoValue)
    return OpError(node, "only y has a gradient; mean and inverse_deviation have none");
  return context.builder->Add(
      "layer_norm_grad", node.path,
      {context.output_gradients[0], node.inputs[0], node.inputs[1], node.outputs[1], node.outputs[2]});
}

OpCost Cost(const Node&, Types inputs, Types) {
  return {8.0 * static_cast<double>(inputs[0].elements()), 2 * inputs[0].bytes()};
}
OpCost CostGrad(const Node&, Types inputs, Types) {
  return {14.0 * static_cast<double>(inputs[0].elements()), 3 * inputs[0].bytes()};
}

}  // namespace

Status RegisterLayerNorm(OpRegistry* ops) {
  TUTTI_RETURN_IF_ERROR(ops->Register({"layer_norm", Infer, Gradient, Cost, {{0, 0}}}));
  return ops->Register({"layer_norm_grad", InferGrad, nullptr, CostGrad, {}});
}

}  // namespace tutti
