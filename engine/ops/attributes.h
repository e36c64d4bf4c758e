// Reading attributes and shapes in rooms whose ops have lists and flags as attributes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/op.h"

namespace tutti {

// A missing or differently typed attribute is a broken invariant of ours.
const std::vector<int64_t>& IntsAttribute(const Node& node, std::string_view name);
bool BoolAttributeOr(const Node& node, std::string_view name, bool fallback);

// INVALID_ARGUMENT unless attribute "activation" is absent, "none" or "relu".
Status ExpectActivation(const Node& node);
bool HasRelu(const Node& node);

// Elements of one sample: the product of all dimensions but the first.
int64_t SampleElements(const TensorType& type);

// Output length of a sliding window: floor((size + 2 padding - window) / stride) + 1; 0 or less: it does not fit.
constexpr int64_t WindowOutputs(int64_t size, int64_t window, int64_t stride, int64_t padding) {
  const int64_t span = size + 2 * padding - window;
  return span < 0 ? 0 : span / stride + 1;
}

// Bytes of all tensors in plain layout.
int64_t TotalBytes(std::span<const TensorType> inputs, std::span<const TensorType> outputs);

}  // namespace tutti
