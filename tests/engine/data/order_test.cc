#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "engine/data/permutation.h"
#include "engine/data/steps.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Epoch(uint64_t seed, int64_t epoch, int64_t size, bool shuffle = true) {
  const EpochOrder order({.seed = seed, .epoch = epoch, .size = size, .shuffle = shuffle});
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < size; ++i) rows.push_back(order(i));
  return rows;
}

bool IsPermutation(const std::vector<int64_t>& rows) {
  std::vector<char> seen(rows.size());
  for (int64_t row : rows) {
    if (row < 0 || row >= static_cast<int64_t>(rows.size()) || seen[static_cast<size_t>(row)]++ != 0) return false;
  }
  return true;
}

TEST(KeyedPermutation, IsABijectionWithAnInverseForEverySize) {
  for (int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 97, 255, 256, 257, 1000, 1009, 60000}) {
    const KeyedPermutation permutation({11, 22}, 33, size);
    std::vector<int64_t> values;
    for (int64_t i = 0; i < size; ++i) {
      values.push_back(permutation(i));
      ASSERT_EQ(permutation.Inverse(values.back()), i) << size;
    }
    EXPECT_TRUE(IsPermutation(values)) << size;
  }
}

// Values of an independent implementation (Python) of the scheme in permutation.h, on Random123's Philox4x32-10.
TEST(KeyedPermutation, IsTheSameOnEveryMachine) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 10; ++i) values.push_back(KeyedPermutation({1, 2}, 3, 10)(i));
  EXPECT_THAT(values, ElementsAre(6, 1, 3, 8, 2, 0, 5, 9, 7, 4));
  const KeyedPermutation large({0xDEADBEEF, 0x12345678}, uint64_t{7} << 32 | 1, 60000);
  EXPECT_EQ(large(0), 44176);
  EXPECT_EQ(large(1), 50017);
  EXPECT_EQ(large(2), 9439);
  EXPECT_EQ(large(59999), 19746);
}

TEST(EpochOrder, EachEpochHoldsEachSampleOnce) {
  for (int64_t size : {1, 2, 3, 22, 1003, 60000, 65535, 65536, 65537, 131072, 200003}) {
    for (uint64_t seed : {0u, 7u}) {
      EXPECT_TRUE(IsPermutation(Epoch(seed, 3, size))) << size << " seed " << seed;
    }
  }
}

