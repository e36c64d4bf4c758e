// Losses and layer norm: values by formula, finite differences, independence of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/ops/builder.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "tests/engine/ops/finite_difference.h"
#include "tests/engine/ops/graph_runner.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

struct LossResult {
  double loss, correct;
  Values gradient;
};

class LossTest : public ::testing::Test {
 protected:
  struct Call {
    std::string op = "softmax_cross_entropy";
    int64_t rows = 1, classes = 1;
    Values x, targets, weights;
    double inverse_valid = 1;
    bool f32_targets = false;
    int threads = 1;
  };
  LossResult Run(const Call& call) {
    GraphBuilder builder(Graph("loss"), ops_);
    const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({call.rows, call.classes}));
    const TensorType targets = call.f32_targets ? F32({call.rows, call.classes}) : TensorType{DType::kI32, {call.rows}};
    const ValueId t = builder.AddInput("targets", ValueClass::kBatch, targets);
    const ValueId w = builder.AddInput("weights", ValueClass::kBatch, F32({call.rows}));
    const ValueId v = builder.AddInput("inverse_valid", ValueClass::kHostScalar, F32({}));
    const auto outputs = builder.Add(call.op, "loss", {x, t, w, v});
    TUTTI_CHECK_OK(outputs.status());
    builder.AddOutput("loss", (*outputs)[0]);
    builder.AddOutput("correct", (*outputs)[1]);
    builder.AddOutput("gradient", (*outputs)[2]);
    const auto found = RunGraph(
        builder.graph(), kernels_,
        {{"x", call.x}, {"targets", call.targets}, {"weights", call.weights}, {"inverse_valid", {call.inverse_valid}}},
        call.threads);
    TUTTI_CHECK_OK(found.status());
    return {found->at("loss")[0], found->at("correct")[0], found->at("gradient")};
  }
  const OpRegistry ops_ = StandardOps();
  const KernelRegistry kernels_ = StandardCpuKernels();
};
using SoftmaxCrossEntropy = LossTest;
using MeanSquaredError = LossTest;

// NUM-04: exponentials of raw logits would overflow. Values from the issue, calculated in double.
TEST_F(SoftmaxCrossEntropy, HugeLogitsStayFinite) {
  const LossResult found = Run({.rows = 1, .classes = 4, .x = {7999.99, 8000, 2, 1}, .targets = {1}, .weights = {1}});
  EXPECT_NEAR(found.loss, 0.68828, 1e-4);
  // 7999.99 as f32 is 7999.990234375.
  const double p0 = 1 / (1 + std::exp(8000 - 7999.990234375));
  const Values expected = {p0, -p0, 0, 0};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found.gradient[i], expected[i], 1e-6) << i;
  EXPECT_NEAR(found.gradient[0], 0.4975586, 1e-6);
}

TEST_F(SoftmaxCrossEntropy, ValuesGradientsAndCountsByFormula) {
  const int64_t rows = 5, classes = 19;
  Call call{.rows = rows,
            .classes = classes,
            .x = internal::RandomValues(rows * classes, 4),
            .targets = {0, 18, 3, 3, 7},
            .weights = {1, 1, 0, 1, 2},
            .inverse_valid = 0.125};
  for (double& x : call.x) x *= 5;
  call.x[18 + classes] = 9;  // row 1 is right
  double loss = 0, correct = 0;
  Values gradient(call.x.size(), 0);
  for (size_t r = 0; r < 5; ++r) {
    const double* x = &call.x[r * 19];
    double sum = 0;
    for (size_t k = 0; k < 19; ++k) sum += std::exp(x[k]);
    const auto label = static_cast<size_t>(call.targets[r]);
    loss += call.weights[r] * (std::log(sum) - x[label]);
    if (std::max_element(x, x + 19) - x == static_cast<int64_t>(label)) correct += call.weights[r];
    for (size_t k = 0; k < 19; ++k)
      gradient[r * 19 + k] = (std::exp(x[k]) / sum - (k == label ? 1 : 0)) * call.weights[r] * call.inverse_valid;
  }
  const LossResult found = Run(call);
  EXPECT_NEAR(found.loss, loss, 1e-6 * loss);
  EXPECT_GE(correct, 1);
  EXPECT_EQ(found.correct, correct);
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(found.gradient[i], gradient[i], 1e-6) << i;
}

