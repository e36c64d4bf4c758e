// Pooling and batch norm: kernels against the formulas in plain and blocked layouts, gradient rules against finite
// differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/ops/builder.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "tests/engine/ops/finite_difference.h"
#include "tests/engine/ops/graph_runner.h"
#include "tests/engine/ops/reference.h"

namespace tutti {
namespace {

using reference::Pooling;
using reference::Random;
using reference::Values;
using ::testing::HasSubstr;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

void ExpectNear(const Values& found, const Values& expected, double tolerance, std::string_view what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], tolerance) << what << " element " << i;
}

// x as it is (plain), or through a 1x1 convolution with the identity: blocked where the processor's convolutions block
// it.
ValueId InLayout(GraphBuilder* builder, ValueId x, bool through_convolution, PlainValues* in) {
  if (!through_convolution) return x;
  const int64_t channels = builder->type(x).dims[1];
  Values identity(static_cast<size_t>(channels * channels));
  for (int64_t c = 0; c < channels; ++c) identity[static_cast<size_t>(c * channels + c)] = 1;
  (*in)["identity"] = identity;
  const ValueId w = builder->AddInput("identity", ValueClass::kParameter, F32({channels, channels, 1, 1}));
  return builder->Add1("conv2d", "identity", {x, w}).value();
}

class InLayouts : public ::testing::TestWithParam<std::tuple<bool, int64_t, int>> {
};  // through a convolution, channels, threads
INSTANTIATE_TEST_SUITE_P(Layouts, InLayouts,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(1, 5, 16, 24),
                                            ::testing::Values(1, 2)));

TEST_P(InLayouts, PoolsAndTheirGradientsAreTheFormulas) {
  const auto [blocked, channels, threads] = GetParam();
  for (const Pooling& p :
       std::vector<Pooling>{{.planes = 3 * channels, .h = 8, .w = 6, .size = 2, .stride = 2, .padding = 0},
                            {.planes = 3 * channels, .h = 7, .w = 9, .size = 2, .stride = 2, .padding = 0},
                            {.planes = 3 * channels, .h = 8, .w = 7, .size = 3, .stride = 2, .padding = 1},
                            {.planes = 3 * channels, .h = 5, .w = 5, .size = 2, .stride = 3, .padding = 1},
                            {.planes = 3 * channels, .h = 4, .w = 4, .size = 4, .stride = 1, .padding = 0}}) {
    const OpRegistry ops = StandardOps();
    GraphBuilder builder(Graph("pool"), ops);
    const std::vector<int64_t> x_dims{3, channels, p.h, p.w}, y_dims{3, channels, p.out_h(), p.out_w()};
    PlainValues in{{"x", Random(p.planes * p.h * p.w, 1)}, {"dy", Random(p.planes * p.out_h() * p.out_w(), 2)}};
    const ValueId x = InLayout(&builder, builder.AddInput("x", ValueClass::kBatch, F32(x_dims)), blocked, &in);
    const ValueId dy = builder.AddInput("dy", ValueClass::kBatch, F32(y_dims));
    const Attributes window{{"size", p.size}, {"stride", p.stride}, {"padding", p.padding}};
    Attributes grad = window;
    grad["input_dims"] = x_dims;
    const auto max = builder.Add("max_pool", "p", {x}, window).value();
    builder.AddOutput("max", max[0]);
    builder.AddOutput("max_grad", builder.Add1("max_pool_grad", "p", {dy, max[1]}, grad).value());
    builder.AddOutput("avg", builder.Add1("avg_pool", "p", {x}, window).value());
    builder.AddOutput("avg_grad", builder.Add1("avg_pool_grad", "p", {dy}, grad).value());
    const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in, threads);
    ASSERT_TRUE(out.ok()) << out.status();
    const double tolerance = reference::SumTolerance(p.size * p.size);
    ExpectNear(out->at("max"), reference::MaxPool(p, in.at("x")), 0, "max");
    ExpectNear(out->at("max_grad"), reference::MaxPoolGrad(p, in.at("x"), in.at("dy")), tolerance, "max_grad");
    ExpectNear(out->at("avg"), reference::AveragePool(p, in.at("x")), tolerance, "avg");
    ExpectNear(out->at("avg_grad"), reference::AveragePoolGrad(p, in.at("dy")), tolerance, "avg_grad");
  }
}