TEST(EpochOrder, EpochsAndSeedsDifferAndRepeat) {  // SHD-02
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed : {1, 2}) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const std::vector<int64_t> rows = Epoch(seed, epoch, 22);
      EXPECT_EQ(rows, Epoch(seed, epoch, 22));
      orders.insert(rows);
    }
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST(EpochOrder, WithoutShuffleIsTheDataSetsOrder) {
  std::vector<int64_t> expected(70000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(Epoch(5, 1, 70000, false), expected);
}

// Chi-square of where sample 0 lands, 10 cells, 4,000 seeds: 9 degrees of freedom, 99.99 % below 33.7.
TEST(EpochOrder, PositionsAreUniform) {
  for (int64_t size : {10, 100}) {
    std::vector<double> count(10);
    for (uint64_t seed = 0; seed < 4000; ++seed) {
      const EpochOrder order({.seed = seed, .epoch = 0, .size = size});
      count[static_cast<size_t>(order(0) * 10 / size)] += 1;
    }
    double chi2 = 0;
    for (double c : count) chi2 += (c - 400) * (c - 400) / 400;
    EXPECT_LT(chi2, 33.7) << size;
  }
}

// A shuffled order of n has about one fixed point and no long ascending run; a weak one of an ordered file would keep
// neighbours.
TEST(EpochOrder, NeighboursAreSeparated) {
  const std::vector<int64_t> rows = Epoch(1, 0, 60000);
  int64_t neighbours = 0, fixed = 0;
  for (size_t i = 0; i + 1 < rows.size(); ++i) neighbours += rows[i + 1] == rows[i] + 1;
  for (size_t i = 0; i < rows.size(); ++i) fixed += rows[i] == static_cast<int64_t>(i);
  EXPECT_LT(neighbours, 12);  // Poisson with mean 1
  EXPECT_LT(fixed, 12);
}

TEST(EpochOrder, ReadsStayInOneWindowAtATime) {
  const int64_t size = 3 * kShuffleWindow + 1000;
  const std::vector<int64_t> rows = Epoch(9, 2, size);
  // Full windows are visited as wholes: the distance (around the end) between rows of neighbouring positions passes the
  // window's size only where the window changes, three times.
  int64_t jumps = 0;
  int64_t low = rows[0], begin = 0;
  for (int64_t i = 1; i < size; ++i) {
    const int64_t distance = std::abs(rows[static_cast<size_t>(i)] - low);
    if (std::min(distance, size - distance) >= kShuffleWindow) {
      ++jumps;
      low = rows[static_cast<size_t>(i)];
      begin = i;
    }
  }
  EXPECT_LE(jumps, 3);
  EXPECT_GE(begin, 0);
  EXPECT_NE(Epoch(9, 3, size)[0], rows[0]);
}

TEST(Steps, EpochsEndWhereTheSamplesEnd) {
  const StepPlanCounts c = CountSteps({.epochs = 3, .steps = 0, .global_batch = 128, .data_set_size = 60000}).value();
  EXPECT_EQ(c.steps, 1407);  // ceil(180,000 / 128)
  EXPECT_EQ(c.samples, 180000);
  EXPECT_EQ(c.steps_per_epoch, 468);
  EXPECT_EQ(c.ValidSamples(1406), 128);
  EXPECT_EQ(c.ValidSamples(1407), 180000 - 1406 * 128);
  EXPECT_EQ(c.ValidSamples(1408), 0);
  EXPECT_EQ(c.ConsumedAfter(1407), 180000);
  EXPECT_EQ(c.EpochOf(469), 1);  // its first sample is number 59,904
  EXPECT_EQ(c.EpochOf(470), 2);
  const StepPlanCounts s = CountSteps({.epochs = 0, .steps = 10, .global_batch = 4, .data_set_size = 6}).value();
  EXPECT_EQ(s.samples, 40);
  EXPECT_EQ(s.ValidSamples(10), 4);
}

TEST(Steps, EveryRankMakesTheSameNumberAndOnlyTheLastIsToppedUp) {  // SHD-04
  const StepPlanCounts c = CountSteps({.epochs = 2, .steps = 0, .global_batch = 8, .data_set_size = 1003}).value();
  EXPECT_EQ(c.steps, 251);  // 2,006 / 8 = 250.75
  for (int64_t step = 1; step < 251; ++step) EXPECT_EQ(c.ValidSamples(step), 8);
  EXPECT_EQ(c.ValidSamples(251), 6);
}

TEST(Steps, AnEpochWithoutAStepIsRefused) {  // DAT-09
  const auto c = CountSteps({.epochs = 1, .steps = 0, .global_batch = 8, .data_set_size = 5});
  EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(c.status()), HasSubstr("0 steps per epoch: 5 samples < 8"));
  EXPECT_FALSE(CountSteps({.epochs = 0, .steps = 3, .global_batch = 8, .data_set_size = 5}).ok());
  EXPECT_TRUE(CountSteps({.epochs = 1, .steps = 0, .global_batch = 8, .data_set_size = 8}).ok());
}

TEST(Steps, ContradictionsAndOverflowAreRefused) {
  EXPECT_FALSE(CountSteps({.epochs = 1, .steps = 1, .global_batch = 8, .data_set_size = 80}).ok());
  EXPECT_FALSE(CountSteps({.epochs = 0, .steps = 0, .global_batch = 8, .data_set_size = 80}).ok());
  EXPECT_FALSE(CountSteps({.epochs = -1, .steps = 1, .global_batch = 8, .data_set_size = 80}).ok());
  EXPECT_FALSE(CountSteps({.epochs = 1, .steps = 0, .global_batch = 0, .data_set_size = 80}).ok());
  EXPECT_FALSE(CountSteps({.epochs = int64_t{1} << 62, .steps = 0, .global_batch = 8, .data_set_size = 80}).ok());
}

}  // namespace
}  // namespace tutti
