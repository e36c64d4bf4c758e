#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cli/text.h"

namespace tutti::cli {
namespace {

using ::testing::HasSubstr;

v1::StepRecord Step(int64_t step, double start_ms, double step_ms = 100, int64_t samples = 8) {
  v1::StepRecord record;
  record.set_step(step);
  record.set_epoch(1);
  record.set_start_unix_ms(start_ms);
  record.set_step_ms(step_ms);
  record.set_samples(samples);
  record.set_loss(0.287);
  record.set_accuracy(0.895);
  return record;
}

TEST(ProgressTracker, ThroughputIsSamplesOverTimeWithoutWarmUp) {  // LOG-06
  ProgressTracker progress;
  progress.SetTotals(100, 2);
  progress.Add(Step(1, 0, 5000));
  progress.Add(Step(2, 5000, 3000));
  EXPECT_EQ(progress.samples_per_second(), 0);  // only warm-up was seen
  for (int64_t step = 3; step <= 20; ++step) progress.Add(Step(step, 8000 + static_cast<double>(step - 3) * 100));
  EXPECT_DOUBLE_EQ(progress.samples_per_second(), 80);  // 8 samples each 100 ms
  EXPECT_DOUBLE_EQ(progress.seconds_left(), 8);         // 80 steps
}

TEST(ProgressTracker, StepsThatWereNotSeenCount) {
  ProgressTracker progress;
  progress.Add(Step(1, 0));
  progress.Add(Step(10, 1000));
  progress.Add(Step(60, 2000));  // 50 steps in a second
  EXPECT_DOUBLE_EQ(progress.samples_per_second(), 400);
  EXPECT_EQ(progress.seconds_left(), -1);  // the length is not known
}

TEST(ProgressTracker, ShortLastBatchDoesNotLowerTheRate) {
  ProgressTracker progress;
  progress.SetTotals(6, 1);
  for (int64_t step = 1; step <= 5; ++step) progress.Add(Step(step, static_cast<double>(step) * 100));
  progress.Add(Step(6, 600, 100, 1));
  EXPECT_DOUBLE_EQ(progress.samples_per_second(), 80);
  EXPECT_DOUBLE_EQ(progress.seconds_left(), 0);
}

TEST(ProgressTracker, AStepThatGoesBackStartsANewWindow) {
  ProgressTracker progress;
  for (int64_t step = 1; step <= 10; ++step) progress.Add(Step(step, static_cast<double>(step) * 100));
  progress.Add(Step(6, 60'000));  // the next generation, a minute later
  EXPECT_EQ(progress.samples_per_second(), 0);
  progress.Add(Step(7, 60'100));
  progress.Add(Step(8, 60'200));
  progress.Add(Step(9, 60'300));
  EXPECT_DOUBLE_EQ(progress.samples_per_second(), 80);
}

TEST(ProgressTracker, PlainLinesComeAtTheirIntervalAndOnce) {
  ProgressTracker progress;
  progress.SetTotals(25, 1);
  std::vector<int64_t> printed;
  for (const int64_t step : {1, 2, 9, 11, 12, 19, 20, 24, 25}) {
    progress.Add(Step(step, static_cast<double>(step)));
    if (progress.PlainLineDue(10)) printed.push_back(step);
    EXPECT_FALSE(progress.PlainLineDue(10));
  }
  EXPECT_THAT(printed, ::testing::ElementsAre(1, 11, 20, 25));
}

TEST(ProgressLines, SayStepLossAccuracyRateAndTimeLeft) {
  ProgressTracker progress;
  progress.SetTotals(1407, 3);
  for (int64_t step = 808; step <= 812; ++step) progress.Add(Step(step, static_cast<double>(step) * 100, 100, 379));
  EXPECT_EQ(PlainStepLine(progress), "step 812/1,407  epoch 1/3  loss 0.287  acc 0.895  3,790 samples/s  59.5 s left");
  const std::string bar = BarLine(progress, 200);
  EXPECT_THAT(bar, HasSubstr("812/1,407"));
  EXPECT_THAT(bar, HasSubstr("███████████▌ "));  // 0.577 of 20 columns: 11.5
  EXPECT_EQ(DisplayWidth(BarLine(progress, 40)), 40u);
}

TEST(ProgressLines, NanLossAndSkippedStepsAreSaid) {
  ProgressTracker progress;
  v1::StepRecord record = Step(3, 0);
  record.set_loss(std::nan(""));
  record.set_skipped(true);
  record.set_skip_cause("rank 1, shard 3, layers.0.weight");
  progress.Add(record);
  EXPECT_THAT(PlainStepLine(progress), HasSubstr("loss nan"));
  EXPECT_THAT(PlainStepLine(progress), HasSubstr("SKIPPED: non-finite gradient (rank 1, shard 3, layers.0.weight)"));
}

TEST(ProgressLines, PartsOfAStepAddUp) {
  v1::StepRecord record = Step(5, 0, 33.8);
  record.set_forward_ms(10.9);
  record.set_backward_ms(18.8);
  record.set_exchange_ms(1.9);
  record.set_exposed_exchange_ms(0.4);
  record.set_optimizer_ms(0.9);
  record.set_data_wait_ms(0.2);
  EXPECT_EQ(TimeLine(record, 200),
            "          step 33.8 ms: forward 10.9 backward 18.8 exchange 1.9 (0.4 exposed) optimizer 0.9 input 0.2 "
            "other 2.6");
}

}  // namespace
}  // namespace tutti::cli
