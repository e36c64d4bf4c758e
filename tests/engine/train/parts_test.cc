#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/comm/local.h"
#include "engine/train/footer.h"
#include "engine/train/step_plan.h"

namespace tutti {
namespace {

v1::Batch MakeBatch(int64_t global, int64_t micro) {
  v1::Batch batch;
  batch.set_global(global);
  batch.set_micro(micro);
  return batch;
}

// NUM-07: the row that counts randomness is another one in every cell of the world, and all rows are covered.
TEST(StepPlan, CellsOfAllRanksCoverTheBatchOnce) {
  for (int ranks : {1, 2, 3, 4, 6}) {
    for (int lanes : {1, 2}) {
      std::set<int64_t> first_rows;
      for (int rank = 0; rank < ranks; ++rank) {
        const TreeReducer tree(6, ranks, Rank(rank), lanes);
        const StepPlan plan = MakeStepPlan(MakeBatch(48, 4), tree);
        EXPECT_EQ(plan.micro_batches, 2);
        for (const StepWave& wave : plan.waves) {
          EXPECT_LE(wave.lanes.size(), static_cast<size_t>(lanes));
          for (const auto& calls : wave.lanes) {
            for (const CellCall& call : calls) {
              EXPECT_TRUE(first_rows.insert(call.first_row).second);
              EXPECT_EQ(call.local_row, call.first_row - tree.local_shards().begin * 8);
            }
          }
        }
      }
      EXPECT_EQ(first_rows.size(), 12u);
      EXPECT_EQ(*first_rows.rbegin(), 44);
    }
  }
}

TEST(StepPlan, PrintsEveryCallInOrder) {
  const TreeReducer tree(2, 1, Rank(0), 1);
  EXPECT_EQ(Print(MakeStepPlan(MakeBatch(8, 2), tree)),
            "wave 0 lane 0: cell shard 0 micro 0 rows 0 -> slot 0\n"
            "wave 0 lane 0: cell shard 0 micro 1 rows 2 -> slot 0\n"
            "wave 1 lane 0: cell shard 1 micro 0 rows 4 -> slot 1\n"
            "wave 1 lane 0: cell shard 1 micro 1 rows 6 -> slot 1\n"
            "wave 1 merge: slot 0 += slot 1\n"
            "reduce, footer, update\n");
}

struct FooterRun {
  StatusOr<FooterOutcome> outcome = Internal("did not run");
  double mean = 0;
  std::vector<double> sums;  // of all ranks
};

// Shard s of 5 reports loss s + 1, s right rows and statistic 10 s; rank r the sums 2 r + 0.5 and 2 r + 1.5.
std::vector<FooterRun> ExchangeFooters(int ranks, const std::function<void(int, FooterHeader*)>& change) {
  auto world = CreateLocalWorld({.world_size = ranks});
  std::vector<FooterRun> runs(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const TreeReducer tree(5, ranks, Rank(rank));
      Footer footer(tree, {.micro_batches = 1, .statistic_floats = 1, .sums = 2});
      for (int s = tree.local_shards().begin; s < tree.local_shards().end; ++s) {
        const Footer::Cell cell = footer.own_cell(s - tree.local_shards().begin);
        *cell.loss_sum = static_cast<float>(s + 1);
        *cell.correct = static_cast<float>(s);
        *cell.statistics = static_cast<float>(10 * s);
      }
      for (int i = 0; i < 2; ++i) footer.own_sums()[i] = 2 * rank + i + 0.5;
      FooterHeader header{.generation = 3, .step = 7, .valid = 40, .sample_digest = 99};
      change(rank, &header);
      runs[rank].outcome = footer.Exchange(*world[rank], header);
      if (!runs[rank].outcome.ok()) return;
      runs[rank].mean = footer.StatisticMean(0);
      for (int r = 0; r < ranks; ++r) {
        runs[rank].sums.insert(runs[rank].sums.end(), footer.SumsOf(r).begin(), footer.SumsOf(r).end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return runs;
}

TEST(Footer, SumsOverAllShardsOnEveryRankOfUnevenWorlds) {
  for (int ranks : {1, 2, 3, 5}) {
    for (const FooterRun& run : ExchangeFooters(ranks, [](int, FooterHeader*) {})) {
      ASSERT_TRUE(run.outcome.ok()) << run.outcome.status();
      EXPECT_EQ(run.outcome->loss_sum, 15);
      EXPECT_EQ(run.outcome->correct, 10);
      EXPECT_EQ(run.mean, 20);
      ASSERT_EQ(run.sums.size(), 2u * ranks);
      for (size_t i = 0; i < run.sums.size(); ++i) EXPECT_EQ(run.sums[i], static_cast<double>(i) + 0.5);
    }
  }
}

TEST(Footer, OneRankThatHeardIsEnough) {
  const auto runs = ExchangeFooters(3, [](int rank, FooterHeader* header) {
    if (rank == 1) header->intent = v1::INTENT_CANCEL;
    if (rank == 2) header->intent = v1::INTENT_YIELD;
    if (rank == 0) header->checkpoint_requests = 2;
    if (rank == 2) header->checkpoint_slow = 1;
  });
  for (const FooterRun& run : runs) {
    ASSERT_TRUE(run.outcome.ok());
    EXPECT_EQ(run.outcome->intent, v1::INTENT_CANCEL);
    EXPECT_EQ(run.outcome->checkpoint_requests, 2);
    EXPECT_TRUE(run.outcome->checkpoint_slow);
  }
}

TEST(Footer, RanksThatDisagreeOnSamplesStepOrGenerationAreAnError) {
  const std::function<void(FooterHeader*)> changes[] = {
      [](FooterHeader* h) { h->sample_digest = 1; }, [](FooterHeader* h) { h->step = 8; },
      [](FooterHeader* h) { h->generation = 2; }, [](FooterHeader* h) { h->valid = 39; }};
  for (const auto& change : changes) {
    const auto runs = ExchangeFooters(2, [&](int rank, FooterHeader* header) {
      if (rank == 1) change(header);
    });
    for (const FooterRun& run : runs) {
      EXPECT_EQ(run.outcome.status().code(), absl::StatusCode::kInternal);
      EXPECT_NE(Message(run.outcome.status()).find("rank 1"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tutti
