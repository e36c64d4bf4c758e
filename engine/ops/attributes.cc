#include "engine/ops/attributes.h"

#include "base/check.h"
#include "engine/ops/builder.h"

namespace tutti {

const std::vector<int64_t>& IntsAttribute(const Node& node, std::string_view name) {
  const auto found = node.attributes.find(name);
  TUTTI_CHECK(found != node.attributes.end(), "{} {}: no attribute {}", node.path, node.op, name);
  const auto* value = std::get_if<std::vector<int64_t>>(&found->second);
  TUTTI_CHECK(value != nullptr, "{} {}: attribute {} is no list", node.path, node.op, name);
  return *value;
}

bool BoolAttributeOr(const Node& node, std::string_view name, bool fallback) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return fallback;
  const auto* value = std::get_if<bool>(&found->second);
  return value == nullptr ? fallback : *value;
}

Status ExpectActivation(const Node& node) {
  const std::string activation = StringAttributeOr(node, "activation", "none");
  if (activation == "none" || activation == "relu") return OkStatus();
  return OpError(node, fmt::format("found activation '{}', expected none or relu", activation));
}

bool HasRelu(const Node& node) { return StringAttributeOr(node, "activation", "none") == "relu"; }

int64_t SampleElements(const TensorType& type) {
  int64_t elements = 1;
  for (size_t i = 1; i < type.dims.size(); ++i) elements *= type.dims[i];
  return elements;
}

int64_t TotalBytes(std::span<const TensorType> inputs, std::span<const TensorType> outputs) {
  int64_t bytes = 0;
  for (const TensorType& type : inputs) bytes += type.bytes();
  for (const TensorType& type : outputs) bytes += type.bytes();
  return bytes;
}

}  // namespace tutti
