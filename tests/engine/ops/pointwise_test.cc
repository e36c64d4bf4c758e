// Pointwise ops, fused programs, reshape and dropout: formulas, finite differences, independence of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/philox.h"
#include "engine/ops/builder.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/pointwise/functions.h"
#include "engine/ops/pointwise/program.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "tests/engine/ops/finite_difference.h"
#include "tests/engine/ops/graph_runner.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

class Ops : public ::testing::Test {
 protected:
  // One op on inputs "0", "1", ...; its output 0.
  std::vector<double> Apply(const std::string& op, const std::vector<std::vector<double>>& inputs,
                            Attributes attributes = {}, int threads = 1) {
    GraphBuilder builder(Graph(op), ops_);
    std::vector<ValueId> ids;
    PlainValues values;
    for (size_t i = 0; i < inputs.size(); ++i) {
      ids.push_back(
          builder.AddInput(std::to_string(i), ValueClass::kBatch, F32({static_cast<int64_t>(inputs[i].size())})));
      values[std::to_string(i)] = inputs[i];
    }
    const auto y = builder.Add1(op, "p", ids, std::move(attributes));
    TUTTI_CHECK_OK(y.status());
    builder.AddOutput("y", *y);
    auto outputs = RunGraph(builder.graph(), kernels_, values, threads);
    TUTTI_CHECK_OK(outputs.status());
    return outputs->at("y");
  }
  const OpRegistry ops_ = StandardOps();
  const KernelRegistry kernels_ = StandardCpuKernels();
};
using Pointwise = Ops;
using Reshape = Ops;

double Phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// `units` of the last place, 2^-23 of the value.
void ExpectClose(double found, double expected, double units, double x, const char* what) {
  EXPECT_NEAR(found, expected, units * 0x1p-23 * std::max(std::abs(expected), 1e-3)) << what << "(" << x << ")";
}

TEST(FastFunctions, AgreeWithTheLibraryInDouble) {
  for (int i = -8000; i <= 8000; ++i) {
    const float x = static_cast<float>(i) * 1e-3f;
    ExpectClose(FastExp(x), std::exp(double{x}), 4, x, "exp");
    ExpectClose(FastTanh(x), std::tanh(double{x}), 4, x, "tanh");
    ExpectClose(FastSigmoid(x), 1 / (1 + std::exp(-double{x})), 4, x, "sigmoid");
    // The tail is an exponential of -x^2 / 2: two roundings of the exponent are parts of the value.
    ExpectClose(NormalCdf(x), Phi(x), 4 + x * x, x, "Phi");
  }
}

