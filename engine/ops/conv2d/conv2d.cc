#include "engine/ops/conv2d/conv2d.h"

#include "engine/ops/attributes.h"
#include "engine/ops/builder.h"

namespace tutti {
namespace {

struct Sliding {
  int64_t stride, padding;
};

StatusOr<Sliding> SlidingOf(const Node& node) {
  const Sliding sliding{IntAttributeOr(node, "stride", 1), IntAttributeOr(node, "padding", 0)};
  if (sliding.stride < 1) return OpError(node, fmt::format("found stride {}, expected at least 1", sliding.stride));
  if (sliding.padding < 0) return OpError(node, fmt::format("found padding {}, expected at least 0", sliding.padding));
  return sliding;
}

Status ExpectImages(const Node& node, const TensorType& type, std::string_view what) {
  if (type.dtype == DType::kF32 && type.dims.size() == 4) return OkStatus();
  return OpError(node, fmt::format("found {} {}, expected f32 of four dimensions", what, ToString(type)));
}

// The type of y for x and weight dims; INVALID_ARGUMENT when they do not fit.
StatusOr<TensorType> OutputType(const Node& node, const TensorType& x, const std::vector<int64_t>& w) {
  TUTTI_ASSIGN_OR_RETURN(const Sliding sliding, SlidingOf(node));
  if (x.dims[1] != w[1]) {
    return OpError(
        node, fmt::format("found x {} with {} channels, expected {} (the weight's)", ToString(x), x.dims[1], w[1]));
  }
  const int64_t height = WindowOutputs(x.dims[2], w[2], sliding.stride, sliding.padding);
  const int64_t width = WindowOutputs(x.dims[3], w[3], sliding.stride, sliding.padding);
  if (height < 1 || width < 1) {
    return OpError(node, fmt::format("found kernel {}x{} over {} with padding {}: it does not fit", w[2], w[3],
                                     ToString(x), sliding.padding));
  }
  return TensorType{DType::kF32, {x.dims[0], w[0], height, width}};
}

StatusOr<std::vector<TensorType>> InferConv2d(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 2, 3));
  TUTTI_RETURN_IF_ERROR(ExpectActivation(node));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[0], "x"));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[1], "weight"));
  TUTTI_ASSIGN_OR_RETURN(TensorType y, OutputType(node, inputs[0], inputs[1].dims));
  if (inputs.size() == 3 && inputs[2] != TensorType{DType::kF32, {y.dims[1]}}) {
    return OpError(node, fmt::format("found bias {}, expected f32[{}]", ToString(inputs[2]), y.dims[1]));
  }
  return std::vector<TensorType>{std::move(y)};
}

StatusOr<std::vector<TensorType>> InferGradInput(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 2));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[0], "dy"));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[1], "weight"));
  const TensorType x{DType::kF32, IntsAttribute(node, "input_dims")};
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, x, "input_dims"));
  TUTTI_ASSIGN_OR_RETURN(const TensorType y, OutputType(node, x, inputs[1].dims));
  if (y != inputs[0]) return OpError(node, fmt::format("found dy {}, expected {}", ToString(inputs[0]), ToString(y)));
  return std::vector<TensorType>{x};
}

StatusOr<std::vector<TensorType>> InferGradWeights(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 2));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[0], "x"));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[1], "dy"));
  const std::vector<int64_t>& kernel = IntsAttribute(node, "kernel");
  if (kernel.size() != 2) return OpError(node, "attribute kernel: expected [height, width]");
  const TensorType w{DType::kF32, {inputs[1].dims[1], inputs[0].dims[1], kernel[0], kernel[1]}};
  TUTTI_ASSIGN_OR_RETURN(const TensorType y, OutputType(node, inputs[0], w.dims));
  if (y != inputs[1]) return OpError(node, fmt::format("found dy {}, expected {}", ToString(inputs[1]), ToString(y)));
  std::vector<TensorType> outputs{w};
  if (BoolAttributeOr(node, "has_bias", false)) outputs.push_back({DType::kF32, {w.dims[0]}});
  return outputs;
}

StatusOr<std::vector<ValueId>> Conv2dGradient(const GradientContext& context) {
  GraphBuilder& builder = *context.builder;
  const Node& node = *context.node;
  const ValueId x = node.inputs[0], w = node.inputs[1];
  const bool has_bias = node.inputs.size() == 3;
  const Attributes sliding{{"stride", IntAttributeOr(node, "stride", 1)},
                           {"padding", IntAttributeOr(node, "padding", 0)}};
  ValueId dy = context.output_gradients[0];
  if (HasRelu(node)) {
    TUTTI_ASSIGN_OR_RETURN(dy, builder.Add1("relu_grad", node.path, {dy, node.outputs[0]}));
  }
  Attributes weights = sliding;
  weights["kernel"] = std::vector<int64_t>{builder.type(w).dims[2], builder.type(w).dims[3]};
  weights["has_bias"] = has_bias;
  TUTTI_ASSIGN_OR_RETURN(const std::vector<ValueId> dw,
                         builder.Add("conv2d_grad_weights", node.path, {x, dy}, std::move(weights)));
  Attributes input = sliding;
  input["input_dims"] = builder.type(x).dims;
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx, builder.Add1("conv2d_grad_input", node.path, {dy, w}, std::move(input)));
  std::vector<ValueId> gradients{dx, dw[0]};
  if (has_bias) gradients.push_back(dw[1]);
  return gradients;
}

// 2 N O OH OW C KH KW for the product, whichever of the three it is.
OpCost ProductCost(const TensorType& y, const TensorType& w, std::span<const TensorType> inputs,
                   std::span<const TensorType> outputs) {
  return {2.0 * static_cast<double>(y.elements()) * static_cast<double>(SampleElements(w)),
          TotalBytes(inputs, outputs)};
}

}  // namespace

Status RegisterConv2d(OpRegistry* ops) {
  OpDef forward;
  forward.name = "conv2d";
  forward.infer = InferConv2d;
  forward.gradient = Conv2dGradient;
  forward.cost = [](const Node&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return ProductCost(out[0], in[1], in, out);
  };
  TUTTI_RETURN_IF_ERROR(ops->Register(std::move(forward)));

  OpDef grad_input;
  grad_input.name = "conv2d_grad_input";
  grad_input.infer = InferGradInput;
  grad_input.cost = [](const Node&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return ProductCost(in[0], in[1], in, out);
  };
  TUTTI_RETURN_IF_ERROR(ops->Register(std::move(grad_input)));

  OpDef grad_weights;
  grad_weights.name = "conv2d_grad_weights";
  grad_weights.infer = InferGradWeights;
  grad_weights.cost = [](const Node&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return ProductCost(in[1], out[0], in, out);
  };
  return ops->Register(std::move(grad_weights));
}

}  // namespace tutti
