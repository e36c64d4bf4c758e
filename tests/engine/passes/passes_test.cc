// Autodiff and fusion: golden dumps of small graphs, refusals by name. Numbers are checked in tests/engine/runtime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "engine/graph/print.h"
#include "engine/graph/verify.h"
#include "engine/ops/builder.h"
#include "engine/ops/registry.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/fusion.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

class Passes : public ::testing::Test {
 protected:
  ValueId Input(const std::string& name, std::vector<int64_t> dims, ValueClass value_class = ValueClass::kBatch) {
    return builder_.AddInput(name, value_class, F32(std::move(dims)));
  }
  ValueId Parameter(const std::string& name, std::vector<int64_t> dims) {
    return Input(name, std::move(dims), ValueClass::kParameter);
  }
  ValueId Add(std::string_view op, std::string_view path, std::vector<ValueId> inputs, Attributes attributes = {}) {
    auto outputs = builder_.Add(op, path, std::move(inputs), std::move(attributes));
    TUTTI_CHECK_OK(outputs.status());
    return (*outputs)[0];
  }
  // Cross-entropy of `logits` as outputs "loss" and "correct".
  void Loss(ValueId logits) {
    const int64_t rows = builder_.type(logits).dims[0];
    const ValueId labels = builder_.AddInput("labels", ValueClass::kBatch, {DType::kI32, {rows}});
    const ValueId weights = Input("weights", {rows});
    const ValueId inverse = builder_.AddInput("inverse_valid", ValueClass::kHostScalar, F32({}));
    const auto loss = builder_.Add("softmax_cross_entropy", "loss", {logits, labels, weights, inverse}).value();
    builder_.AddOutput("loss", loss[0]);
    builder_.AddOutput("correct", loss[1]);
  }
  const OpRegistry ops_ = StandardOps();
  GraphBuilder builder_{Graph("g"), ops_};
};
using Differentiation = Passes;
using Fusion = Passes;

TEST_F(Differentiation, ADenseLayerGivesBothGradientsAndNoneForTheBatch) {
  const ValueId x = Input("x", {8, 3}), w = Parameter("w", {2, 3});
  Loss(Add("dense", "layers.0", {x, w}));
  const auto joint = Differentiate(builder_.graph(), "loss", ops_);
  ASSERT_TRUE(joint.ok()) << joint.status();
  EXPECT_EQ(Print(*joint), R"(graph g
input %0 x: batch f32[8,3]
input %1 w: parameter f32[2,3]
input %2 labels: batch i32[8]
input %3 weights: batch f32[8]
input %4 inverse_valid: host_scalar f32[]
%5: f32[8,2] = dense(%0, %1) @layers.0
%6: f32[], %7: f32[], %8: f32[8,2] = softmax_cross_entropy(%5, %2, %3, %4) @loss
%9: f32[2,3] = dense_grad_weights(%0, %8) {has_bias: false} @layers.0
output loss = %6
output correct = %7
output gradient/w = %9
)");
}

