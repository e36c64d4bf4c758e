// The fence at reading, on random histories: generations start, write, stall, come back as zombies.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/checkpoint/store.h"

namespace tutti {
namespace {

TEST(Fence, AdmitsUpToTheBaseOfEveryLaterGeneration) {
  Fence fence;
  EXPECT_TRUE(fence.Admits(Generation(1), Step(1000)));
  fence.Add(Generation(3), Step(20));
  fence.Add(Generation(2), Step(50));
  EXPECT_TRUE(fence.Admits(Generation(1), Step(20)));
  EXPECT_FALSE(fence.Admits(Generation(1), Step(21)));
  EXPECT_TRUE(fence.Admits(Generation(2), Step(20)));
  EXPECT_FALSE(fence.Admits(Generation(2), Step(30)));
  EXPECT_TRUE(fence.Admits(Generation(3), Step(1000)));
  fence.Add(Generation(3), Step(90));  // the lowest base that was told counts
  EXPECT_FALSE(fence.Admits(Generation(2), Step(30)));
}

struct Commit {
  int64_t generation = 0, step = 0;
  bool late = false;  // a later generation had started before it
};
struct Writer {
  int64_t generation = 0, step = 0;
};

// One random history. Returns how often a generation resumed from a commit that was made after a later generation had
// started.
template <typename Admits>
int64_t ZombiesResumed(uint32_t seed, Admits admits) {
  std::mt19937 random(seed);
  const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
  std::vector<Commit> commits;
  std::vector<Writer> writers;
  Fence fence;
  int64_t resumed = 0;
  for (int64_t generation = 1; generation <= 8; ++generation) {
    const Commit* start = nullptr;
    for (const Commit& commit : commits) {
      if (!admits(fence, commit)) continue;
      if (start == nullptr || std::pair(commit.step, commit.generation) > std::pair(start->step, start->generation))
        start = &commit;
    }
    if (start != nullptr && start->late) ++resumed;
    const int64_t base = start != nullptr ? start->step : 0;
    fence.Add(Generation(generation), Step(base));
    if (!writers.empty() && chance(50)) writers.erase(writers.begin(), writers.end() - 1);  // old ones die, or live on
    writers.push_back({generation, base});
    for (int event = 0; event < 12; ++event) {
      Writer& writer = writers[chance(50) ? writers.size() - 1 : random() % writers.size()];
      ++writer.step;
      if (chance(40)) commits.push_back({writer.generation, writer.step, writer.generation < generation});
    }
  }
  return resumed;
}

TEST(Fence, NoLateZombieIsEverResumedInRandomHistories) {
  constexpr uint32_t kRuns = 20'000;
  int64_t with_rule = 0, runs_without_rule = 0, runs_with_weak_rule = 0;
  for (uint32_t seed = 0; seed < kRuns; ++seed) {
    with_rule += ZombiesResumed(
        seed, [](const Fence& f, const Commit& c) { return f.Admits(Generation(c.generation), Step(c.step)); });
    // Mutants: no rule at all, and one that looks one step too far. The check must catch both.
    runs_without_rule += ZombiesResumed(seed, [](const Fence&, const Commit&) { return true; }) > 0;
    runs_with_weak_rule += ZombiesResumed(seed, [](const Fence& f, const Commit& c) {
                             return f.Admits(Generation(c.generation), Step(c.step - 1));
                           }) > 0;
  }
  EXPECT_EQ(with_rule, 0);
  EXPECT_GT(runs_without_rule, kRuns / 4);
  EXPECT_GT(runs_with_weak_rule, 0);
}

}  // namespace
}  // namespace tutti