// NUM-03: rows that are masked have no part in anything, whatever they hold.
TEST_F(SoftmaxCrossEntropy, RowsOfWeightZeroGiveExactZerosEvenFromNan) {
  const LossResult found =
      Run({.rows = 2, .classes = 2, .x = {NAN, INFINITY, 0, 0}, .targets = {-1, 0}, .weights = {0, 1}});
  EXPECT_NEAR(found.loss, std::log(2.0), 1e-6);
  EXPECT_EQ(found.gradient[0], 0);
  EXPECT_EQ(found.gradient[1], 0);
  EXPECT_NEAR(found.gradient[2], -0.5, 1e-6);
  const LossResult all_masked = Run({.rows = 1, .classes = 2, .x = {1, 2}, .targets = {0}, .weights = {0}});
  EXPECT_EQ(all_masked.loss, 0);
  EXPECT_EQ(all_masked.correct, 0);
}

TEST_F(SoftmaxCrossEntropy, NonFiniteLogitsOfAValidRowShow) {
  const LossResult found = Run({.rows = 1, .classes = 2, .x = {NAN, 0}, .targets = {1}, .weights = {1}});
  EXPECT_TRUE(std::isnan(found.gradient[0]) || std::isnan(found.loss));
}

TEST_F(SoftmaxCrossEntropy, ThreadsDoNotChangeBits) {
  Call call{.rows = 33,
            .classes = 10,
            .x = internal::RandomValues(330, 4),
            .targets = Values(33, 4),
            .weights = Values(33, 1)};
  const LossResult one = Run(call);
  call.threads = 2;
  const LossResult two = Run(call);
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(one.gradient, two.gradient);
}

TEST_F(SoftmaxCrossEntropy, LabelOutOfRangeEndsTheProcessWithItsValue) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Run({.rows = 1, .classes = 3, .x = {1, 2, 3}, .targets = {3}, .weights = {1}}),
               "label 3, expected 0..2");
}

TEST_F(MeanSquaredError, ClassTargetsAreOneHotAndRowsAreMeans) {
  // Row 0: ((0.5-0)^2 + (1-1)^2) / 2 = 0.125; row 1: ((2-1)^2 + (1-0)^2) / 2 = 1.
  const LossResult found = Run({.op = "mean_squared_error",
                                .rows = 2,
                                .classes = 2,
                                .x = {0.5, 1, 2, 1},
                                .targets = {1, 0},
                                .weights = {1, 3},
                                .inverse_valid = 0.25});
  EXPECT_NEAR(found.loss, 0.125 + 3, 1e-6);
  EXPECT_EQ(found.correct, 4);
  const Values gradient = {0.5 * 0.25, 0, 1 * 3 * 0.25, 1 * 3 * 0.25};  // 2 (y - t) / D * weight * inverse_valid
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found.gradient[i], gradient[i], 1e-6) << i;
}

TEST_F(MeanSquaredError, RealTargets) {
  const LossResult found = Run({.op = "mean_squared_error",
                                .rows = 1,
                                .classes = 3,
                                .x = {1, 2, 3},
                                .targets = {1, 0, 6},
                                .weights = {1},
                                .f32_targets = true});
  EXPECT_NEAR(found.loss, 13.0 / 3, 1e-5);
  EXPECT_NEAR(found.gradient[2], -2, 1e-6);
  EXPECT_EQ(found.correct, 0);
}

// The gradient output against differences of the loss output.
TEST_F(LossTest, GradientsMatchFiniteDifferences) {
  for (const char* op : {"softmax_cross_entropy", "mean_squared_error"}) {
    Call call{.op = op,
              .rows = 3,
              .classes = 6,
              .x = internal::RandomValues(18, 9),
              .targets = {5, 0, 2},
              .weights = {1, 2, 0.5},
              .inverse_valid = 0.5};
    const LossResult base = Run(call);
    for (size_t i = 0; i < 18; ++i) {
      const double x = call.x[i], step = 1.0 / 64;
      call.x[i] = x + step;
      const double above = Run(call).loss;
      call.x[i] = x - step;
      const double below = Run(call).loss;
      call.x[i] = x;
      EXPECT_NEAR(base.gradient[i], (above - below) / (2 * step) * call.inverse_valid, 1e-3) << op << " " << i;
    }
  }
}

