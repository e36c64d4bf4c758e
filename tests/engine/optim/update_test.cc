#include "engine/optim/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/optim/schedule.h"

namespace tutti {
namespace {

using Vector = std::vector<float>;

v1::Optimizer Make(v1::OptimizerKind kind, double decay) {
  v1::Optimizer o;
  o.set_kind(kind);
  o.set_weight_decay(decay);
  o.set_beta1(0.9);
  o.set_beta2(0.999);
  o.set_epsilon(1e-8);
  return o;
}

// One tensor with its optimizer state.
struct Tensor {
  explicit Tensor(Vector values) : p(std::move(values)), g(p.size()), s0(p.size()), s1(p.size()) {}
  UpdateTensor view(bool decay) {
    return {p.data(), g.data(), {s0.data(), s1.data()}, static_cast<int64_t>(p.size()), decay};
  }
  Vector p, g, s0, s1;
};

Vector Train(const v1::Optimizer& o, double rate, Vector p, const std::vector<Vector>& gradients) {
  Tensor t(std::move(p));
  UpdateProgram program(o, {t.view(true)});
  for (size_t i = 0; i < gradients.size(); ++i) {
    t.g = gradients[i];
    program.Apply(0, program.blocks(), {static_cast<int64_t>(i) + 1, rate, 1}, 1);
  }
  return t.p;
}

void ExpectNear(const Vector& found, const Vector& expected, float tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

// Expected values: PyTorch 2.x, three steps each,
//   p = torch.tensor([1.0, -0.5, 0.25], requires_grad=True); o = torch.optim.SGD([p], lr=0.1, momentum=0.9,
//   weight_decay=0.01) for g in [[0.5, -0.25, 0.125], [-0.1, 0.2, 0.3], [0.4, 0.0, -0.6]]: p.grad = torch.tensor(g);
//   o.step()
// Three steps of a few f32 operations each: 10 ulp of 1.
TEST(Update, AgreesWithPyTorch) {
  const Vector start = {1.0f, -0.5f, 0.25f};
  const std::vector<Vector> gradients = {{0.5f, -0.25f, 0.125f}, {-0.1f, 0.2f, 0.3f}, {0.4f, 0.0f, -0.6f}};
  const float tolerance = 1.2e-6f;
  v1::Optimizer sgd = Make(v1::OPTIMIZER_KIND_SGD, 0);
  ExpectNear(Train(sgd, 0.1, start, gradients), {0.919999957f, -0.495000005f, 0.267500013f}, tolerance);
  sgd.set_weight_decay(0.01);
  ExpectNear(Train(sgd, 0.1, start, gradients), {0.917092979f, -0.493531466f, 0.266805738f}, tolerance);
  sgd.set_momentum(0.9);
  ExpectNear(Train(sgd, 0.1, start, gradients), {0.838074744f, -0.467522383f, 0.217801183f}, tolerance);
  sgd.set_nesterov(true);
  ExpectNear(Train(sgd, 0.1, start, gradients), {0.771593332f, -0.464392543f, 0.237940669f}, tolerance);
  ExpectNear(Train(Make(v1::OPTIMIZER_KIND_ADAM, 0.1), 0.01, start, gradients),
             {0.97525239f, -0.484426439f, 0.231975675f}, tolerance);
  ExpectNear(Train(Make(v1::OPTIMIZER_KIND_ADAMW, 0.1), 0.01, start, gradients),
             {0.974865794f, -0.487491518f, 0.231976464f}, tolerance);
}

// OPT-01
TEST(Update, AdamwDecouplesDecayAndAdamAddsItToTheGradient) {
  ExpectNear(Train(Make(v1::OPTIMIZER_KIND_ADAMW, 0.1), 0.1, {1}, {{0.5f}}), {0.89f}, 1e-6f);
  ExpectNear(Train(Make(v1::OPTIMIZER_KIND_ADAM, 0.1), 0.1, {1}, {{0.5f}}), {0.90f}, 1e-6f);
}

// OPT-02: zero gradient, rate 0.1, decay 0.1.
TEST(Update, DecayLeavesBiasesAndNormsAloneUnlessAsked) {
  ParameterInfo weight, bias;
  bias.is_bias_or_norm = true;
  for (bool all : {false, true}) {
    for (auto kind : {v1::OPTIMIZER_KIND_SGD, v1::OPTIMIZER_KIND_ADAMW}) {
      v1::Optimizer o = Make(kind, 0.1);
      o.set_decay_bias_and_norm(all);
      Tensor w({1}), b({1});
      UpdateProgram program(o, {w.view(HasWeightDecay(o, weight)), b.view(HasWeightDecay(o, bias))});
      program.Apply(0, program.blocks(), {1, 0.1, 1}, 1);
      EXPECT_NEAR(w.p[0], 0.99, 1e-6);
      if (all) {
        EXPECT_NEAR(b.p[0], 0.99, 1e-6);
      } else {
        EXPECT_EQ(b.p[0], 1.0f);
      }
    }
  }
}

// OPT-03: with counter and moments kept, step 11 of a constant gradient moves by the learning rate.
TEST(Update, AdamStepElevenAfterResumeMovesByTheLearningRate) {
  const v1::Optimizer o = Make(v1::OPTIMIZER_KIND_ADAM, 0);
  Tensor t({0});
  t.g = {1};
  UpdateProgram first(o, {t.view(false)});
  for (int u = 1; u <= 10; ++u) first.Apply(0, 1, {u, 1e-3, 1}, 1);
  Tensor resumed(t.p);
  resumed.g = {1};
  resumed.s0 = t.s0;
  resumed.s1 = t.s1;
  UpdateProgram second(o, {resumed.view(false)});
  second.Apply(0, 1, {11, 1e-3, 1}, 1);
  EXPECT_NEAR(t.p[0] - resumed.p[0], 1e-3, 1e-5);
}

// OPT-10, OPT-11: the global gradient is (6, 0) + (0, 8), averaged over two ranks (3, 4): norm 5 before clipping.
TEST(Update, ClippingScalesTheAveragedGradientToTheNorm) {
  Tensor t({0, 0});
  t.g = {3, 4};
  UpdateProgram program(Make(v1::OPTIMIZER_KIND_SGD, 0), {t.view(false)});
  program.Measure(0, program.blocks(), 1);
  const GradientMeasure measure = program.Measured();
  EXPECT_TRUE(measure.finite);
  EXPECT_DOUBLE_EQ(measure.norm, 5.0);
  const double scale = ClipScale(1.0, measure.norm);
  program.Apply(0, program.blocks(), {1, 1.0, scale}, 1);
  EXPECT_NEAR(t.p[0], -0.6, 1e-6);
  EXPECT_NEAR(t.p[1], -0.8, 1e-6);
  EXPECT_EQ(ClipScale(1.0, 0.5), 1.0);
  EXPECT_EQ(ClipScale(0, 1e30), 1.0);
}

// sum of i^2 for i = 1..n is n(n+1)(2n+1)/6; sizes around the block and lane borders.
TEST(Update, NormIsTheFormulaForEverySizeAndEqualForEverySplit) {
  for (int64_t n : {1, 15, 16, 17, 4095, 4096, 4097, 10000}) {
    Tensor t(Vector(n, 0.0f));
    for (int64_t i = 0; i < n; ++i) t.g[i] = static_cast<float>(i + 1);
    UpdateProgram whole(Make(v1::OPTIMIZER_KIND_SGD, 0), {t.view(false)}), split = whole;
    whole.Measure(0, whole.blocks(), 1);
    split.Measure(split.blocks() / 2, split.blocks(), 2);
    split.Measure(0, split.blocks() / 2, 1);
    const double x = static_cast<double>(n);
    EXPECT_NEAR(whole.Measured().norm / std::sqrt(x * (x + 1) * (2 * x + 1) / 6), 1, 1e-5) << n;
    EXPECT_EQ(whole.Measured().norm, split.Measured().norm) << n;
  }
}

TEST(Update, NonFiniteElementIsFoundAndNamedButHugeFiniteOnesAreNot) {
  Tensor a(Vector(5000, 0.0f)), b(Vector(5000, 0.0f));
  UpdateProgram program(Make(v1::OPTIMIZER_KIND_SGD, 0), {a.view(false), b.view(false)});
  a.g[4999] = 1e30f;  // its square overflows f32
  program.Measure(0, program.blocks(), 2);
  EXPECT_TRUE(program.Measured().finite);
  EXPECT_NEAR(program.Measured().norm / 1e30, 1, 1e-6);
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    b.g[4321] = bad;
    program.Measure(0, program.blocks(), 2);
    EXPECT_FALSE(program.Measured().finite);
    EXPECT_EQ(program.Measured().first_bad_tensor, 1);
  }
}

TEST(Update, ThreadsAndSplitsDoNotChangeTheBits) {
  const v1::Optimizer o = Make(v1::OPTIMIZER_KIND_ADAMW, 0.01);
  Vector results[2];
  for (int run = 0; run < 2; ++run) {
    Tensor t(Vector(20001, 0.5f));
    for (size_t i = 0; i < t.g.size(); ++i) t.g[i] = std::sin(static_cast<float>(i));
    UpdateProgram program(o, {t.view(true)});
    for (int u = 1; u <= 3; ++u) {
      program.Apply(2, program.blocks(), {u, 1e-2, 0.5}, run + 1);
      program.Apply(0, 2, {u, 1e-2, 0.5}, 1);
    }
    results[run] = t.p;
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace tutti
