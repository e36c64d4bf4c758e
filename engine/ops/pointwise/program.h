// What a pointwise node computes for each element: a short straight-line program. One-op nodes ("relu", "add") and
// fused chains
// ("pointwise") are the same thing to the kernels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"

namespace tutti {

enum class PointwiseOp : uint8_t {
  kAdd,       // a + b
  kMul,       // a * b
  kScale,     // a * factor
  kRelu,      // max(a, 0)
  kReluGrad,  // b > 0 ? a : 0           (a: dy, b: y)
  kGelu,      // a * Phi(a), Phi the normal distribution function (with erf, not the tanh approximation)
  kGeluGrad,  // a * (Phi(b) + b * phi(b))  (a: dy, b: x)
  kTanh,
  kTanhGrad,  // a * (1 - b^2)           (b: y)
  kSigmoid,
  kSigmoidGrad,  // a * b * (1 - b)         (b: y)
};
inline constexpr int kPointwiseOps = 11;

std::string_view Name(PointwiseOp op);  // the name of the one-op node
int Arity(PointwiseOp op);              // operands, 1 or 2
double Flops(PointwiseOp op);           // of one element, for cost estimates

// Operands: 0 .. inputs - 1 are the node's inputs, inputs + k is the result of instruction k. The last result is the
// output.
struct PointwiseInstruction {
  PointwiseOp op;
  int a = 0;
  int b = 0;
  double factor = 1;
  bool operator==(const PointwiseInstruction&) const = default;
};

struct PointwiseProgram {
  int inputs = 0;
  std::vector<PointwiseInstruction> code;  // 1 .. kMaxPointwiseInstructions
  bool operator==(const PointwiseProgram&) const = default;
};
inline constexpr size_t kMaxPointwiseInstructions = 12;
inline constexpr int kMaxPointwiseInputs = 8;

// "add 0 1; relu_grad 2 1; scale 3 *0.5": the attribute `program` of a pointwise node.
std::string ToText(const PointwiseProgram& program);
// INVALID_ARGUMENT: unknown instruction, operands that are not there yet, too long.
StatusOr<PointwiseProgram> ParsePointwise(std::string_view text, int inputs);

// The program of a one-op or fused node. NOT_FOUND: the node is not pointwise.
StatusOr<PointwiseProgram> ProgramOf(const Node& node);

}  // namespace tutti