TEST(FastFunctions, StayFiniteAtTheEdges) {
  for (const float x : {-1e30f, -100.0f, 100.0f, 1e30f, INFINITY, -INFINITY}) {
    EXPECT_TRUE(std::isfinite(FastExp(x))) << x;
    EXPECT_EQ(FastTanh(x), x < 0 ? -1.0f : 1.0f);
    EXPECT_NEAR(FastSigmoid(x), x < 0 ? 0.0f : 1.0f, 1e-37f);
    EXPECT_EQ(NormalCdf(x), x < 0 ? NormalCdf(x) : 1.0f);
  }
  EXPECT_EQ(FastTanh(0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(FastExp(NAN)));
}

TEST_F(Pointwise, FormulasOfEachOp) {
  const std::vector<double> a = {-2, -0.5, 0, 0.25, 3}, b = {1, -1, 2, 0, 0.5};
  const auto expect = [&](const std::vector<double>& found, auto formula) {
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(found[i], formula(a[i], b[i]), 1e-6) << i;
  };
  expect(Apply("add", {a, b}), [](double u, double v) { return u + v; });
  expect(Apply("mul", {a, b}), [](double u, double v) { return u * v; });
  expect(Apply("scale", {a}, {{"factor", -0.5}}), [](double u, double) { return -0.5 * u; });
  expect(Apply("relu", {a}), [](double u, double) { return u > 0 ? u : 0; });
  expect(Apply("relu_grad", {a, b}), [](double u, double v) { return v > 0 ? u : 0; });
  expect(Apply("gelu", {a}), [](double u, double) { return u * Phi(u); });
  expect(Apply("tanh", {a}), [](double u, double) { return std::tanh(u); });
  expect(Apply("tanh_grad", {a, b}), [](double u, double v) { return u * (1 - v * v); });
  expect(Apply("sigmoid", {a}), [](double u, double) { return 1 / (1 + std::exp(-u)); });
  expect(Apply("sigmoid_grad", {a, b}), [](double u, double v) { return u * v * (1 - v); });
}

TEST_F(Pointwise, NotANumberIsNotHidden) {
  EXPECT_TRUE(std::isnan(Apply("relu", {{NAN}})[0]));
  EXPECT_TRUE(std::isnan(Apply("gelu", {{NAN}})[0]));
}

TEST_F(Pointwise, GradientsMatchFiniteDifferences) {
  const TensorType type = F32({3, 11});
  for (const char* op : {"relu", "gelu", "tanh", "sigmoid"})
    ExpectGradientsMatch({.op = op, .inputs = {{.type = type}}}, ops_, kernels_);
  for (const char* op : {"add", "mul"})
    ExpectGradientsMatch({.op = op, .inputs = {{.type = type}, {.type = type}}}, ops_, kernels_);
  ExpectGradientsMatch({.op = "scale", .attributes = {{"factor", 1.5}}, .inputs = {{.type = type}}}, ops_, kernels_);
}

TEST_F(Pointwise, FusedProgramIsItsStepsAndThreadsDoNotChangeBits) {
  const auto a = internal::RandomValues(20000, 1), b = internal::RandomValues(20000, 2),
             c = internal::RandomValues(20000, 3);
  const Attributes program = {{"program", std::string("add 0 1; gelu 3; relu_grad 4 2; scale 5 *0.25")}};
  const auto fused = Apply("pointwise", {a, b, c}, program);
  const auto stepwise =
      Apply("scale", {Apply("relu_grad", {Apply("gelu", {Apply("add", {a, b})}), c})}, {{"factor", 0.25}});
  EXPECT_EQ(fused, stepwise);
  EXPECT_EQ(fused, Apply("pointwise", {a, b, c}, program, 2));
}

TEST(PointwiseProgram, TextAndBack) {
  const std::string text = "add 0 1; relu_grad 2 1; scale 3 *0.5";
  const auto program = ParsePointwise(text, 2);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(ToText(*program), text);
  for (const char* wrong : {"", "add 0", "add 0 2", "nosuch 0", "relu -1", "relu 1", "scale 0 0.5"})
    EXPECT_FALSE(ParsePointwise(wrong, 1).ok()) << wrong;
}

TEST_F(Pointwise, RefusesWhatDoesNotFitByName) {
  GraphBuilder builder(Graph("g"), ops_);
  const ValueId a = builder.AddInput("a", ValueClass::kBatch, F32({2, 3}));
  const ValueId b = builder.AddInput("b", ValueClass::kBatch, F32({3, 2}));
  const ValueId i = builder.AddInput("i", ValueClass::kBatch, {DType::kI32, {2, 3}});
  EXPECT_THAT(Message(builder.Add1("add", "layers.7", {a, b}).status()),
              HasSubstr("layers.7 add: found inputs f32[2,3] and f32[3,2]"));
  EXPECT_THAT(Message(builder.Add1("relu", "layers.7", {i}).status()),
              HasSubstr("found an input i32[2,3], expected f32"));
  EXPECT_THAT(Message(builder.Add1("add", "layers.7", {a}).status()), HasSubstr("found 1 inputs, expected 2"));
  EXPECT_EQ(builder.Add1("nosuch", "layers.7", {a}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Reshape, KeepsRowMajorOrderAndSendsGradientsBack) {
  const auto x = internal::RandomValues(24, 1);
  GraphBuilder builder(Graph("g"), ops_);
  const ValueId in = builder.AddInput("x", ValueClass::kBatch, F32({2, 3, 4}));
  const ValueId flat = builder.Add1("flatten", "p", {in}).value();
  EXPECT_EQ(builder.type(flat), F32({2, 12}));
  builder.AddOutput("flat", flat);
  builder.AddOutput("other", builder.Add1("reshape", "p", {in}, {{"dims", std::vector<int64_t>{4, 6}}}).value());
  const auto outputs = RunGraph(builder.graph(), kernels_, {{"x", x}});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->at("flat"), x);
  EXPECT_EQ(outputs->at("other"), x);
  EXPECT_FALSE(builder.Add1("reshape", "p", {in}, {{"dims", std::vector<int64_t>{5, 5}}}).ok());
  ExpectGradientsMatch({.op = "flatten", .inputs = {{.type = F32({2, 3, 2})}}}, ops_, kernels_);
}

class Dropout : public Ops {
 protected:
  struct Call {
    double seed = 7, batch_index = 3, first_row = 0;
    std::string key = "layers.2";
    double rate = 0.5;
  };
  std::vector<double> Mask(const Call& call, int64_t rows, int64_t width, int threads = 1) {
    GraphBuilder builder(Graph("g"), ops_);
    const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({rows, width}));
    const ValueId seed = builder.AddInput("seed", ValueClass::kHostScalar, {DType::kU64, {}});
    const ValueId batch = builder.AddInput("batch_index", ValueClass::kHostScalar, {DType::kI64, {}});
    const ValueId row = builder.AddInput("first_row", ValueClass::kHostScalar, {DType::kI64, {}});
    const auto y = builder.Add1("dropout", "p", {x, seed, batch, row}, {{"rate", call.rate}, {"key", call.key}});
    TUTTI_CHECK_OK(y.status());
    builder.AddOutput("y", *y);
    const auto outputs = RunGraph(builder.graph(), kernels_,
                                  {{"x", std::vector<double>(static_cast<size_t>(rows * width), 1.0)},
                                   {"seed", {call.seed}},
                                   {"batch_index", {call.batch_index}},
                                   {"first_row", {call.first_row}}},
                                  threads);
    TUTTI_CHECK_OK(outputs.status());
    return outputs->at("y");
  }
};

TEST_F(Dropout, MaskIsPhiloxOfSeedKeyBatchRowAndElement) {
  const int64_t rows = 3, width = 133;
  const auto mask = Mask({.first_row = 40, .rate = 0.25}, rows, width);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const auto words = Philox4x32(MakePhiloxKey(7, "layers.2"), DropoutCounter(i / 4, 40 + r, 3));
      const double expected = UnitFloat(words[static_cast<size_t>(i % 4)]) >= 0.25f ? 1 / 0.75 : 0;
      ASSERT_NEAR(mask[static_cast<size_t>(r * width + i)], expected, 1e-6) << r << "," << i;
    }
}

