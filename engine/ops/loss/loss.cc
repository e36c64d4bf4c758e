#include "engine/ops/loss/loss.h"

#include "engine/ops/builder.h"

namespace tutti {
namespace {

using Types = std::span<const TensorType>;

Status ExpectType(const Node& node, Types inputs, size_t i, const TensorType& expected) {
  if (inputs[i] == expected) return OkStatus();
  return OpError(node, fmt::format("found input {} {}, expected {}", i, ToString(inputs[i]), ToString(expected)));
}

StatusOr<std::vector<TensorType>> Infer(const Node& node, Types inputs) {
  TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), 4));
  const TensorType& x = inputs[0];
  if (x.dtype != DType::kF32 || x.dims.size() != 2)
    return OpError(node, fmt::format("found {}, expected f32 (rows, classes)", ToString(x)));
  const TensorType scalar{DType::kF32, {}};
  if (node.op == "softmax_cross_entropy" || inputs[1].dtype == DType::kI32) {
    TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 1, {DType::kI32, {x.dims[0]}}));
  } else {
    TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 1, x));
  }
  TUTTI_RETURN_IF_ERROR(ExpectType(node, inputs, 2, {DType::kF32, {x.dims[0]}}));
  if (inputs[3].dtype != DType::kF32 || inputs[3].elements() != 1)
    return OpError(node, fmt::format("found inverse_valid {}, expected a scalar f32", ToString(inputs[3])));
  return std::vector<TensorType>{scalar, scalar, x};
}

StatusOr<std::vector<ValueId>> Gradient(const GradientContext& context) {
  return std::vector<ValueId>{context.node->outputs[2], kNoValue, kNoValue, kNoValue};
}

OpCost Cost(const Node& node, Types inputs, Types) {
  const double per_element = node.op == "softmax_cross_entropy" ? 25 : 6;
  return {per_element * static_cast<double>(inputs[0].elements()), 2 * inputs[0].bytes()};
}

}  // namespace

Status RegisterLoss(OpRegistry* ops) {
  for (const char* name : {"softmax_cross_entropy", "mean_squared_error"}) {
    OpDef def{name, Infer, Gradient, Cost, {{2, 0}}};
    def.loss = true;
    TUTTI_RETURN_IF_ERROR(ops->Register(std::move(def)));
  }
  return OkStatus();
}

}  // namespace tutti
