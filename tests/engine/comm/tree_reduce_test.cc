#include "engine/comm/tree_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/comm/reduce.h"

namespace tutti {
namespace {

constexpr int64_t kCount = 33;

std::vector<std::vector<float>> RandomLeaves(int32_t shards) {
  std::vector<std::vector<float>> leaves(shards, std::vector<float>(kCount));
  uint32_t state = 2463534242u + shards;
  for (auto& leaf : leaves) {
    for (float& x : leaf) {
      state ^= state << 13, state ^= state >> 17, state ^= state << 5;  // xorshift
      x = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -31 + static_cast<int>(state % 24));
    }
  }
  return leaves;
}

// The contract's sum, straight from its words.
float TreeSum(const std::vector<std::vector<float>>& leaves, int64_t i, int32_t begin, int32_t end) {
  if (end - begin == 1) return leaves[begin][i];
  int32_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return TreeSum(leaves, i, begin, begin + left) + TreeSum(leaves, i, begin + left, end);
}

// What the rank of `tree` does on its own: waves into slots, merges. Returns its partials.
std::vector<std::vector<float>> LocalPartials(const TreeReducer& tree, const std::vector<std::vector<float>>& leaves) {
  std::vector<std::vector<float>> slots(tree.slots(), std::vector<float>(kCount, std::nanf("")));
  for (int32_t wave = 0; wave < tree.waves(); ++wave) {
    for (int32_t s = tree.WaveShards(wave).begin; s < tree.WaveShards(wave).end; ++s) slots[tree.SlotOf(s)] = leaves[s];
    for (const TreeMerge& m : tree.MergesAfterWave(wave)) AddInto(slots[m.into].data(), slots[m.from].data(), kCount);
  }
  std::vector<std::vector<float>> partials;
  for (const int32_t slot : tree.partial_slots()) partials.push_back(slots[slot]);
  return partials;
}

std::vector<float> SumAcrossRanks(const std::vector<std::vector<float>>& leaves, int32_t world, int32_t lanes) {
  const int32_t shards = static_cast<int32_t>(leaves.size());
  std::vector<std::vector<float>> values;
  for (int32_t r = 0; r < world; ++r) {
    const TreeReducer tree(shards, world, Rank(r), lanes);
    for (auto& partial : LocalPartials(tree, leaves)) values.push_back(std::move(partial));
  }
  const TreeReducer tree(shards, world, Rank(0), lanes);
  EXPECT_EQ(values.size(), tree.leaves().size());
  std::vector<const void*> pointers;
  for (const auto& value : values) pointers.push_back(value.data());
  std::vector<float> result(kCount);
  std::vector<std::byte> scratch;
  void* const target = result.data();
  Reduce(PlanOf(tree), CommType::kF32, ReduceOp::kSum, pointers, &scratch, {&target, 1}, kCount);
  return result;
}

TEST(TreeReducer, BitsDependOnShardsAlone) {
  for (int32_t shards = 1; shards <= 16; ++shards) {
    const auto leaves = RandomLeaves(shards);
    std::vector<float> expected(kCount);
    for (int64_t i = 0; i < kCount; ++i) expected[i] = TreeSum(leaves, i, 0, shards);
    for (int32_t world = 1; world <= shards; ++world) {
      for (const int32_t lanes : {1, 2, 3, shards}) {
        const std::vector<float> sum = SumAcrossRanks(leaves, world, lanes);
        EXPECT_EQ(std::memcmp(sum.data(), expected.data(), kCount * sizeof(float)), 0)
            << shards << " shards, " << world << " ranks, " << lanes << " lanes";
      }
    }
  }
}

TEST(TreeReducer, OrderMattersForTheseNumbers) {  // else the test above proves nothing
  const auto leaves = RandomLeaves(8);
  int differing = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    float fold = leaves[0][i];
    for (int32_t s = 1; s < 8; ++s) fold += leaves[s][i];
    differing += fold != TreeSum(leaves, i, 0, 8);
  }
  EXPECT_GT(differing, kCount / 4);
}

TEST(ShardsOfRank, NeighboursThatDifferByAtMostOne) {
  for (int32_t shards = 1; shards <= 16; ++shards) {
    for (int32_t world = 1; world <= shards; ++world) {
      int32_t next = 0;
      for (int32_t r = 0; r < world; ++r) {
        const ShardRange range = ShardsOfRank(shards, world, Rank(r));
        EXPECT_EQ(range.begin, next);
        EXPECT_TRUE(range.size() == shards / world || range.size() == shards / world + 1);
        next = range.end;
      }
      EXPECT_EQ(next, shards);
    }
  }
}

TEST(TreeReducer, ShardsInTurnNeedLogarithmicallyManyBuffers) {
  for (int32_t log = 0; log <= 6; ++log) EXPECT_EQ(TreeReducer(1 << log, 1, Rank(0)).slots(), log + 1);
  EXPECT_EQ(TreeReducer(8, 1, Rank(0), 8).slots(), 8);  // side by side: one each
}

TEST(TreeReducer, AlignedRanksOwnOnePartialAndMoveAsManyBytesAsARing) {
  const TreeReducer tree(8, 4, Rank(1));
  EXPECT_EQ(std::vector<ShardRange>(tree.partials().begin(), tree.partials().end()), (std::vector<ShardRange>{{2, 4}}));
  EXPECT_EQ(tree.BytesSent(ElementCount(4000)).value(), 2 * 3 * 4000);  // 2 (R - 1) / R * 4 bytes * 4000
}

// Ranks own [0,3) [3,6) [6,8): partials {0,1} {2} | {3} {4,5} | {6,7}; each part has 1000 elements.
TEST(TreeReducer, UnalignedRanksCountTheirTrueBytes) {
  EXPECT_EQ(TreeReducer(8, 3, Rank(0)).partials().size(), 2u);
  EXPECT_EQ(TreeReducer(8, 3, Rank(1)).partials().size(), 2u);
  EXPECT_EQ(TreeReducer(8, 3, Rank(2)).partials().size(), 1u);
  EXPECT_EQ(TreeReducer(8, 3, Rank(0)).MaxPartials(), 2);
  EXPECT_EQ(TreeReducer(8, 3, Rank(0)).BytesSent(ElementCount(3000)).value(), 4 * (2000 * 2 + 1000 * 2));
  EXPECT_EQ(TreeReducer(8, 3, Rank(2)).BytesSent(ElementCount(3000)).value(), 4 * (2000 * 1 + 1000 * 2));
  EXPECT_EQ(TreeReducer(8, 1, Rank(0)).BytesSent(ElementCount(3000)).value(), 0);
}

TEST(AddInto, FlushesDenormals) {
  std::vector<float> into(19, 0x1p-140f), from(19, 0x1p-141f);
  AddInto(into.data(), from.data(), 19);
  EXPECT_EQ(into, std::vector<float>(19, 0.0f));
}

TEST(PartOf, CoversEveryElementOnce) {
  for (const int64_t n : {0, 1, 15, 16, 100, 1'000'003}) {
    for (const int32_t parts : {1, 2, 3, 7}) {
      int64_t next = 0;
      for (int32_t p = 0; p < parts; ++p) {
        const PartRange part = PartOf(n, parts, p);
        EXPECT_EQ(part.begin, next);
        EXPECT_LE(part.size(), n / parts + 17);
        next = part.end;
      }
      EXPECT_EQ(next, n);
    }
  }
}

}  // namespace
}  // namespace tutti
