#include "engine/ops/batch_norm/batch_norm.h"

#include "engine/ops/attributes.h"
#include "engine/ops/builder.h"

namespace tutti {
namespace {

Status ExpectFeatures(const Node& node, const TensorType& x) {
  if (x.dtype == DType::kF32 && (x.dims.size() == 2 || x.dims.size() == 4)) return OkStatus();
  return OpError(node, fmt::format("found x {}, expected f32 (N, C) or (N, C, H, W)", ToString(x)));
}

// inputs[first..] are vectors of x's channels.
Status ExpectChannels(const Node& node, const TensorType& x, std::span<const TensorType> inputs, size_t first) {
  const TensorType expected{DType::kF32, {x.dims[1]}};
  for (size_t i = first; i < inputs.size(); ++i) {
    if (inputs[i] != expected) {
      return OpError(node,
                     fmt::format("found {} as input {}, expected {}", ToString(inputs[i]), i, ToString(expected)));
    }
  }
  return OkStatus();
}

Status ExpectEpsilon(const Node& node) {
  const double epsilon = DoubleAttribute(node, "epsilon");
  if (epsilon > 0) return OkStatus();
  return OpError(node, fmt::format("found epsilon {}, expected more than 0", epsilon));
}

StatusOr<std::vector<TensorType>> InferForward(const Node& node, std::span<const TensorType> inputs) {
  const bool inference = node.op == "batch_norm_inference";
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), inference ? 5 : 3));
  TUTTI_RETURN_IF_ERROR(ExpectEpsilon(node));
  TUTTI_RETURN_IF_ERROR(ExpectFeatures(node, inputs[0]));
  TUTTI_RETURN_IF_ERROR(ExpectChannels(node, inputs[0], inputs, 1));
  if (inference) return std::vector<TensorType>{inputs[0]};
  return std::vector<TensorType>{inputs[0], inputs[1], inputs[1]};
}

StatusOr<std::vector<TensorType>> InferGrad(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 5));
  TUTTI_RETURN_IF_ERROR(ExpectEpsilon(node));
  TUTTI_RETURN_IF_ERROR(ExpectFeatures(node, inputs[1]));
  TUTTI_RETURN_IF_ERROR(ExpectChannels(node, inputs[1], inputs, 2));
  if (inputs[0] != inputs[1]) {
    return OpError(node, fmt::format("found dy {}, expected {}", ToString(inputs[0]), ToString(inputs[1])));
  }
  return std::vector<TensorType>{inputs[1], inputs[2], inputs[2]};
}

StatusOr<std::vector<ValueId>> Gradient(const GradientContext& context) {
  const Node& node = *context.node;
  return context.builder->Add(
      "batch_norm_grad", node.path,
      {context.output_gradients[0], node.inputs[0], node.inputs[1], node.outputs[1], node.outputs[2]}, node.attributes);
}

// Operations an element: 5 forward (mean, two for the variance, scale and shift), 8 backward, 2 in evaluation.
template <int kPerElement>
OpCost ElementCost(const Node&, std::span<const TensorType> inputs, std::span<const TensorType> outputs) {
  return {kPerElement * static_cast<double>(outputs[0].elements()), TotalBytes(inputs, outputs)};
}

}  // namespace

Status RegisterBatchNorm(OpRegistry* ops) {
  OpDef forward;
  forward.name = "batch_norm";
  forward.infer = InferForward;
  forward.gradient = Gradient;
  forward.cost = ElementCost<5>;
  TUTTI_RETURN_IF_ERROR(ops->Register(std::move(forward)));

  OpDef grad;
  grad.name = "batch_norm_grad";
  grad.infer = InferGrad;
  grad.cost = ElementCost<8>;
  grad.aliases = {{0, 0}};
  TUTTI_RETURN_IF_ERROR(ops->Register(std::move(grad)));

  OpDef inference;
  inference.name = "batch_norm_inference";
  inference.infer = InferForward;
  inference.cost = ElementCost<2>;
  inference.aliases = {{0, 0}};
  return ops->Register(std::move(inference));
}

}  // namespace tutti