// NUM-07: the mask belongs to the sample's place in the global batch, not to the rank, micro-batch or thread that
// computes it.
TEST_F(Dropout, CutsOfTheBatchSeeTheSameMask) {
  const auto whole = Mask({}, 8, 50);
  std::vector<double> pieces;
  for (double first : {0.0, 4.0}) {
    const auto piece = Mask({.first_row = first}, 4, 50, 2);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(whole, pieces);
}

// NUM-07: two shards' masks agree as often as independent coins do; 1000 of them deviate by 0.05 from 0.5 once in 600
// times (3 sigma).
TEST_F(Dropout, OtherRowsSeedsBatchesAndLayersSeeOtherMasks) {
  const auto base = Mask({}, 1, 1000);
  const auto agreement = [&](const Call& call) {
    const auto other = Mask(call, 1, 1000);
    int same = 0;
    for (size_t i = 0; i < other.size(); ++i) same += (other[i] == 0) == (base[i] == 0);
    return same / 1000.0;
  };
  EXPECT_EQ(agreement({}), 1.0);
  EXPECT_NEAR(agreement({.first_row = 1}), 0.5, 0.05);
  EXPECT_NEAR(agreement({.seed = 8}), 0.5, 0.05);
  EXPECT_NEAR(agreement({.batch_index = 4}), 0.5, 0.05);
  EXPECT_NEAR(agreement({.key = "layers.3"}), 0.5, 0.05);
}

TEST_F(Dropout, RateIsTheFractionOfZerosAndRateZeroKeepsAll) {
  const auto mask = Mask({.rate = 0.3}, 100, 1000);
  const double zeros = static_cast<double>(std::count(mask.begin(), mask.end(), 0.0)) / 1e5;
  EXPECT_NEAR(zeros, 0.3, 5 * std::sqrt(0.3 * 0.7 / 1e5));  // five standard deviations
  const auto all = Mask({.rate = 0.0}, 2, 7);
  EXPECT_EQ(all, std::vector<double>(14, 1.0));
}

TEST_F(Dropout, GradientMatchesFiniteDifferences) {
  GradientCheck check{.op = "dropout", .attributes = {{"rate", 0.4}, {"key", std::string("layers.1")}}};
  check.inputs = {{.type = F32({4, 9})},
                  {.type = {DType::kU64, {}}, .values = {5}, .value_class = ValueClass::kHostScalar},
                  {.type = {DType::kI64, {}}, .values = {2}, .value_class = ValueClass::kHostScalar},
                  {.type = {DType::kI64, {}}, .values = {12}, .value_class = ValueClass::kHostScalar}};
  ExpectGradientsMatch(check, ops_, kernels_);
}

TEST_F(Dropout, RefusesARateOfOne) {
  GraphBuilder builder(Graph("g"), ops_);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({2, 3}));
  const ValueId seed = builder.AddInput("seed", ValueClass::kHostScalar, {DType::kU64, {}});
  const ValueId index = builder.AddInput("i", ValueClass::kHostScalar, {DType::kI64, {}});
  EXPECT_THAT(
      Message(
          builder.Add1("dropout", "p", {x, seed, index, index}, {{"rate", 1.0}, {"key", std::string("k")}}).status()),
      HasSubstr("found rate 1, expected 0 <= rate < 1"));
}

}  // namespace
}  // namespace tutti
