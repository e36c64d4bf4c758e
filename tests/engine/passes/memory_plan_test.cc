// Offsets never overlap in time and space, sharing is legal only, and plans are as small as small cases allow.
#include "engine/passes/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/ops/builder.h"
#include "engine/ops/registry.h"

namespace tutti {
namespace {

void ExpectSound(std::span<const Lifetime> lifetimes, const MemoryPlan& plan) {
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    EXPECT_EQ(plan.offsets[i] % kTensorAlignment, 0);
    EXPECT_LE(plan.offsets[i] + lifetimes[i].bytes, plan.total_bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool in_time = lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last;
      const bool in_space = plan.offsets[i] < plan.offsets[j] + lifetimes[j].bytes &&
                            plan.offsets[j] < plan.offsets[i] + lifetimes[i].bytes;
      EXPECT_FALSE(in_time && in_space) << i << " and " << j;
    }
  }
  EXPECT_GE(plan.total_bytes, plan.lower_bound_bytes);
}

TEST(PlanMemory, AChainNeedsItsTwoLargestNeighbours) {
  // a -> b -> c -> d: at each step two are alive.
  const std::vector<Lifetime> chain = {{640, 0, 1}, {1280, 1, 2}, {320, 2, 3}, {640, 3, 4}};
  const MemoryPlan plan = PlanMemory(chain);
  ExpectSound(chain, plan);
  EXPECT_EQ(plan.lower_bound_bytes, 640 + 1280);
  EXPECT_EQ(plan.total_bytes, 640 + 1280);
}

TEST(PlanMemory, TheSmallestGapIsTaken) {
  // 128 and 64 live throughout with gaps of 256 and 64 free between them at step 3; the last one, 64 bytes, goes into
  // the small gap.
  const std::vector<Lifetime> lifetimes = {{1024, 0, 9}, {256, 0, 2}, {128, 0, 9}, {64, 3, 3}};
  const MemoryPlan plan = PlanMemory(lifetimes);
  ExpectSound(lifetimes, plan);
  EXPECT_EQ(plan.offsets[3], plan.offsets[1]);
  EXPECT_EQ(plan.total_bytes, 1024 + 256 + 128);
}

TEST(PlanMemory, NothingNeedsNothing) {
  const MemoryPlan plan = PlanMemory({});
  EXPECT_EQ(plan.total_bytes, 0);
  EXPECT_EQ(plan.lower_bound_bytes, 0);
}

TEST(PlanMemory, RandomLifetimesNeverCollideAndPlansRepeat) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<Lifetime> lifetimes;
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % 30);
      lifetimes.push_back({static_cast<int64_t>(random() % 5000), first, first + static_cast<int>(random() % 8)});
    }
    const MemoryPlan plan = PlanMemory(lifetimes);
    ExpectSound(lifetimes, plan);
    EXPECT_EQ(plan.offsets, PlanMemory(lifetimes).offsets);
    EXPECT_LE(plan.total_bytes, 2 * plan.lower_bound_bytes);
  }
}

TEST(BufferTable, InPlaceOnlyWhereNobodyNeedsTheInputAnyMore) {
  BufferTable table;
  const int a = table.Add(64), b = table.Add(64), c = table.Add(64);
  table.Use(a, 0), table.Use(a, 1), table.Use(a, 2);
  table.Use(b, 1), table.Use(b, 2);
  table.Use(c, 2), table.Use(c, 3);
  EXPECT_FALSE(table.ShareInPlace(b, a, 1, std::vector<int>{a}));  // a is read at 2
  EXPECT_TRUE(table.ShareInPlace(c, a, 2, std::vector<int>{a, b}));
  EXPECT_FALSE(table.ShareInPlace(c, b, 2, std::vector<int>{a, b}));  // c has a place already: b's would overlap it
  const MemoryPlan plan = table.Plan();
  EXPECT_EQ(plan.offsets[static_cast<size_t>(a)], plan.offsets[static_cast<size_t>(c)]);
  EXPECT_NE(plan.offsets[static_cast<size_t>(a)], plan.offsets[static_cast<size_t>(b)]);
  EXPECT_EQ(plan.total_bytes, 128);
}

TEST(BufferTable, AViewKeepsItsSourceAlive) {
  BufferTable table;
  const int source = table.Add(64), view = table.Add(64), other = table.Add(64);
  table.Use(source, 0), table.Use(source, 1);
  table.Use(view, 1), table.Use(view, 3);
  table.Use(other, 1), table.Use(other, 2);
  table.ShareView(view, source);
  EXPECT_FALSE(table.ShareInPlace(other, source, 1, std::vector<int>{source}));  // the view is read at 3
  const MemoryPlan plan = table.Plan();
  EXPECT_EQ(plan.offsets[static_cast<size_t>(source)], plan.offsets[static_cast<size_t>(view)]);
  EXPECT_EQ(plan.total_bytes, 128);
}

TEST(BufferTable, OneInputIsTakenOnceAndNotWhereItIsAnotherOperandToo) {
  BufferTable table;
  const int a = table.Add(64), b = table.Add(64), c = table.Add(64), view = table.Add(64), d = table.Add(64);
  table.Use(a, 0), table.Use(a, 1);
  table.Use(b, 1), table.Use(c, 1);  // b and c: outputs of step 1 that nobody reads
  table.Use(view, 0), table.Use(view, 2), table.Use(d, 2);
  EXPECT_TRUE(table.ShareInPlace(b, a, 1, std::vector<int>{a}));
  EXPECT_FALSE(table.ShareInPlace(c, a, 1, std::vector<int>{a}));
  EXPECT_FALSE(table.ShareInPlace(d, view, 2, std::vector<int>{view, view}));
}

TEST(PlanGraphMemory, PointwiseChainsRunInPlaceAndImagesArePadded) {
  const OpRegistry ops = StandardOps();
  GraphBuilder builder(Graph("g"), ops);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, {DType::kF32, {2, 3, 4, 4}});
  ValueId y = x;
  for (const char* op : {"relu", "tanh", "sigmoid", "gelu"}) y = builder.Add1(op, op, {y}).value();
  builder.AddOutput("y", y);
  const auto plan = PlanGraphMemory(builder.graph(), ops);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Three intermediates in one place, 3 channels held as 16.
  EXPECT_EQ(plan->total_bytes, 2 * 16 * 4 * 4 * 4);
}

}  // namespace
}  // namespace tutti
