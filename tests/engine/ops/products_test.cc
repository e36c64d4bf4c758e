// dense and conv2d: kernels against the formulas, gradient rules against finite differences, refusals by words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "engine/ops/builder.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "tests/engine/ops/finite_difference.h"
#include "tests/engine/ops/graph_runner.h"
#include "tests/engine/ops/reference.h"

namespace tutti {
namespace {

using reference::Convolution;
using reference::Random;
using reference::Values;
using ::testing::HasSubstr;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

void ExpectNear(const Values& found, const Values& expected, double tolerance, std::string_view what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], tolerance) << what << " element " << i;
}

std::string MessageOf(std::string_view op, const std::vector<TensorType>& inputs, Attributes attributes) {
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("g"), ops);
  std::vector<ValueId> values;
  for (const TensorType& type : inputs)
    values.push_back(builder.AddInput(fmt::format("in{}", values.size()), ValueClass::kBatch, type));
  const auto added = builder.Add(op, "layers.3", values, std::move(attributes));
  EXPECT_EQ(added.status().code(), absl::StatusCode::kInvalidArgument);
  return Message(added.status());
}

class OnThreads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, OnThreads, ::testing::Values(1, 2));

TEST_P(OnThreads, DenseAndItsGradientsAreTheFormulas) {
  for (const auto& [rows, units, width] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {7, 10, 33}, {32, 48, 128}, {5, 3, 1000}, {13, 272, 300}, {32, 256, 144}, {300, 256, 128}}) {
    const OpRegistry ops = StandardOps();
    GraphBuilder builder(Graph("dense"), ops);
    const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({rows, width}));
    const ValueId w = builder.AddInput("w", ValueClass::kParameter, F32({units, width}));
    const ValueId b = builder.AddInput("b", ValueClass::kParameter, F32({units}));
    const ValueId dy = builder.AddInput("dy", ValueClass::kBatch, F32({rows, units}));
    builder.AddOutput("y", builder.Add1("dense", "d", {x, w, b}).value());
    builder.AddOutput("relu", builder.Add1("dense", "d", {x, w}, {{"activation", std::string("relu")}}).value());
    builder.AddOutput(
        "dx",
        builder.Add1("dense_grad_input", "d", {dy, w}, {{"input_dims", std::vector<int64_t>{rows, width}}}).value());
    const auto grads = builder.Add("dense_grad_weights", "d", {x, dy}, {{"has_bias", true}}).value();
    builder.AddOutput("gradient/w", grads[0]);
    builder.AddOutput("gradient/b", grads[1]);
    const PlainValues in{{"x", Random(rows * width, 1)},
                         {"w", Random(units * width, 2)},
                         {"b", Random(units, 3)},
                         {"dy", Random(rows * units, 4)}};
    const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in, GetParam());
    ASSERT_TRUE(out.ok()) << out.status();
    Values y = reference::MultiplyTransposed(in.at("x"), in.at("w"), rows, units, width), relu = y;
    for (size_t i = 0; i < y.size(); ++i) {
      relu[i] = std::max(0.0, y[i]);
      y[i] += in.at("b")[i % static_cast<size_t>(units)];
    }
    ExpectNear(out->at("y"), y, reference::SumTolerance(width), "y");
    ExpectNear(out->at("relu"), relu, reference::SumTolerance(width), "relu");
    const Values wt = reference::Transpose(in.at("w"), units, width),
                 dyt = reference::Transpose(in.at("dy"), rows, units);
    ExpectNear(out->at("dx"), reference::MultiplyTransposed(in.at("dy"), wt, rows, width, units),
               reference::SumTolerance(units), "dx");
    ExpectNear(out->at("gradient/w"),
               reference::MultiplyTransposed(dyt, reference::Transpose(in.at("x"), rows, width), units, width, rows),
               reference::SumTolerance(rows), "dw");
    ExpectNear(out->at("gradient/b"), reference::SumOverChannels(in.at("dy"), units, 1), reference::SumTolerance(rows),
               "db");
  }
}

