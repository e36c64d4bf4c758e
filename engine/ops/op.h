// An operator's definition, free of any device: shape inference, gradient rule, cost, legal aliases. One room (folder) per operator;
// engine/ops/registry.h lists them. CPU kernels sit beside the definition (*_cpu.cc) and are a target of their own.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"

namespace tutti {

class GraphBuilder;  // engine/ops/builder.h: a Graph plus the registry; Add(op, path, inputs, attributes) infers output types

struct OpCost {
  double flops = 0;          // a multiply-add counts two
  int64_t bytes = 0;         // read and written, plain layout
};

struct GradientContext {
  GraphBuilder* builder;                       // where the gradient's nodes are added
  const Node* node;                            // the forward node
  std::span<const ValueId> output_gradients;   // one per output; ValueId(-1): that output has no gradient
};

struct OpDef {
  std::string name;
  // Output types from input types. INVALID_ARGUMENT names the layer's path, what was found and what is expected.
  std::function<StatusOr<std::vector<TensorType>>(const Node&, std::span<const TensorType> inputs)> infer;
  // One gradient value per input; ValueId(-1): not differentiable in that input. Absent: the op has no gradient.
  std::function<StatusOr<std::vector<ValueId>>(const GradientContext&)> gradient;
  std::function<OpCost(const Node&, std::span<const TensorType> inputs, std::span<const TensorType> outputs)> cost;
  // (output, input) pairs where the kernel may write the output over the input's memory.
  std::vector<std::pair<int, int>> aliases;
  bool pointwise = false;                      // element i of each output depends on element i of the inputs only
  // Where differentiation starts: the gradient rule takes no output gradients (all are ValueId(-1)) and gives the gradient of the
  // batch's mean loss, i.e. of output 0 (a sum over rows) times the host scalar "inverse_valid".
  bool loss = false;
};

class OpRegistry {
 public:
  Status Register(OpDef def);                  // ALREADY_EXISTS
  StatusOr<const OpDef*> Find(std::string_view name) const;  // NOT_FOUND

 private:
  std::map<std::string, OpDef, std::less<>> ops_;
};

}  // namespace tutti
