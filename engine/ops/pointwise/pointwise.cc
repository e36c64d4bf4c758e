#include "engine/ops/pointwise/pointwise.h"

#include "engine/ops/builder.h"
#include "engine/ops/pointwise/program.h"

namespace tutti {
namespace {

using Types = std::span<const TensorType>;

StatusOr<std::vector<TensorType>> InferPointwise(const Node& node, Types inputs) {
  TUTTI_ASSIGN_OR_RETURN(const PointwiseProgram program, ProgramOf(node));
  if (node.op != "pointwise")
    TUTTI_RETURN_IF_ERROR(ExpectInputs(node, inputs.size(), static_cast<size_t>(Arity(program.code[0].op))));
  for (const TensorType& type : inputs) {
    if (type.dtype != DType::kF32) return OpError(node, fmt::format("found an input {}, expected f32", ToString(type)));
    if (type.dims != inputs[0].dims)
      return OpError(node,
                     fmt::format("found inputs {} and {}, expected equal shapes", ToString(inputs[0]), ToString(type)));
  }
  return std::vector<TensorType>{inputs[0]};
}

OpCost CostPointwise(const Node& node, Types inputs, Types outputs) {
  const StatusOr<PointwiseProgram> program = ProgramOf(node);
  OpCost cost;
  if (program.ok())
    for (const PointwiseInstruction& instruction : program->code)
      cost.flops += Flops(instruction.op) * static_cast<double>(outputs[0].elements());
  for (const TensorType& type : inputs) cost.bytes += type.bytes();
  cost.bytes += outputs[0].bytes();
  return cost;
}

using Gradients = StatusOr<std::vector<ValueId>>;

// dx = <op>_grad(dy, y) or <op>_grad(dy, x).
Gradients UnaryGradient(const GradientContext& context, bool of_output) {
  const Node& node = *context.node;
  const ValueId seen = of_output ? node.outputs[0] : node.inputs[0];
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx,
                         context.builder->Add1(node.op + "_grad", node.path, {context.output_gradients[0], seen}));
  return std::vector<ValueId>{dx};
}
Gradients GradientFromOutput(const GradientContext& context) { return UnaryGradient(context, true); }
Gradients GradientFromInput(const GradientContext& context) { return UnaryGradient(context, false); }

Gradients AddGradient(const GradientContext& context) {
  return std::vector<ValueId>{context.output_gradients[0], context.output_gradients[0]};
}

Gradients MulGradient(const GradientContext& context) {
  const Node& node = *context.node;
  const ValueId dy = context.output_gradients[0];
  TUTTI_ASSIGN_OR_RETURN(const ValueId da, context.builder->Add1("mul", node.path, {dy, node.inputs[1]}));
  TUTTI_ASSIGN_OR_RETURN(const ValueId db, context.builder->Add1("mul", node.path, {dy, node.inputs[0]}));
  return std::vector<ValueId>{da, db};
}

Gradients ScaleGradient(const GradientContext& context) {
  const Node& node = *context.node;
  TUTTI_ASSIGN_OR_RETURN(const ValueId dx,
                         context.builder->Add1("scale", node.path, {context.output_gradients[0]}, node.attributes));
  return std::vector<ValueId>{dx};
}

OpDef Define(std::string_view name, int inputs, decltype(OpDef::gradient) gradient) {
  OpDef def;
  def.name = name;
  def.infer = InferPointwise;
  def.gradient = std::move(gradient);
  def.cost = CostPointwise;
  def.pointwise = true;
  for (int i = 0; i < inputs; ++i) def.aliases.push_back({0, i});
  return def;
}

decltype(OpDef::gradient) GradientRule(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::kAdd:
      return AddGradient;
    case PointwiseOp::kMul:
      return MulGradient;
    case PointwiseOp::kScale:
      return ScaleGradient;
    case PointwiseOp::kGelu:
      return GradientFromInput;
    case PointwiseOp::kRelu:
    case PointwiseOp::kTanh:
    case PointwiseOp::kSigmoid:
      return GradientFromOutput;
    case PointwiseOp::kReluGrad:
    case PointwiseOp::kGeluGrad:
    case PointwiseOp::kTanhGrad:
    case PointwiseOp::kSigmoidGrad:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

Status RegisterPointwise(OpRegistry* ops) {
  for (int i = 0; i < kPointwiseOps; ++i) {
    const auto op = static_cast<PointwiseOp>(i);
    TUTTI_RETURN_IF_ERROR(ops->Register(Define(Name(op), Arity(op), GradientRule(op))));
  }
  return ops->Register(Define("pointwise", kMaxPointwiseInputs, nullptr));
}

}  // namespace tutti
