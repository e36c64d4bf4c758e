#include "engine/ops/pointwise/program.h"

#include <array>
#include <optional>
#include <sstream>

#include "base/check.h"

namespace tutti {
namespace {

struct Entry {
  PointwiseOp op;
  std::string_view name;
  int arity;
  double flops;
};
constexpr std::array<Entry, kPointwiseOps> kTable = {{
    {PointwiseOp::kAdd, "add", 2, 1},
    {PointwiseOp::kMul, "mul", 2, 1},
    {PointwiseOp::kScale, "scale", 1, 1},
    {PointwiseOp::kRelu, "relu", 1, 1},
    {PointwiseOp::kReluGrad, "relu_grad", 2, 1},
    {PointwiseOp::kGelu, "gelu", 1, 40},
    {PointwiseOp::kGeluGrad, "gelu_grad", 2, 60},
    {PointwiseOp::kTanh, "tanh", 1, 25},
    {PointwiseOp::kTanhGrad, "tanh_grad", 2, 3},
    {PointwiseOp::kSigmoid, "sigmoid", 1, 18},
    {PointwiseOp::kSigmoidGrad, "sigmoid_grad", 2, 3},
}};

const Entry& Find(PointwiseOp op) { return kTable[static_cast<size_t>(op)]; }

std::optional<PointwiseOp> FindByName(std::string_view name) {
  for (const Entry& entry : kTable)
    if (entry.name == name) return entry.op;
  return std::nullopt;
}

StatusOr<PointwiseInstruction> ParseInstruction(const std::string& text, int operands) {
  std::istringstream words(text);
  std::string name, factor;
  words >> name;
  const std::optional<PointwiseOp> op = FindByName(name);
  if (!op.has_value()) return InvalidArgument("pointwise program: unknown instruction '{}'", text);
  PointwiseInstruction instruction{*op};
  words >> instruction.a;
  if (Arity(*op) == 2) words >> instruction.b;
  char star = '*';
  if (*op == PointwiseOp::kScale) words >> star >> instruction.factor;
  const auto known = [&](int operand) { return operand >= 0 && operand < operands; };
  if (words.fail() || star != '*' || !known(instruction.a) || !known(instruction.b))
    return InvalidArgument("pointwise program: '{}' with {} operands so far", text, operands);
  return instruction;
}

}  // namespace

std::string_view Name(PointwiseOp op) { return Find(op).name; }
int Arity(PointwiseOp op) { return Find(op).arity; }
double Flops(PointwiseOp op) { return Find(op).flops; }

std::string ToText(const PointwiseProgram& program) {
  std::string text;
  for (const PointwiseInstruction& instruction : program.code) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", Name(instruction.op), instruction.a);
    if (Arity(instruction.op) == 2) text += fmt::format(" {}", instruction.b);
    if (instruction.op == PointwiseOp::kScale) text += fmt::format(" *{}", instruction.factor);
  }
  return text;
}

StatusOr<PointwiseProgram> ParsePointwise(std::string_view text, int inputs) {
  PointwiseProgram program{inputs, {}};
  std::istringstream pieces{std::string(text)};
  for (std::string piece; std::getline(pieces, piece, ';');) {
    const int operands = inputs + static_cast<int>(program.code.size());
    TUTTI_ASSIGN_OR_RETURN(PointwiseInstruction instruction, ParseInstruction(piece, operands));
    program.code.push_back(instruction);
  }
  if (program.code.empty() || program.code.size() > kMaxPointwiseInstructions || inputs < 1 ||
      inputs > kMaxPointwiseInputs)
    return InvalidArgument("pointwise program: {} instructions on {} inputs, expected 1 to {} on 1 to {}",
                           program.code.size(), inputs, kMaxPointwiseInstructions, kMaxPointwiseInputs);
  return program;
}

StatusOr<PointwiseProgram> ProgramOf(const Node& node) {
  const int inputs = static_cast<int>(node.inputs.size());
  if (node.op == "pointwise") return ParsePointwise(StringAttribute(node, "program"), inputs);
  const std::optional<PointwiseOp> op = FindByName(node.op);
  if (!op.has_value()) return NotFound("{} {} is not pointwise", node.path, node.op);
  PointwiseInstruction instruction{*op, 0, Arity(*op) - 1};
  if (*op == PointwiseOp::kScale) instruction.factor = DoubleAttribute(node, "factor");
  return PointwiseProgram{inputs, {instruction}};
}

}  // namespace tutti