TEST_P(InLayouts, GlobalAverageAndItsGradientAreTheFormulas) {
  const auto [blocked, channels, threads] = GetParam();
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("pool"), ops);
  const std::vector<int64_t> x_dims{3, channels, 5, 7};
  PlainValues in{{"x", Random(3 * channels * 35, 1)}, {"dy", Random(3 * channels, 2)}};
  const ValueId x = InLayout(&builder, builder.AddInput("x", ValueClass::kBatch, F32(x_dims)), blocked, &in);
  const ValueId dy = builder.AddInput("dy", ValueClass::kBatch, F32({3, channels}));
  builder.AddOutput("y", builder.Add1("global_avg_pool", "p", {x}).value());
  builder.AddOutput("dx", builder.Add1("global_avg_pool_grad", "p", {dy}, {{"input_dims", x_dims}}).value());
  const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in, threads);
  ASSERT_TRUE(out.ok()) << out.status();
  Values y(static_cast<size_t>(3 * channels)), dx(in.at("x").size());
  for (size_t i = 0; i < dx.size(); ++i) {
    y[i / 35] += in.at("x")[i] / 35;
    dx[i] = in.at("dy")[i / 35] / 35;
  }
  ExpectNear(out->at("y"), y, reference::SumTolerance(35), "y");
  ExpectNear(out->at("dx"), dx, 1e-7, "dx");
}

struct Moments {
  Values mean, variance;  // biased
};
Moments MomentsOf(const Values& x, int64_t channels, int64_t positions) {
  const double n = static_cast<double>(x.size()) / static_cast<double>(channels);
  Moments m{reference::SumOverChannels(x, channels, positions), {}};
  for (double& value : m.mean) value /= n;
  Values squares(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    squares[i] = std::pow(x[i] - m.mean[i / static_cast<size_t>(positions) % static_cast<size_t>(channels)], 2);
  }
  m.variance = reference::SumOverChannels(squares, channels, positions);
  for (double& value : m.variance) value /= n;
  return m;
}

TEST_P(InLayouts, BatchNormIsTheFormula) {
  const auto [blocked, channels, threads] = GetParam();
  const double epsilon = 1e-3;
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("norm"), ops);
  const std::vector<int64_t> dims{4, channels, 5, 6};
  PlainValues in{{"x", Random(4 * channels * 30, 1)}, {"scale", Random(channels, 2)}, {"shift", Random(channels, 3)}};
  for (double& value : in.at("x"))
    value = static_cast<float>(value + 100);  // a variance from E[x^2] - E[x]^2 would be lost
  const ValueId x = InLayout(&builder, builder.AddInput("x", ValueClass::kBatch, F32(dims)), blocked, &in);
  const ValueId scale = builder.AddInput("scale", ValueClass::kParameter, F32({channels}));
  const ValueId shift = builder.AddInput("shift", ValueClass::kParameter, F32({channels}));
  const Attributes attributes{{"epsilon", epsilon}};
  const auto norm = builder.Add("batch_norm", "n", {x, scale, shift}, attributes).value();
  for (size_t i = 0; i < 3; ++i) builder.AddOutput(std::vector<std::string>{"y", "mean", "variance"}[i], norm[i]);
  builder.AddOutput("inference",
                    builder.Add1("batch_norm_inference", "n", {x, scale, shift, norm[1], norm[2]}, attributes).value());
  const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in, threads);
  ASSERT_TRUE(out.ok()) << out.status();
  const Moments m = MomentsOf(in.at("x"), channels, 30);
  Values y(in.at("x").size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t c = i / 30 % static_cast<size_t>(channels);
    y[i] = (in.at("x")[i] - m.mean[c]) / std::sqrt(m.variance[c] + epsilon) * in.at("scale")[c] + in.at("shift")[c];
  }
  ExpectNear(out->at("mean"), m.mean, 100 * 0x1.0p-20, "mean");  // f32 sums of values near 100
  ExpectNear(out->at("variance"), m.variance, 1e-4, "variance");
  ExpectNear(out->at("y"), y, 1e-3, "y");
  ExpectNear(out->at("inference"), out->at("y"), 1e-6, "inference by the same moments");
}