TEST_F(LossTest, RefusesTargetsOfAnotherShapeByName) {
  GraphBuilder builder(Graph("g"), ops_);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({4, 10}));
  const ValueId t = builder.AddInput("t", ValueClass::kBatch, {DType::kI32, {5}});
  const ValueId w = builder.AddInput("w", ValueClass::kBatch, F32({4}));
  const ValueId v = builder.AddInput("v", ValueClass::kHostScalar, F32({}));
  EXPECT_THAT(Message(builder.Add("softmax_cross_entropy", "loss", {x, t, w, v}).status()),
              HasSubstr("loss softmax_cross_entropy: found input 1 i32[5], expected i32[4]"));
}

class LayerNorm : public LossTest {};

TEST_F(LayerNorm, NormalisesEachSampleOverAllItsElements) {
  const int64_t rows = 3, c = 2, h = 7;
  GraphBuilder builder(Graph("g"), ops_);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({rows, c, h}));
  const ValueId scale = builder.AddInput("scale", ValueClass::kParameter, F32({c, h}));
  const ValueId shift = builder.AddInput("shift", ValueClass::kParameter, F32({c, h}));
  const auto outputs = builder.Add("layer_norm", "n", {x, scale, shift}, {{"epsilon", 1e-5}}).value();
  builder.AddOutput("y", outputs[0]);
  builder.AddOutput("mean", outputs[1]);
  PlainValues in{{"x", internal::RandomValues(rows * c * h, 1)},
                 {"scale", internal::RandomValues(c * h, 2)},
                 {"shift", internal::RandomValues(c * h, 3)}};
  for (double& value : in["x"])
    value = static_cast<float>(value + 100);  // a large mean must not cost the variance its digits
  const auto found = RunGraph(builder.graph(), kernels_, in);
  ASSERT_TRUE(found.ok()) << found.status();
  const size_t n = 14;
  for (size_t r = 0; r < 3; ++r) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < n; ++i) mean += in["x"][r * n + i] / n;
    for (size_t i = 0; i < n; ++i) variance += std::pow(in["x"][r * n + i] - mean, 2) / n;
    EXPECT_NEAR(found->at("mean")[r], mean, 1e-5);
    for (size_t i = 0; i < n; ++i)
      // x - mean cancels: 100 * 2^-24 of absolute error over a deviation of about 0.6.
      EXPECT_NEAR(found->at("y")[r * n + i],
                  (in["x"][r * n + i] - mean) / std::sqrt(variance + 1e-5) * in["scale"][i] + in["shift"][i], 4e-5);
  }
}

TEST_F(LayerNorm, GradientsMatchFiniteDifferences) {
  GradientCheck check{.op = "layer_norm", .attributes = {{"epsilon", 1e-3}}};
  check.inputs = {{.type = F32({4, 3, 7})}, {.type = F32({3, 7})}, {.type = F32({3, 7})}};
  ExpectGradientsMatch(check, ops_, kernels_);
}

TEST_F(LayerNorm, ThreadsDoNotChangeBits) {
  const auto run = [&](int threads) {
    GraphBuilder builder(Graph("g"), ops_);
    const TensorType x = F32({9, 150}), p = F32({150}), row = F32({9});
    std::vector<ValueId> ids;
    PlainValues in;
    for (const auto& [name, type] : std::vector<std::pair<std::string, TensorType>>{
             {"dy", x}, {"x", x}, {"scale", p}, {"mean", row}, {"inverse", row}}) {
      ids.push_back(builder.AddInput(name, ValueClass::kBatch, type));
      in[name] = internal::RandomValues(type.elements(), ids.size());
    }
    const auto grads = builder.Add("layer_norm_grad", "n", ids).value();
    for (size_t k = 0; k < 3; ++k) builder.AddOutput(std::to_string(k), grads[k]);
    return RunGraph(builder.graph(), kernels_, in, threads).value();
  };
  EXPECT_EQ(run(1), run(2));
}

}  // namespace
}  // namespace tutti
