#include "engine/comm/exchange.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/engine/comm/world.h"

namespace tutti {
namespace {

constexpr int64_t kCount = 10'000;

// Integers: sums are exact in every order.
float Gradient(int32_t shard, int64_t i) { return static_cast<float>((shard + 1) * (i % 100)); }
float Expected(int32_t shards, int64_t i) { return static_cast<float>(shards * (shards + 1) / 2 * (i % 100)); }

// Runs `steps` steps of one rank as a trainer does: earlier waves merged by itself, buckets started from the end to the
// front.
Status RunSteps(Communicator& c, int32_t shards, ReduceMode mode, int steps) {
  const TreeReducer tree(shards, c.world_size(), c.rank());
  std::vector<std::vector<float>> memory(tree.slots(), std::vector<float>(kCount));
  ExchangeOptions options;
  options.comm = &c;
  options.tree = &tree;
  options.mode = mode;
  for (auto& slot : memory) options.slots.push_back(slot.data());
  options.result = options.slots[tree.partial_slots()[0]];
  options.buckets = {{0, 1'000}, {1'000, 1'003}, {1'003, kCount}};
  const float* result = options.result;
  std::vector<int32_t> reduced;  // buckets, once their sums were there
  options.on_reduced = [&, buckets = options.buckets](int32_t b) {
    if (result[buckets[b].end - 1] == Expected(shards, buckets[b].end - 1)) reduced.push_back(b);
  };
  BucketExchanger exchanger(options);
  for (int step = 0; step < steps; ++step) {
    for (int32_t wave = 0; wave < tree.waves(); ++wave) {
      const int32_t shard = tree.WaveShards(wave).begin;
      for (int64_t i = 0; i < kCount; ++i) memory[tree.SlotOf(shard)][i] = Gradient(shard, i);
      if (wave + 1 == tree.waves()) break;
      for (const TreeMerge& m : tree.MergesAfterWave(wave))
        AddInto(memory[m.into].data(), memory[m.from].data(), kCount);
    }
    for (int32_t b = exchanger.buckets() - 1; b >= 0; --b) exchanger.Start(b);
    const StatusOr<BucketExchanger::Timings> timings = exchanger.WaitAll();
    TUTTI_RETURN_IF_ERROR(timings.status());
    if (timings->busy_ns <= 0 || timings->exposed_ns < 0) return DataLoss("busy {} ns", timings->busy_ns);
    if (std::exchange(reduced, {}) != std::vector<int32_t>{0, 1, 2}) return DataLoss("not told of every sum in order");
    for (int64_t i = 0; i < kCount; ++i) {
      if (result[i] != Expected(shards, i)) return DataLoss("element {} is {}", i, result[i]);
    }
  }
  return OkStatus();
}

TEST(BucketExchanger, SumsAllShardsAtEveryWidth) {
  for (const int32_t world : {1, 2, 3, 4}) {
    Comms comms = MakeWorld(Backend::kLocal, world);
    for (const ReduceMode mode : {ReduceMode::kTree, ReduceMode::kFast}) {
      ExpectOk(comms, [&](Communicator& c) { return RunSteps(c, 7, mode, 3); });
    }
  }
}

TEST(BucketExchanger, AnErrorEndsThisAndEveryLaterStep) {
  Comms comms = MakeWorld(Backend::kLocal, 2);
  comms[1]->Abort("gone");
  const TreeReducer tree(2, 2, Rank(0));
  std::vector<float> gradient(kCount);
  ExchangeOptions options;
  options.comm = comms[0].get();
  options.tree = &tree;
  options.slots = {gradient.data()};
  options.result = gradient.data();
  options.buckets = {{0, 10}, {10, kCount}};
  options.on_reduced = [](int32_t bucket) { ADD_FAILURE() << "bucket " << bucket << " has no sum"; };
  BucketExchanger exchanger(options);
  for (int step = 0; step < 2; ++step) {
    exchanger.Start(0);
    exchanger.Start(1);
    EXPECT_EQ(exchanger.WaitAll().status().code(), absl::StatusCode::kAborted);
  }
}

std::vector<std::pair<int64_t, int64_t>> Cut(std::vector<int64_t> boundaries, int64_t bytes) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const Bucket& b : CutBuckets(boundaries, Bytes(bytes))) out.emplace_back(b.begin, b.end);
  return out;
}

TEST(CutBuckets, EndsAtTensorsAndJoinsASmallRest) {
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(Cut({10, 30, 35, 100}, 4 * 20), (Pairs{{0, 30}, {30, 100}}));
  EXPECT_EQ(Cut({50, 59}, 4 * 20), (Pairs{{0, 59}}));  // 9 < half of 20
  EXPECT_EQ(Cut({50, 61}, 4 * 20), (Pairs{{0, 50}, {50, 61}}));
  EXPECT_EQ(Cut({5}, 4 * 20), (Pairs{{0, 5}}));
  EXPECT_EQ(Cut({}, 4), Pairs{});
}

}  // namespace
}  // namespace tutti
