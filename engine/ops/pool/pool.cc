#include "engine/ops/pool/pool.h"

#include <algorithm>

#include "engine/ops/attributes.h"
#include "engine/ops/builder.h"

namespace tutti {
namespace {

constexpr int64_t kLargestMaxWindow = 15;  // 15 * 15 winners fit into u8

Status ExpectImages(const Node& node, const TensorType& x) {
  if (x.dtype == DType::kF32 && x.dims.size() == 4) return OkStatus();
  return OpError(node, fmt::format("found x {}, expected f32 of four dimensions (N, C, H, W)", ToString(x)));
}

// The type of y for x.
StatusOr<TensorType> PooledType(const Node& node, const TensorType& x) {
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, x));
  const int64_t size = IntAttribute(node, "size");
  const int64_t stride = IntAttributeOr(node, "stride", size);
  const int64_t padding = IntAttributeOr(node, "padding", 0);
  if (size < 1) return OpError(node, fmt::format("found size {}, expected at least 1", size));
  if (stride < 1) return OpError(node, fmt::format("found stride {}, expected at least 1", stride));
  if (padding < 0 || 2 * padding > size) {
    return OpError(node, fmt::format("found padding {}, expected 0 to {} (half the size)", padding, size / 2));
  }
  const int64_t height = WindowOutputs(x.dims[2], size, stride, padding);
  const int64_t width = WindowOutputs(x.dims[3], size, stride, padding);
  if (height < 1 || width < 1) {
    return OpError(node, fmt::format("found window {}x{} over {} with padding {}: it does not fit", size, size,
                                     ToString(x), padding));
  }
  return TensorType{DType::kF32, {x.dims[0], x.dims[1], height, width}};
}

StatusOr<std::vector<TensorType>> InferMaxPool(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 1));
  TUTTI_ASSIGN_OR_RETURN(const TensorType y, PooledType(node, inputs[0]));
  if (IntAttribute(node, "size") > kLargestMaxWindow) {
    return OpError(node,
                   fmt::format("found size {}, expected at most {}", IntAttribute(node, "size"), kLargestMaxWindow));
  }
  return std::vector<TensorType>{y, {DType::kU8, y.dims}};
}

StatusOr<std::vector<TensorType>> InferAvgPool(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 1));
  TUTTI_ASSIGN_OR_RETURN(TensorType y, PooledType(node, inputs[0]));
  return std::vector<TensorType>{std::move(y)};
}

// Gradients: inputs[0] is dy (and inputs[1] the winners), attribute input_dims gives dx.
StatusOr<std::vector<TensorType>> InferPoolGrad(const Node& node, std::span<const TensorType> inputs) {
  const bool is_max = node.op == "max_pool_grad";
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), is_max ? 2 : 1));
  const TensorType x{DType::kF32, IntsAttribute(node, "input_dims")};
  TUTTI_ASSIGN_OR_RETURN(const TensorType y, PooledType(node, x));
  if (inputs[0] != y) return OpError(node, fmt::format("found dy {}, expected {}", ToString(inputs[0]), ToString(y)));
  if (is_max && inputs[1] != TensorType{DType::kU8, y.dims}) {
    return OpError(node, fmt::format("found winners {}, expected u8 of dy's shape", ToString(inputs[1])));
  }
  return std::vector<TensorType>{x};
}

StatusOr<std::vector<TensorType>> InferGlobalAvgPool(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 1));
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, inputs[0]));
  return std::vector<TensorType>{{DType::kF32, {inputs[0].dims[0], inputs[0].dims[1]}}};
}

StatusOr<std::vector<TensorType>> InferGlobalAvgPoolGrad(const Node& node, std::span<const TensorType> inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 1));
  const TensorType x{DType::kF32, IntsAttribute(node, "input_dims")};
  TUTTI_RETURN_IF_ERROR(ExpectImages(node, x));
  if (inputs[0] != TensorType{DType::kF32, {x.dims[0], x.dims[1]}}) {
    return OpError(node, fmt::format("found dy {}, expected f32[{},{}]", ToString(inputs[0]), x.dims[0], x.dims[1]));
  }
  return std::vector<TensorType>{x};
}

// The forward op's window and x's dimensions, for the gradient op.
Attributes GradientAttributes(const GradientContext& context) {
  Attributes attributes = context.node->attributes;
  attributes["input_dims"] = context.builder->type(context.node->inputs[0]).dims;
  return attributes;
}

StatusOr<std::vector<ValueId>> MaxPoolGradient(const GradientContext& context) {
  const Node& node = *context.node;
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx, context.builder->Add1("max_pool_grad", node.path,
                                                                 {context.output_gradients[0], node.outputs[1]},
                                                                 GradientAttributes(context)));
  return std::vector<ValueId>{dx};
}

// For ops whose gradient op "<op>_grad" needs dy only.
StatusOr<std::vector<ValueId>> MeanGradient(const GradientContext& context) {
  const Node& node = *context.node;
  TUTTI_ASSIGN_OR_RETURN(
      const ValueId dx,
      context.builder->Add1(node.op + "_grad", node.path, {context.output_gradients[0]}, GradientAttributes(context)));
  return std::vector<ValueId>{dx};
}

// One comparison or addition for each element of each window.
OpCost WindowCost(const Node& node, std::span<const TensorType> inputs, std::span<const TensorType> outputs) {
  const TensorType& pooled = inputs[0].elements() < outputs[0].elements() ? inputs[0] : outputs[0];
  const double size = static_cast<double>(IntAttribute(node, "size"));
  return {static_cast<double>(pooled.elements()) * size * size, TotalBytes(inputs, outputs)};
}

OpCost GlobalCost(const Node&, std::span<const TensorType> inputs, std::span<const TensorType> outputs) {
  return {static_cast<double>(std::max(inputs[0].elements(), outputs[0].elements())), TotalBytes(inputs, outputs)};
}

}  // namespace

Status RegisterPool(OpRegistry* ops) {
  const auto add = [ops](std::string name, auto infer, auto cost, auto gradient) {
    OpDef def;
    def.name = std::move(name);
    def.infer = infer;
    def.cost = cost;
    def.gradient = gradient;
    return ops->Register(std::move(def));
  };
  TUTTI_RETURN_IF_ERROR(add("max_pool", InferMaxPool, WindowCost, MaxPoolGradient));
  TUTTI_RETURN_IF_ERROR(add("max_pool_grad", InferPoolGrad, WindowCost, nullptr));
  TUTTI_RETURN_IF_ERROR(add("avg_pool", InferAvgPool, WindowCost, MeanGradient));
  TUTTI_RETURN_IF_ERROR(add("avg_pool_grad", InferPoolGrad, WindowCost, nullptr));
  TUTTI_RETURN_IF_ERROR(add("global_avg_pool", InferGlobalAvgPool, GlobalCost, MeanGradient));
  return add("global_avg_pool_grad", InferGlobalAvgPoolGrad, GlobalCost, nullptr);
}

}  // namespace tutti