TEST_F(Differentiation, ReadersOfOneValueAddUp) {
  const ValueId w = Parameter("w", {2, 3});
  const ValueId t = Add("tanh", "a", {w});
  Loss(Add("add", "c", {Add("sigmoid", "b", {t}), t}));
  const auto joint = Differentiate(builder_.graph(), "loss", ops_);
  ASSERT_TRUE(joint.ok()) << joint.status();
  EXPECT_THAT(Print(*joint), HasSubstr(R"(
%10: f32[2,3] = sigmoid_grad(%9, %5) @b
%11: f32[2,3] = add(%9, %10) @b
%12: f32[2,3] = tanh_grad(%11, %4) @a
)"));
}

TEST_F(Differentiation, ATiedParameterHasOneGradientThatIsTheSum) {
  const ValueId x = Input("x", {4, 3}), w = Parameter("w", {3, 3});
  Loss(Add("dense", "b", {Add("dense", "a", {x, w}), w}));
  const auto joint = Differentiate(builder_.graph(), "loss", ops_);
  ASSERT_TRUE(joint.ok()) << joint.status();
  int sums = 0;
  for (const Node& node : joint->nodes()) sums += node.op == "add";
  EXPECT_EQ(sums, 1);
  EXPECT_EQ(joint->outputs().size(), 3u);
}

TEST_F(Differentiation, EqualGradientsOfTwoParametersAreTwoOutputs) {
  const ValueId a = Parameter("a", {2, 3}), b = Parameter("b", {2, 3});
  Loss(Add("add", "sum", {a, b}));
  const auto joint = Differentiate(builder_.graph(), "loss", ops_);
  ASSERT_TRUE(joint.ok()) << joint.status();
  EXPECT_TRUE(Verify(*joint).ok()) << Verify(*joint);
  EXPECT_EQ(joint->outputs().size(), 4u);
}

TEST_F(Differentiation, RefusalsNameTheParameterTheOpAndTheOutput) {
  const ValueId x = Input("x", {8, 3}), w = Parameter("w", {2, 3});
  Parameter("unused", {5});
  const ValueId y = Add("dense", "layers.0", {x, w});
  builder_.AddOutput("y", y);
  Loss(y);
  const Graph& graph = builder_.graph();
  EXPECT_THAT(Message(Differentiate(graph, "loss", ops_).status()),
              HasSubstr("parameter unused does not reach the loss"));
  EXPECT_THAT(Message(Differentiate(graph, "nosuch", ops_).status()), HasSubstr("no output nosuch"));
  EXPECT_THAT(Message(Differentiate(graph, "y", ops_).status()),
              HasSubstr("made by layers.0 dense, expected the first output of a loss"));
}

TEST_F(Differentiation, AnOpWithoutGradientIsNamed) {
  const ValueId w = Parameter("w", {2, 3});
  Loss(Add("relu_grad", "odd", {w, Add("relu", "r", {w})}));
  EXPECT_THAT(Message(Differentiate(builder_.graph(), "loss", ops_).status()),
              HasSubstr("odd relu_grad: has no gradient"));
}

TEST_F(Fusion, ASmallConvolutionalNetworkFromLayersToTheJointGraph) {
  const ValueId x = Input("x", {2, 1, 8, 8});
  const ValueId w0 = Parameter("c.weight", {4, 1, 3, 3}), b0 = Parameter("c.bias", {4}),
                w1 = Parameter("d.weight", {3, 64});
  ValueId y = Add("conv2d", "c", {x, w0, b0}, {{"padding", int64_t{1}}});
  y = Add("relu", "r", {y});
  y = Add("max_pool", "p", {y}, {{"size", int64_t{2}}, {"stride", int64_t{2}}});
  Loss(Add("dense", "d", {Add("flatten", "f", {y}), w1}));
  const auto joint = BuildTrainingGraph(builder_.graph(), "loss", ops_);
  ASSERT_TRUE(joint.ok()) << joint.status();
  // The relu is the convolution's activation, its gradient works on the pooled tensor, flatten is gone, and nothing
  // computes a gradient of x.
  EXPECT_EQ(Print(*joint), R"(graph g
input %0 x: batch f32[2,1,8,8]
input %1 c.weight: parameter f32[4,1,3,3]
input %2 c.bias: parameter f32[4]
input %3 d.weight: parameter f32[3,64]
input %4 labels: batch i32[2]
input %5 weights: batch f32[2]
input %6 inverse_valid: host_scalar f32[]
%7: f32[2,4,8,8] = conv2d(%0, %1, %2) {activation: "relu", padding: 1} @c
%8: f32[2,4,4,4], %9: u8[2,4,4,4] = max_pool(%7) {size: 2, stride: 2} @p
%10: f32[2,3] = dense(%8, %3) @d
%11: f32[], %12: f32[], %13: f32[2,3] = softmax_cross_entropy(%10, %4, %5, %6) @loss
%14: f32[3,64] = dense_grad_weights(%8, %13) {has_bias: false} @d
%15: f32[2,4,4,4] = dense_grad_input(%13, %3) {input_dims: [2,4,4,4]} @d
%16: f32[2,4,4,4] = relu_grad(%15, %8) @c
%17: f32[2,4,8,8] = max_pool_grad(%16, %9) {input_dims: [2,4,8,8], size: 2, stride: 2} @p
%18: f32[4,1,3,3], %19: f32[4] = conv2d_grad_weights(%0, %17) {has_bias: true, kernel: [3,3], padding: 1, stride: 1} @c
output loss = %11
output correct = %12
output gradient/c.weight = %18
output gradient/c.bias = %19
output gradient/d.weight = %14
)");
}

TEST_F(Fusion, AReluWithAnotherReaderBesideItStays) {
  const ValueId x = Input("x", {8, 3}), w = Parameter("w", {2, 3});
  const ValueId y = Add("dense", "d", {x, w});
  Loss(Add("add", "a", {Add("relu", "r", {y}), y}));
  const auto fused = FuseForward(builder_.graph(), ops_);
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_THAT(Print(*fused), HasSubstr("= relu("));
  EXPECT_THAT(Print(*fused), Not(HasSubstr("activation")));
}

TEST_F(Fusion, PointwiseChainsBecomeOneNode) {
  const ValueId a = Input("a", {4, 4}), b = Input("b", {4, 4});
  const ValueId sum = Add("add", "s", {a, b});
  const ValueId left = Add("tanh", "t", {sum}), right = Add("sigmoid", "g", {sum});  // sum has two readers: it stays
  builder_.AddOutput("y", Add("scale", "z", {Add("mul", "m", {left, right})}, {{"factor", 2.0}}));
  const auto fused = FuseJoint(builder_.graph(), ops_);
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_EQ(Print(*fused), R"(graph g
input %0 a: batch f32[4,4]
input %1 b: batch f32[4,4]
%2: f32[4,4] = add(%0, %1) @s
%3: f32[4,4] = pointwise(%2) {program: "tanh 0; sigmoid 0; mul 1 2; scale 3 *2"} @z
output y = %3
)");
}

TEST_F(Fusion, AValueThatIsAnOutputIsKept) {
  const ValueId a = Input("a", {4});
  const ValueId t = Add("tanh", "t", {a});
  builder_.AddOutput("t", t);
  builder_.AddOutput("y", Add("relu", "r", {t}));
  const auto fused = FuseJoint(builder_.graph(), ops_);
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_EQ(fused->nodes().size(), 2u);
}

TEST_F(Fusion, LongChainsAreCutAtTheLimitNotRefused) {
  const ValueId a = Input("a", {4});
  ValueId y = a;
  for (int i = 0; i < 40; ++i) y = Add(i % 2 == 0 ? "tanh" : "sigmoid", "c", {y});
  builder_.AddOutput("y", y);
  const auto fused = FuseJoint(builder_.graph(), ops_);
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_EQ(fused->nodes().size(), 4u);  // 40 steps in programs of 12
  const auto again = FuseJoint(*fused, ops_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Print(*again), Print(*fused));
}

TEST_F(Fusion, ManyInputsAreCutAtTheLimit) {
  ValueId y = Input("first", {4});
  for (int i = 0; i < 20; ++i) y = Add("add", "s", {y, Input("x" + std::to_string(i), {4})});
  builder_.AddOutput("y", y);
  const auto fused = FuseJoint(builder_.graph(), ops_);
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_LE(fused->nodes().size(), 4u);
  EXPECT_EQ(fused->inputs().size(), 21u);
}

TEST_F(Fusion, DeadCodeGoesInputsStay) {
  const ValueId a = Input("a", {4});
  Add("tanh", "dead", {Add("relu", "dead", {a})});
  Input("unread", {4});
  builder_.AddOutput("y", Add("sigmoid", "live", {a}));
  const Graph graph = EliminateDeadCode(builder_.graph());
  EXPECT_EQ(graph.nodes().size(), 1u);
  EXPECT_EQ(graph.inputs().size(), 2u);
}

}  // namespace
}  // namespace tutti
