#include "engine/ops/dense/dense.h"

#include "engine/ops/attributes.h"
#include "engine/ops/builder.h"

namespace tutti {
namespace {

Status ExpectMatrix(const Node& node, const TensorType& type, std::string_view what) {
  if (type.dtype == DType::kF32 && type.dims.size() == 2) return OkStatus();
  return OpError(node, fmt::format("found {} {}, expected an f32 matrix", what, ToString(type)));
}

Status ExpectSamples(const Node& node, const TensorType& x) {
  if (x.dtype == DType::kF32 && x.dims.size() >= 2) return OkStatus();
  return OpError(node, fmt::format("found x {}, expected f32 of at least two dimensions (rows, ...)", ToString(x)));
}

StatusOr<std::vector<TensorType>> InferDense(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 2, 3));
  TUTTI_RETURN_IF_ERROR(ExpectActivation(node));
  TUTTI_RETURN_IF_ERROR(ExpectSamples(node, inputs[0]));
  TUTTI_RETURN_IF_ERROR(ExpectMatrix(node, inputs[1], "weight"));
  const int64_t units = inputs[1].dims[0];
  if (inputs[1].dims[1] != SampleElements(inputs[0])) {
    return OpError(node, fmt::format("found x {} with {} elements a sample and weight {}, expected weight f32[{},{}]",
                                     ToString(inputs[0]), SampleElements(inputs[0]), ToString(inputs[1]), units,
                                     SampleElements(inputs[0])));
  }
  if (inputs.size() == 3 && inputs[2] != TensorType{DType::kF32, {units}}) {
    return OpError(node, fmt::format("found bias {}, expected f32[{}]", ToString(inputs[2]), units));
  }
  return std::vector<TensorType>{{DType::kF32, {inputs[0].dims[0], units}}};
}

StatusOr<std::vector<TensorType>> InferGradInput(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 2));
  TUTTI_RETURN_IF_ERROR(ExpectMatrix(node, inputs[0], "dy"));
  TUTTI_RETURN_IF_ERROR(ExpectMatrix(node, inputs[1], "weight"));
  const TensorType x{DType::kF32, IntsAttribute(node, "input_dims")};
  if (inputs[0].dims[1] != inputs[1].dims[0] || x.dims.empty() || x.dims[0] != inputs[0].dims[0] ||
      SampleElements(x) != inputs[1].dims[1]) {
    return OpError(node, fmt::format("found dy {}, weight {} and input {}: they do not belong together",
                                     ToString(inputs[0]), ToString(inputs[1]), ToString(x)));
  }
  return std::vector<TensorType>{x};
}

StatusOr<std::vector<TensorType>> InferGradWeights(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 2));
  TUTTI_RETURN_IF_ERROR(ExpectSamples(node, inputs[0]));
  TUTTI_RETURN_IF_ERROR(ExpectMatrix(node, inputs[1], "dy"));
  if (inputs[0].dims[0] != inputs[1].dims[0]) {
    return OpError(node,
                   fmt::format("found x {} and dy {}, expected equal rows", ToString(inputs[0]), ToString(inputs[1])));
  }
  const int64_t units = inputs[1].dims[1];
  std::vector<TensorType> outputs{{DType::kF32, {units, SampleElements(inputs[0])}}};
  if (BoolAttributeOr(node, "has_bias", false)) outputs.push_back({DType::kF32, {units}});
  return outputs;
}

StatusOr<std::vector<ValueId>> DenseGradient(const GradientContext& context) {
  GraphBuilder& builder = *context.builder;
  const Node& node = *context.node;
  const ValueId x = node.inputs[0], w = node.inputs[1];
  const bool has_bias = node.inputs.size() == 3;
  ValueId dy = context.output_gradients[0];
  if (HasRelu(node)) {
    TUTTI_ASSIGN_OR_RETURN(dy, builder.Add1("relu_grad", node.path, {dy, node.outputs[0]}));
  }
  TUTTI_ASSIGN_OR_RETURN(const std::vector<ValueId> dw,
                         builder.Add("dense_grad_weights", node.path, {x, dy}, {{"has_bias", has_bias}}));
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx,
                         builder.Add1("dense_grad_input", node.path, {dy, w}, {{"input_dims", builder.type(x).dims}}));
  std::vector<ValueId> gradients{dx, dw[0]};
  if (has_bias) gradients.push_back(dw[1]);
  return gradients;
}

// 2 N U K for the product, whichever of the three it is.
OpCost ProductCost(double rows, double units, double width, std::span<const TensorType> inputs,
                   std::span<const TensorType> outputs) {
  return {2 * rows * units * width, TotalBytes(inputs, outputs)};
}

}  // namespace

Status RegisterDense(OpRegistry* ops) {
  OpDef forward;
  forward.name = "dense";
  forward.infer = InferDense;
  forward.gradient = DenseGradient;
  forward.cost = [](const Node&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return ProductCost(in[0].dims[0], in[1].dims[0], in[1].dims[1], in, out);
  };
  TUTTI_RETURN_IF_ERROR(ops->Register(std::move(forward)));

  OpDef grad_input;
  grad_input.name = "dense_grad_input";
  grad_input.infer = InferGradInput;
  grad_input.cost = [](const Node&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return ProductCost(in[0].dims[0], in[1].dims[0], in[1].dims[1], in, out);
  };
  TUTTI_RETURN_IF_ERROR(ops->Register(std::move(grad_input)));

  OpDef grad_weights;
  grad_weights.name = "dense_grad_weights";
  grad_weights.infer = InferGradWeights;
  grad_weights.cost = [](const Node&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return ProductCost(in[1].dims[0], out[0].dims[0], out[0].dims[1], in, out);
  };
  return ops->Register(std::move(grad_weights));
}

}  // namespace tutti