TEST_P(OnThreads, Conv2dAndItsGradientsAreTheFormulas) {
  for (const Convolution& k :
       std::vector<Convolution>{{.n = 3, .c = 1, .h = 9, .w = 7, .o = 8, .kernel = 3, .padding = 1},
                                {.n = 1, .c = 1, .h = 28, .w = 28, .o = 32, .kernel = 3, .padding = 1},
                                {.n = 18, .c = 1, .h = 8, .w = 8, .o = 16, .kernel = 5, .stride = 2, .padding = 2},
                                {.n = 2, .c = 3, .h = 11, .w = 12, .o = 16, .kernel = 3, .stride = 2, .padding = 1},
                                {.n = 2, .c = 32, .h = 6, .w = 6, .o = 16, .kernel = 3, .padding = 1},
                                {.n = 2, .c = 16, .h = 5, .w = 5, .o = 24, .kernel = 1},
                                {.n = 2, .c = 5, .h = 7, .w = 6, .o = 7, .kernel = 2},
                                {.n = 1, .c = 2, .h = 4, .w = 4, .o = 3, .kernel = 4}}) {
    SCOPED_TRACE(fmt::format("{} x {} -> {} kernel {} stride {}", k.n, k.c, k.o, k.kernel, k.stride));
    const OpRegistry ops = StandardOps();
    GraphBuilder builder(Graph("conv"), ops);
    const Attributes sliding{{"stride", k.stride}, {"padding", k.padding}};
    const std::vector<int64_t> x_dims{k.n, k.c, k.h, k.w};
    const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32(x_dims));
    const ValueId w = builder.AddInput("w", ValueClass::kParameter, F32({k.o, k.c, k.kernel, k.kernel}));
    const ValueId b = builder.AddInput("b", ValueClass::kParameter, F32({k.o}));
    Attributes forward = sliding, input = sliding, weights = sliding;
    forward["activation"] = std::string("relu");
    input["input_dims"] = x_dims;
    weights["kernel"] = std::vector<int64_t>{k.kernel, k.kernel};
    weights["has_bias"] = true;
    const ValueId y = builder.Add1("conv2d", "c", {x, w, b}, forward).value();
    // y's own layout, whatever it is, meets the gradients.
    const auto grads = builder.Add("conv2d_grad_weights", "c", {x, y}, weights).value();
    builder.AddOutput("y", y);
    builder.AddOutput("dx", builder.Add1("conv2d_grad_input", "c", {y, w}, input).value());
    builder.AddOutput("gradient/w", grads[0]);
    builder.AddOutput("gradient/b", grads[1]);
    const PlainValues in{{"x", Random(k.x_count(), 1)}, {"w", Random(k.w_count(), 2)}, {"b", Random(k.o, 3)}};
    const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in, GetParam());
    ASSERT_TRUE(out.ok()) << out.status();
    const Values expected = reference::Convolve(k, in.at("x"), in.at("w"), in.at("b"), true);
    const int64_t taps = k.c * k.kernel * k.kernel, positions = k.out_h() * k.out_w();
    ExpectNear(out->at("y"), expected, reference::SumTolerance(taps), "y");
    // y is about sqrt(taps) large, not below one: so are the products.
    const double size = std::sqrt(static_cast<double>(taps)) + 1;
    ExpectNear(out->at("dx"), reference::ConvolutionGradInput(k, expected, in.at("w")),
               size * reference::SumTolerance(k.o * k.kernel * k.kernel), "dx");
    ExpectNear(out->at("gradient/w"), reference::ConvolutionGradWeights(k, in.at("x"), expected),
               size * reference::SumTolerance(k.n * positions), "dw");
    ExpectNear(out->at("gradient/b"), reference::SumOverChannels(expected, k.o, positions),
               size * reference::SumTolerance(k.n * positions), "db");
  }
}