TEST(BatchNorm, GivesTheBiasedVariance) {  // NUM-08: the trainer makes n / (n - 1) of it
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("norm"), ops);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({2, 1}));
  const ValueId scale = builder.AddInput("scale", ValueClass::kParameter, F32({1}));
  const ValueId shift = builder.AddInput("shift", ValueClass::kParameter, F32({1}));
  const auto norm = builder.Add("batch_norm", "n", {x, scale, shift}, {{"epsilon", 1e-5}}).value();
  builder.AddOutput("mean", norm[1]);
  builder.AddOutput("variance", norm[2]);
  const auto out = RunGraph(builder.graph(), StandardCpuKernels(), {{"x", {1, 3}}, {"scale", {1}}, {"shift", {0}}});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->at("mean")[0], 2);
  EXPECT_EQ(out->at("variance")[0], 1);
}

TEST(BatchNorm, BitsDoNotDependOnThreads) {
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("norm"), ops);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({9, 40, 7, 7}));
  const ValueId dy = builder.AddInput("dy", ValueClass::kBatch, F32({9, 40, 7, 7}));
  const ValueId scale = builder.AddInput("scale", ValueClass::kParameter, F32({40}));
  const ValueId shift = builder.AddInput("shift", ValueClass::kParameter, F32({40}));
  const auto norm = builder.Add("batch_norm", "n", {x, scale, shift}, {{"epsilon", 1e-5}}).value();
  const auto grad = builder.Add("batch_norm_grad", "n", {dy, x, scale, norm[1], norm[2]}, {{"epsilon", 1e-5}}).value();
  builder.AddOutput("y", norm[0]);
  for (size_t i = 0; i < 3; ++i) builder.AddOutput(fmt::format("grad{}", i), grad[i]);
  const PlainValues in{{"x", Random(9 * 40 * 49, 1)},
                       {"dy", Random(9 * 40 * 49, 2)},
                       {"scale", Random(40, 3)},
                       {"shift", Random(40, 4)}};
  const auto one = RunGraph(builder.graph(), StandardCpuKernels(), in, 1);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(RunGraph(builder.graph(), StandardCpuKernels(), in, 2).value(), *one);
}

TEST(Channels, GradientRulesAgreeWithFiniteDifferences) {
  const OpRegistry ops = StandardOps();
  const KernelRegistry kernels = StandardCpuKernels();
  const TensorType x = F32({2, 3, 6, 5});
  const Attributes window{{"size", int64_t{3}}, {"stride", int64_t{2}}, {"padding", int64_t{1}}};
  ExpectGradientsMatch({.op = "avg_pool", .attributes = window, .inputs = {{.type = x}}}, ops, kernels);
  ExpectGradientsMatch({.op = "global_avg_pool", .inputs = {{.type = x}}}, ops, kernels);
  // Distances of 0.05 between any two elements: no step changes a winner.
  Values apart(static_cast<size_t>(x.elements()));
  for (size_t i = 0; i < apart.size(); ++i) apart[i] = 0.05 * static_cast<double>(i * 77 % 181);
  ExpectGradientsMatch({.op = "max_pool", .attributes = window, .inputs = {{.type = x, .values = apart}}}, ops,
                       kernels);
  for (const TensorType& type : {F32({8, 3}), F32({2, 3, 3, 4})}) {
    ExpectGradientsMatch({.op = "batch_norm",
                          .attributes = {{"epsilon", 0.1}},
                          .inputs = {{.type = type}, {.type = F32({3})}, {.type = F32({3})}},
                          .outputs = {0}},
                         ops, kernels);
  }
}

