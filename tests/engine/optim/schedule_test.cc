#include "engine/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

v1::Optimizer Rate(double rate) {
  v1::Optimizer o;
  o.set_learning_rate(rate);
  return o;
}

v1::Schedule Kind(v1::ScheduleKind kind, int64_t warmup = 0) {
  v1::Schedule s;
  s.set_kind(kind);
  s.set_warmup_steps(warmup);
  return s;
}

// OPT-05: a function of the update alone: no world size, no micro-batch can move it.
TEST(LearningRate, WarmupIsLinearAndEndsAtTheBaseRate) {
  const v1::Schedule s = Kind(v1::SCHEDULE_KIND_CONSTANT, 10);
  for (int u = 1; u <= 10; ++u) EXPECT_DOUBLE_EQ(LearningRate(Rate(0.5), s, u, 20), 0.5 * u / 10);
  for (int u = 11; u <= 20; ++u) EXPECT_DOUBLE_EQ(LearningRate(Rate(0.5), s, u, 20), 0.5);
}

TEST(LearningRate, CosineIsHalfWayInTheMiddleAndFinalAtTheEnd) {
  v1::Schedule s = Kind(v1::SCHEDULE_KIND_COSINE, 10);
  s.set_final_factor(0.1);
  EXPECT_NEAR(LearningRate(Rate(1), s, 15, 20), 0.1 + 0.9 * 0.5, 1e-12);
  EXPECT_NEAR(LearningRate(Rate(1), s, 20, 20), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(Rate(1), s, 25, 20), 0.1, 1e-12);
}

// OPT-06: no state, hence the rate after a resume is the rate of the uninterrupted run; checked against the formula at
// every update.
TEST(LearningRate, CosineAtEveryUpdateEqualsTheFormula) {
  const v1::Schedule s = Kind(v1::SCHEDULE_KIND_COSINE);
  for (int u = 1; u <= 20; ++u) {
    EXPECT_NEAR(LearningRate(Rate(0.2), s, u, 20), 0.2 * std::pow(std::cos(M_PI * u / 40), 2), 1e-12) << u;
  }
}

TEST(LearningRate, LinearFallsEvenly) {
  const v1::Schedule s = Kind(v1::SCHEDULE_KIND_LINEAR, 4);
  EXPECT_DOUBLE_EQ(LearningRate(Rate(1), s, 4, 12), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(Rate(1), s, 6, 12), 0.75);
  EXPECT_DOUBLE_EQ(LearningRate(Rate(1), s, 12, 12), 0.0);
}

TEST(LearningRate, StepFallsByGammaEveryNUpdatesAfterWarmup) {
  v1::Schedule s = Kind(v1::SCHEDULE_KIND_STEP, 2);
  s.set_step_every(3);
  s.set_step_gamma(0.1);
  const double expected[] = {0.5, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01};
  for (int u = 1; u <= 9; ++u) EXPECT_NEAR(LearningRate(Rate(1), s, u, 9), expected[u - 1], 1e-15) << u;
}

}  // namespace
}  // namespace tutti