// conv -> relu -> pool -> dense on the pooled images as they lie, and back: blocked layouts from end to end.
TEST_P(OnThreads, ImagesReachDenseAndComeBackInBlockedLayout) {
  for (const auto& [c, o, units] : std::vector<std::array<int64_t, 3>>{{1, 32, 12}, {16, 16, 272}, {3, 10, 12}}) {
    const Convolution k{.n = 6, .c = c, .h = 8, .w = 8, .o = o, .kernel = 3, .padding = 1};
    const int64_t width = o * 16;
    const OpRegistry ops = StandardOps();
    GraphBuilder builder(Graph("chain"), ops);
    const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({k.n, c, 8, 8}));
    const ValueId w = builder.AddInput("w", ValueClass::kParameter, F32({o, c, 3, 3}));
    const ValueId v = builder.AddInput("v", ValueClass::kParameter, F32({units, width}));
    const ValueId dz = builder.AddInput("dz", ValueClass::kBatch, F32({k.n, units}));
    const ValueId y =
        builder.Add1("conv2d", "c", {x, w}, {{"padding", int64_t{1}}, {"activation", std::string("relu")}}).value();
    const Attributes pool{{"size", int64_t{2}}};
    const auto pooled = builder.Add("max_pool", "p", {y}, pool).value();
    builder.AddOutput("z", builder.Add1("dense", "d", {pooled[0], v}).value());
    builder.AddOutput("gradient/v", builder.Add1("dense_grad_weights", "d", {pooled[0], dz}).value());
    const ValueId dp =
        builder.Add1("dense_grad_input", "d", {dz, v}, {{"input_dims", std::vector<int64_t>{k.n, o, 4, 4}}}).value();
    Attributes unpool = pool;
    unpool["input_dims"] = std::vector<int64_t>{k.n, o, 8, 8};
    const ValueId dy = builder.Add1("max_pool_grad", "p", {dp, pooled[1]}, unpool).value();
    const ValueId masked = builder.Add1("relu_grad", "c", {dy, y}).value();
    builder.AddOutput("gradient/w", builder
                                        .Add1("conv2d_grad_weights", "c", {x, masked},
                                              {{"padding", int64_t{1}}, {"kernel", std::vector<int64_t>{3, 3}}})
                                        .value());
    const PlainValues in{{"x", Random(k.x_count(), 1)},
                         {"w", Random(k.w_count(), 2)},
                         {"v", Random(units * width, 3)},
                         {"dz", Random(k.n * units, 4)}};
    const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in, GetParam());
    ASSERT_TRUE(out.ok()) << out.status();

    const reference::Pooling p{.planes = k.n * o, .h = 8, .w = 8, .size = 2, .stride = 2, .padding = 0};
    const Values ry = reference::Convolve(k, in.at("x"), in.at("w"), {}, true), rp = reference::MaxPool(p, ry);
    const double size = std::sqrt(static_cast<double>(c * 9)) + 1;
    ExpectNear(out->at("z"), reference::MultiplyTransposed(rp, in.at("v"), k.n, units, width),
               size * reference::SumTolerance(width), "z");
    ExpectNear(out->at("gradient/v"),
               reference::MultiplyTransposed(reference::Transpose(in.at("dz"), k.n, units),
                                             reference::Transpose(rp, k.n, width), units, width, k.n),
               size * reference::SumTolerance(k.n), "dv");
    Values rdy = reference::MaxPoolGrad(
        p, ry,
        reference::MultiplyTransposed(in.at("dz"), reference::Transpose(in.at("v"), units, width), k.n, width, units));
    for (size_t i = 0; i < rdy.size(); ++i) rdy[i] = ry[i] > 0 ? rdy[i] : 0;
    ExpectNear(out->at("gradient/w"), reference::ConvolutionGradWeights(k, in.at("x"), rdy),
               std::sqrt(static_cast<double>(units)) * reference::SumTolerance(k.n * 64), "dw");
  }
}

TEST(Products, SameBitsInEveryRun) {
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("conv"), ops);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({8, 16, 10, 10}));
  const ValueId dy = builder.AddInput("dy", ValueClass::kBatch, F32({8, 24, 10, 10}));
  builder.AddOutput("dw", builder
                              .Add1("conv2d_grad_weights", "c", {x, dy},
                                    {{"padding", int64_t{1}}, {"kernel", std::vector<int64_t>{3, 3}}})
                              .value());
  const ValueId flat = builder.AddInput("flat", ValueClass::kBatch, F32({64, 200}));
  const ValueId d = builder.AddInput("d", ValueClass::kBatch, F32({64, 40}));
  builder.AddOutput("dv", builder.Add1("dense_grad_weights", "d", {flat, d}).value());
  const PlainValues in{
      {"x", Random(12800, 1)}, {"dy", Random(19200, 2)}, {"flat", Random(12800, 3)}, {"d", Random(2560, 4)}};
  for (int threads : {1, 2}) {
    const auto first = RunGraph(builder.graph(), StandardCpuKernels(), in, threads);
    ASSERT_TRUE(first.ok()) << first.status();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(RunGraph(builder.graph(), StandardCpuKernels(), in, threads).value(), *first);
  }
}