// One channel as it is, 16 through a convolution: blocked, where own vector code runs.
TEST(MaxPool, FirstOfEqualsWinsAndNanIsKept) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const int64_t channels : {1, 16}) {
    const OpRegistry ops = StandardOps();
    GraphBuilder builder(Graph("pool"), ops);
    PlainValues in;
    for (int64_t c = 0; c < channels; ++c) {
      for (double value : {3.0, 3.0, 1.0, nan, 3.0, 3.0, 2.0, 9.0}) in["x"].push_back(value);
      for (double value : {5.0, 7.0}) in["dy"].push_back(value);
    }
    const ValueId x =
        InLayout(&builder, builder.AddInput("x", ValueClass::kBatch, F32({1, channels, 2, 4})), channels > 1, &in);
    const ValueId dy = builder.AddInput("dy", ValueClass::kBatch, F32({1, channels, 1, 2}));
    const auto max = builder.Add("max_pool", "p", {x}, {{"size", int64_t{2}}}).value();
    builder.AddOutput("y", max[0]);
    builder.AddOutput("dx", builder
                                .Add1("max_pool_grad", "p", {dy, max[1]},
                                      {{"size", int64_t{2}}, {"input_dims", std::vector<int64_t>{1, channels, 2, 4}}})
                                .value());
    const auto out = RunGraph(builder.graph(), StandardCpuKernels(), in);
    ASSERT_TRUE(out.ok()) << out.status();
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      EXPECT_EQ(out->at("y")[2 * c], 3);
      EXPECT_TRUE(std::isnan(out->at("y")[2 * c + 1]));
      for (size_t i = 0; i < 8; ++i)
        EXPECT_EQ(out->at("dx")[8 * c + i], (Values{5, 0, 0, 7, 0, 0, 0, 0}[i])) << c << " " << i;
    }
    if (channels > 1) continue;  // infinities do not pass the convolution's zeros
    const auto low =
        RunGraph(builder.graph(), StandardCpuKernels(), {{"x", {-inf, -inf, 1, 2, -inf, -inf, 4, 3}}, {"dy", {5, 7}}});
    EXPECT_EQ(low->at("dx"), (Values{5, 0, 0, 0, 0, 0, 7, 0}));
  }
}

TEST(Channels, RefusalsNameLayerFoundAndExpected) {
  const OpRegistry ops = StandardOps();
  const auto message = [&](std::string_view op, const std::vector<TensorType>& inputs, Attributes attributes) {
    GraphBuilder builder(Graph("g"), ops);
    std::vector<ValueId> values;
    for (const TensorType& type : inputs)
      values.push_back(builder.AddInput(fmt::format("in{}", values.size()), ValueClass::kBatch, type));
    const auto added = builder.Add(op, "layers.3", values, std::move(attributes));
    EXPECT_EQ(added.status().code(), absl::StatusCode::kInvalidArgument);
    return Message(added.status());
  };
  EXPECT_THAT(message("max_pool", {F32({2, 3, 4, 4})}, {{"size", int64_t{5}}}),
              HasSubstr("layers.3 max_pool: found window 5x5"));
  EXPECT_THAT(message("max_pool", {F32({2, 3, 40, 40})}, {{"size", int64_t{16}}}), HasSubstr("expected at most 15"));
  EXPECT_THAT(message("avg_pool", {F32({2, 3, 4, 4})}, {{"size", int64_t{2}}, {"padding", int64_t{2}}}),
              HasSubstr("expected 0 to 1"));
  EXPECT_THAT(message("avg_pool", {F32({2, 3})}, {{"size", int64_t{2}}}), HasSubstr("four dimensions"));
  EXPECT_THAT(message("batch_norm", {F32({2, 3}), F32({3}), F32({4})}, {{"epsilon", 1e-5}}),
              HasSubstr("expected f32[3]"));
  EXPECT_THAT(message("batch_norm", {F32({2, 3}), F32({3}), F32({3})}, {{"epsilon", 0.0}}),
              HasSubstr("expected more than 0"));
}

}  // namespace
}  // namespace tutti
