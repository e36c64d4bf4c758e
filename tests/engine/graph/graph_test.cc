// The verifier finds each broken invariant, and the text form says all that there is.
#include "engine/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/graph/print.h"
#include "engine/graph/verify.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

// y = f(x, w), s' = g(s, y) over s.
Graph Sample() {
  Graph graph("sample");
  const ValueId x = graph.AddInput("x", ValueClass::kBatch, F32({2, 3}));
  const ValueId w = graph.AddInput("layers.0.weight", ValueClass::kParameter, F32({4, 3}));
  const ValueId s = graph.AddInput("state", ValueClass::kOptimizerState, F32({2, 4}));
  const ValueId y = graph.AddNode("f", "layers.0", {x, w},
                                  {{"activation", std::string("relu")}, {"stride", int64_t{2}}}, {F32({2, 4})})[0];
  const ValueId next = graph.AddNode(
      "g", "layers.1", {s, y}, {{"dims", std::vector<int64_t>{1, 2}}, {"flag", true}, {"rate", 0.5}}, {F32({2, 4})})[0];
  graph.AddOutput("y", y);
  graph.AddOutput("next", next, "state");
  return graph;
}

void ExpectRefused(const Graph& graph, const std::string& message) {
  const Status status = Verify(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr(message));
}

TEST(Print, SaysClassesTypesAttributesAndAliases) {
  EXPECT_EQ(Print(Sample()), R"(graph sample
input %0 x: batch f32[2,3]
input %1 layers.0.weight: parameter f32[4,3]
input %2 state: optimizer_state f32[2,4]
%3: f32[2,4] = f(%0, %1) {activation: "relu", stride: 2} @layers.0
%4: f32[2,4] = g(%2, %3) {dims: [1,2], flag: true, rate: 0.5} @layers.1
output y = %3
output next = %4 -> state
)");
}

TEST(Graph, FindsInputsAndCountsBytes) {
  const Graph graph = Sample();
  EXPECT_EQ(graph.FindInput("state")->value(), 2);
  EXPECT_EQ(graph.FindInput("nosuch").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(F32({2, 3}).bytes(), 24);
  EXPECT_EQ((TensorType{DType::kI64, {}}).bytes(), 8);
  EXPECT_EQ((TensorType{DType::kU8, {5}}).bytes(), 5);
}

TEST(Verify, AcceptsASoundGraph) { EXPECT_TRUE(Verify(Sample()).ok()) << Verify(Sample()); }

TEST(Verify, InputsAreNamedOnceAndLiveOutside) {
  Graph graph("g");
  graph.AddInput("x", ValueClass::kBatch, F32({1}));
  Graph twice = graph;
  twice.AddInput("x", ValueClass::kBatch, F32({1}));
  ExpectRefused(twice, "two inputs are named x");
  Graph unnamed = graph;
  unnamed.AddInput("", ValueClass::kBatch, F32({1}));
  ExpectRefused(unnamed, "input %1 has no name");
  Graph intermediate = graph;
  intermediate.AddInput("i", ValueClass::kIntermediate, F32({1}));
  ExpectRefused(intermediate, "input i has class intermediate");
  Graph scalar = graph;
  scalar.AddInput("lr", ValueClass::kHostScalar, F32({2}));
  ExpectRefused(scalar, "host scalar lr has 2 elements, expected 1");
  Graph empty = graph;
  empty.AddInput("e", ValueClass::kBatch, F32({3, 0}));
  ExpectRefused(empty, "value %1 has a dim of 0");
}

TEST(Verify, EveryValueHasOneEarlierMaker) {
  Graph backwards = Sample();
  backwards.mutable_node(NodeId(0)).inputs[0] = ValueId(4);
  ExpectRefused(backwards, "node 0 (f @layers.0): reads %4 before it is made");
  Graph absent = Sample();
  absent.mutable_node(NodeId(0)).inputs[0] = ValueId(99);
  ExpectRefused(absent, "node 0 (f @layers.0): input %99 does not exist");
  Graph stolen = Sample();
  stolen.mutable_node(NodeId(1)).outputs[0] = ValueId(3);
  ExpectRefused(stolen, "node 1 (g @layers.1): makes %3, which has another maker");
  Graph wrong_producer = Sample();
  wrong_producer.mutable_value(ValueId(4)).producer = NodeId(0);
  ExpectRefused(wrong_producer, "%4 names node 0 as its maker");
  Graph wrong_class = Sample();
  wrong_class.mutable_value(ValueId(3)).value_class = ValueClass::kParameter;
  ExpectRefused(wrong_class, "%3 has class parameter, expected intermediate");
}

TEST(Verify, OutputsAreMadeAndUnique) {
  Graph twice = Sample();
  twice.AddOutput("again", ValueId(3));
  ExpectRefused(twice, "output again is %3, which is another output already");
  Graph named = Sample();
  named.AddOutput("y", ValueId(4));
  ExpectRefused(named, "two outputs are named y");
  Graph passed = Sample();
  passed.AddOutput("x", ValueId(0));
  ExpectRefused(passed, "output x is the input x");
  Graph absent = Sample();
  absent.AddOutput("z", ValueId(77));
  ExpectRefused(absent, "output z is %77, which does not exist");
}

TEST(Verify, ANextVersionReplacesOneInputThatNobodyReadsLater) {
  Graph no_input = Sample();
  no_input.AddOutput("z", no_input.AddNode("h", "p", {ValueId(0)}, {}, {F32({2, 3})})[0], "nosuch");
  ExpectRefused(no_input, "the next version of nosuch, which is no input");
  Graph other_type = Sample();
  other_type.AddOutput("z", other_type.AddNode("h", "p", {ValueId(0)}, {}, {F32({3, 2})})[0], "x");
  ExpectRefused(other_type, "output z and its alias x differ in type");
  Graph twice = Sample();
  twice.AddOutput("z", twice.AddNode("h", "p", {ValueId(0)}, {}, {F32({2, 4})})[0], "state");
  ExpectRefused(twice, "input state has two next versions");
  Graph late = Sample();
  late.AddOutput("z", late.AddNode("h", "p", {ValueId(2)}, {}, {F32({2, 4})})[0]);
  ExpectRefused(late, "node 2 (h @p): reads state after node 1 wrote its next version");
}

}  // namespace
}  // namespace tutti
