#include "engine/graph/graph.h"

#include "base/check.h"

namespace tutti {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kU8:
      return 1;
  }
  TUTTI_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU64:
      return "u64";
    case DType::kU8:
      return "u8";
  }
  TUTTI_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

std::string_view Name(ValueClass value_class) {
  switch (value_class) {
    case ValueClass::kIntermediate:
      return "intermediate";
    case ValueClass::kBatch:
      return "batch";
    case ValueClass::kParameter:
      return "parameter";
    case ValueClass::kOptimizerState:
      return "optimizer_state";
    case ValueClass::kStatistic:
      return "statistic";
    case ValueClass::kHostScalar:
      return "host_scalar";
    case ValueClass::kConstant:
      return "constant";
  }
  TUTTI_CHECK(false, "value class {}", static_cast<int>(value_class));
}

int64_t TensorType::elements() const {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

ValueId Graph::AddInput(std::string name, ValueClass value_class, TensorType type) {
  const ValueId id(static_cast<int32_t>(values_.size()));
  values_.push_back({std::move(type), value_class, std::move(name), kNoNode});
  inputs_.push_back(id);
  return id;
}

std::vector<ValueId> Graph::AddNode(std::string op, std::string path, std::vector<ValueId> inputs,
                                    Attributes attributes, std::vector<TensorType> output_types) {
  const NodeId node(static_cast<int32_t>(nodes_.size()));
  for (ValueId input : inputs) {
    TUTTI_CHECK(input.value() >= 0 && static_cast<size_t>(input.value()) < values_.size(),
                "{} {}: input %{} does not exist", path, op, input.value());
  }
  std::vector<ValueId> outputs;
  for (TensorType& type : output_types) {
    outputs.push_back(ValueId(static_cast<int32_t>(values_.size())));
    values_.push_back({std::move(type), ValueClass::kIntermediate, "", node});
  }
  nodes_.push_back({std::move(op), std::move(path), std::move(inputs), outputs, std::move(attributes)});
  return outputs;
}

void Graph::AddOutput(std::string name, ValueId value, std::string alias) {
  outputs_.push_back({std::move(name), value, std::move(alias)});
}

StatusOr<ValueId> Graph::FindInput(std::string_view name) const {
  for (ValueId id : inputs_)
    if (value(id).name == name) return id;
  return NotFound("graph {} has no input {}", name_, name);
}

namespace {

template <typename T>
const T* Get(const Node& node, std::string_view name) {
  const auto found = node.attributes.find(name);
  return found == node.attributes.end() ? nullptr : std::get_if<T>(&found->second);
}

template <typename T>
const T& Require(const Node& node, std::string_view name) {
  const T* value = Get<T>(node, name);
  TUTTI_CHECK(value != nullptr, "{} {}: attribute {} is absent or of another type", node.path, node.op, name);
  return *value;
}

}  // namespace

int64_t IntAttribute(const Node& node, std::string_view name) { return Require<int64_t>(node, name); }
double DoubleAttribute(const Node& node, std::string_view name) { return Require<double>(node, name); }
const std::string& StringAttribute(const Node& node, std::string_view name) { return Require<std::string>(node, name); }

int64_t IntAttributeOr(const Node& node, std::string_view name, int64_t fallback) {
  const int64_t* value = Get<int64_t>(node, name);
  return value == nullptr ? fallback : *value;
}

std::string StringAttributeOr(const Node& node, std::string_view name, std::string_view fallback) {
  const std::string* value = Get<std::string>(node, name);
  return value == nullptr ? std::string(fallback) : *value;
}

}  // namespace tutti