TEST(Products, GradientRulesAgreeWithFiniteDifferences) {
  const OpRegistry ops = StandardOps();
  const KernelRegistry kernels = StandardCpuKernels();
  const Attributes relu{{"activation", std::string("relu")}};
  ExpectGradientsMatch({.op = "dense", .inputs = {{.type = F32({4, 6})}, {.type = F32({5, 6})}, {.type = F32({5})}}},
                       ops, kernels);
  ExpectGradientsMatch({.op = "dense", .inputs = {{.type = F32({3, 2, 2, 3})}, {.type = F32({4, 12})}}}, ops, kernels);
  ExpectGradientsMatch({.op = "conv2d",
                        .attributes = {{"padding", int64_t{1}}, {"stride", int64_t{2}}},
                        .inputs = {{.type = F32({2, 3, 6, 5})}, {.type = F32({4, 3, 3, 3})}, {.type = F32({4})}}},
                       ops, kernels);
  ExpectGradientsMatch({.op = "conv2d", .inputs = {{.type = F32({2, 1, 5, 5})}, {.type = F32({8, 1, 3, 3})}}}, ops,
                       kernels);
  // Biases far from zero on both sides: no sum of products comes near the kink.
  ExpectGradientsMatch(
      {.op = "dense",
       .attributes = relu,
       .inputs = {{.type = F32({4, 3})}, {.type = F32({2, 3})}, {.type = F32({2}), .values = {4, -4}}}},
      ops, kernels);
  ExpectGradientsMatch(
      {.op = "conv2d",
       .attributes = relu,
       .inputs = {{.type = F32({2, 1, 4, 4})}, {.type = F32({2, 1, 2, 2})}, {.type = F32({2}), .values = {5, -5}}}},
      ops, kernels);
}

TEST(Products, CostIsTwoOperationsForEachProduct) {
  const OpRegistry ops = StandardOps();
  Graph graph("cost");
  Node node{.op = "conv2d", .path = "c", .inputs = {}, .outputs = {}, .attributes = {{"padding", int64_t{1}}}};
  const std::vector<TensorType> conv_in{F32({128, 32, 14, 14}), F32({64, 32, 3, 3})}, conv_out{F32({128, 64, 14, 14})};
  EXPECT_EQ(ops.Find("conv2d").value()->cost(node, conv_in, conv_out).flops, 2.0 * 128 * 64 * 196 * 32 * 9);
  const std::vector<TensorType> dense_in{F32({128, 784}), F32({1024, 784})}, dense_out{F32({128, 1024})};
  const OpCost cost = ops.Find("dense").value()->cost(node, dense_in, dense_out);
  EXPECT_EQ(cost.flops, 2.0 * 128 * 1024 * 784);
  EXPECT_EQ(cost.bytes, 4 * (128 * 784 + 1024 * 784 + 128 * 1024));
}

TEST(Products, RefusalsNameLayerFoundAndExpected) {
  EXPECT_THAT(MessageOf("dense", {F32({4, 6}), F32({5, 7})}, {}), HasSubstr("layers.3 dense: found x f32[4,6]"));
  EXPECT_THAT(MessageOf("dense", {F32({4, 6}), F32({5, 6}), F32({6})}, {}),
              HasSubstr("found bias f32[6], expected f32[5]"));
  EXPECT_THAT(MessageOf("dense", {F32({4, 6}), F32({5, 6})}, {{"activation", std::string("gelu")}}),
              HasSubstr("expected none or relu"));
  EXPECT_THAT(MessageOf("dense", {F32({6}), F32({5, 6})}, {}), HasSubstr("at least two dimensions"));
  EXPECT_THAT(MessageOf("conv2d", {F32({4, 3, 8, 8}), F32({5, 1, 3, 3})}, {}), HasSubstr("3 channels, expected 1"));
  EXPECT_THAT(MessageOf("conv2d", {F32({4, 1, 2, 8}), F32({5, 1, 3, 3})}, {}), HasSubstr("does not fit"));
  EXPECT_THAT(MessageOf("conv2d", {F32({4, 1, 8, 8}), F32({5, 1, 3, 3})}, {{"stride", int64_t{0}}}),
              HasSubstr("found stride 0"));
  EXPECT_THAT(MessageOf("conv2d", {F32({4, 8, 8}), F32({5, 1, 3, 3})}, {}), HasSubstr("four dimensions"));
}

}  // namespace
}  // namespace tutti
