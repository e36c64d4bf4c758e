// The intermediate representation: a static single-assignment graph of tensors. Layers add nodes, passes rewrite graph
// -> graph, engine/runtime compiles the result. No device library is needed to build, verify or print a graph.
//
// A Graph is a value: copyable, compared by its text (engine/graph/print.h). Not thread-safe while it is changed.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace tutti {

enum class DType : uint8_t { kF32, kI32, kI64, kU64, kU8 };
int64_t SizeOf(DType dtype);         // bytes of one element
std::string_view Name(DType dtype);  // "f32"

struct TensorType {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // logical order; empty: a scalar
  int64_t elements() const;
  int64_t bytes() const { return elements() * SizeOf(dtype); }  // in plain layout
  bool operator==(const TensorType&) const = default;
};

// What a value is, which decides where it lives and how long.
enum class ValueClass : uint8_t {
  kIntermediate,  // made and used inside one call: memory plan
  kBatch,         // input of one call: samples, labels, sample weights
  kParameter,     // trained; lives as long as the job
  kOptimizerState,
  kStatistic,   // running mean and variance
  kHostScalar,  // one element, written by the host before each call: learning rate, batch index, ...
  kConstant,
};
std::string_view Name(ValueClass value_class);

using ValueId = StrongInt<struct ValueIdTag, int32_t>;
using NodeId = StrongInt<struct NodeIdTag, int32_t>;
inline constexpr NodeId kNoNode{-1};

using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
using Attributes = std::map<std::string, Attribute, std::less<>>;

struct Value {
  TensorType type;
  ValueClass value_class = ValueClass::kIntermediate;
  std::string name;  // unique and canonical for all classes but intermediates ("layers.0.weight"); those may be empty
  NodeId producer = kNoNode;  // kNoNode: an input of the graph
};

struct Node {
  std::string op;    // name of an OpDef (engine/ops/op.h)
  std::string path;  // layer that it came from, "layers.3"; for messages, profiles and keys of randomness
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Attributes attributes;
};

// A named result. Where `alias` names an input, the result is that input's next version and may be written over it (an
// update).
struct Output {
  std::string name;  // "loss", "gradient/layers.0.weight"
  ValueId value;
  std::string alias;  // name of a graph input, or empty
};

class Graph {
 public:
  explicit Graph(std::string name = "") : name_(std::move(name)) {}

  ValueId AddInput(std::string name, ValueClass value_class, TensorType type);
  // Adds a node whose output types are already known (engine/ops/builder.h infers them). Inputs must exist: a graph is
  // built in topological order and stays so. Returns the outputs' ids.
  std::vector<ValueId> AddNode(std::string op, std::string path, std::vector<ValueId> inputs, Attributes attributes,
                               std::vector<TensorType> output_types);
  void AddOutput(std::string name, ValueId value, std::string alias = "");

  const std::string& name() const { return name_; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id.value())]; }
  Value& mutable_value(ValueId id) { return values_[static_cast<size_t>(id.value())]; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id.value())]; }
  Node& mutable_node(NodeId id) { return nodes_[static_cast<size_t>(id.value())]; }
  std::span<const Value> values() const { return values_; }
  std::span<const Node> nodes() const { return nodes_; }  // in execution order
  std::span<const ValueId> inputs() const { return inputs_; }
  std::span<const Output> outputs() const { return outputs_; }
  StatusOr<ValueId> FindInput(std::string_view name) const;  // NOT_FOUND

 private:
  std::string name_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_;
  std::vector<Output> outputs_;
};

// Typed attribute access: a missing or differently typed attribute is a broken invariant of ours, except through the
// *Or form.
int64_t IntAttribute(const Node& node, std::string_view name);
double DoubleAttribute(const Node& node, std::string_view name);
const std::string& StringAttribute(const Node& node, std::string_view name);
int64_t IntAttributeOr(const Node& node, std::string_view name, int64_t fallback);
std::string StringAttributeOr(const Node& node, std::string_view name, std::string_view fallback);

}  // namespace tutti
