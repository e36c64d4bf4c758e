// One mapping per rank whose measured bytes are the planned ones; lanes that compute side by side.
#include "engine/runtime/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <xmmintrin.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "base/process.h"
#include "engine/runtime/lanes.h"
#include "tests/engine/runtime/allocation_counter.h"

namespace tutti {
namespace {

TEST(Arena, MeasuredBytesAreThePlannedOnes) {
  ArenaLayout layout;
  EXPECT_EQ(layout.Reserve("weights", 1000), 0);
  EXPECT_EQ(layout.Reserve("empty", 0), 1024);
  EXPECT_EQ(layout.Reserve("activations", 10'000'000), 1024);
  EXPECT_EQ(layout.Reserve("last", 1), 1024 + 10'000'000);
  EXPECT_EQ(layout.total_bytes() % 4096, 0);
  EXPECT_GE(layout.total_bytes(), 1024 + 10'000'000 + 1);
  auto arena = Arena::Create(layout);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const auto measured = arena->MeasureResidentBytes();
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(*measured, layout.total_bytes());
}

TEST(Arena, RegionsAreApartAlignedAndZero) {
  ArenaLayout layout;
  for (int i = 0; i < 20; ++i) layout.Reserve(std::to_string(i), 1 + i * 37);
  auto arena = Arena::Create(layout);
  ASSERT_TRUE(arena.ok()) << arena.status();
  for (int i = 0; i < 20; ++i) {
    char* region = arena->Find<char>(std::to_string(i));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region) % 64, 0u);
    for (int b = 0; b < 1 + i * 37; ++b) EXPECT_EQ(region[b], 0);
    std::memset(region, i + 1, static_cast<size_t>(1 + i * 37));
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(arena->Find<char>(std::to_string(i))[i * 37], i + 1);
}

TEST(Arena, AnEmptyLayoutAndAMoveAreFine) {
  auto empty = Arena::Create(ArenaLayout());
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->MeasureResidentBytes().value(), 0);
  ArenaLayout layout;
  layout.Reserve("a", 10);
  Arena arena = Arena::Create(layout).value();
  char* base = arena.data();
  *empty = std::move(arena);
  EXPECT_EQ(empty->Find<char>("a"), base);
}

TEST(Arena, TooLargeIsResourceExhaustedWithTheSize) {
  ArenaLayout layout;
  layout.Reserve("huge", std::numeric_limits<int64_t>::max() / 4);
  const Status status = Arena::Create(layout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Message(status), ::testing::HasSubstr("2305843009213693952"));
}

TEST(Lanes, EachLaneRunsOnceWithItsTeamAndFlushesDenormals) {
  auto pool = LanePool::Create({.lanes = 3, .threads = 2});
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::atomic<int> runs[3] = {};
  std::atomic<int> team_sum{0}, normal{0};
  std::set<std::thread::id> threads;
  std::atomic<bool> inserting{false};
  for (int call = 0; call < 100; ++call)
    (*pool)->RunAll([&](int lane) {
      ++runs[lane];
      team_sum += omp_get_max_threads();
#pragma omp parallel num_threads(2)
      {
        volatile float tiny = std::numeric_limits<float>::min();
        if (tiny * 0.5f != 0.0f) ++normal;
      }
      while (inserting.exchange(true)) {
      }
      threads.insert(std::this_thread::get_id());
      inserting = false;
    });
  for (const auto& count : runs) EXPECT_EQ(count, 100);
  EXPECT_EQ(team_sum, 3 * 100 * 2);
  EXPECT_EQ(normal, 0);
  EXPECT_EQ(threads.size(), 3u);
}

TEST(Lanes, RunAllAllocatesNothing) {
  if (!kCountsAllocations) GTEST_SKIP() << "allocations cannot be counted under a sanitizer";
  auto pool = LanePool::Create({.lanes = 2}).value();
  std::atomic<int> sum{0};
  pool->RunAll([&](int lane) { sum += lane; });
  const AllocationCounter counter(0);
  for (int call = 0; call < 1000; ++call) pool->RunAll([&](int lane) { sum += lane; });
  EXPECT_EQ(counter.count(), 0);
  EXPECT_EQ(sum, 1001);
}

TEST(Lanes, CoresAreTheGivenOnes) {
  const std::vector<int> allowed = AllowedCores();
  std::vector<std::vector<int>> cores;
  for (int lane = 0; lane < 2; ++lane) cores.push_back({allowed[static_cast<size_t>(lane) % allowed.size()]});
  auto pool = LanePool::Create({.lanes = 2, .threads = 1, .cores = cores}).value();
  std::atomic<int> wrong{0};
  pool->RunAll([&](int lane) { wrong += sched_getcpu() != cores[static_cast<size_t>(lane)][0]; });
  EXPECT_EQ(wrong, 0);
}

TEST(Lanes, RefusesWhatCannotBe) {
  EXPECT_FALSE(LanePool::Create({.lanes = 0}).ok());
  EXPECT_FALSE(LanePool::Create({.lanes = 1, .threads = 0}).ok());
  EXPECT_THAT(Message(LanePool::Create({.lanes = 1, .cores = {{4095}}}).status()), ::testing::HasSubstr("core 4095"));
  EXPECT_THAT(Message(LanePool::Create({.lanes = 2, .cores = {{0}}}).status()),
              ::testing::HasSubstr("cores for 1 lanes, expected 2"));
}

}  // namespace
}  // namespace tutti
