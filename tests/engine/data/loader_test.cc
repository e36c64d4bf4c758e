#include "engine/data/loader.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>

#include "engine/data/ledger.h"
#include "engine/data/permutation.h"
#include "tests/engine/data/data_testing.h"

namespace tutti {
namespace {

using testing::CountingDataset;
using ::testing::ElementsAre;

// A loader with its memory.
class Reader {
 public:
  Reader(const Dataset& dataset, const LoaderOptions& options, const StepPlanCounts& counts) {
    const auto bytes = static_cast<size_t>(Loader::BufferBytes(options, counts, dataset.sample_elements()));
    memory_ = {static_cast<std::byte*>(std::aligned_alloc(64, bytes)), bytes};
    loader_ = Loader::Create(dataset, options, counts, memory_).value();
  }
  ~Reader() {
    loader_.reset();
    std::free(memory_.data());
  }
  Loader* operator->() { return loader_.get(); }

  // Rows (labels of CountingDataset) with weight one of the next step.
  std::vector<int64_t> NextRows() {
    const Batch* batch = loader_->Next().value();
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < batch->rows; ++r) {
      if (batch->weights[r] == 1.0f) rows.push_back(batch->labels[r]);
    }
    return rows;
  }

 private:
  std::span<std::byte> memory_;
  std::unique_ptr<Loader> loader_;
};

StepPlanCounts Epochs(int64_t epochs, int64_t batch, int64_t size) {
  return CountSteps({.epochs = epochs, .steps = 0, .global_batch = batch, .data_set_size = size}).value();
}

// Options of rank `rank` of `ranks`, which owns its share of `shards` neighbouring shards.
LoaderOptions OfRank(int64_t rank, int64_t ranks, int64_t shards, bool shuffle = true) {
  LoaderOptions options;
  options.seed = 42;
  options.shuffle = shuffle;
  options.shards = shards;
  options.first_shard = shards * rank / ranks;
  options.last_shard = shards * (rank + 1) / ranks;
  return options;
}

TEST(Loader, NormalisesPlacesAndPads) {
  const CountingDataset dataset(6, 3);
  LoaderOptions options = OfRank(0, 1, 1, false);
  options.normalization = {.mean = 0.25, .std = 0.5};
  Reader reader(dataset, options, Epochs(1, 4, 6));
  const Batch* batch = reader->Next().value();
  EXPECT_EQ(batch->step, 1);
  EXPECT_EQ(batch->rows, 4);
  EXPECT_EQ(batch->valid, 4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(batch->x) % 64, 0u);
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ(batch->labels[r], r);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(batch->x[r * 3 + i], static_cast<float>((static_cast<double>(r) / 255 - 0.25) / 0.5));
  }
  batch = reader->Next().value();  // 2 samples are left; the stream's next positions fill up with weight zero
  EXPECT_EQ(batch->valid, 2);
  EXPECT_THAT(std::vector<float>(batch->weights, batch->weights + 4), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(std::vector<int32_t>(batch->labels, batch->labels + 4), ElementsAre(4, 5, 0, 1));
  EXPECT_EQ(batch->sample_digest, SampleDigest(std::vector<int64_t>{4, 5}));
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Loader, EpochsAreExactAndDifferOnTwoRanks) {  // SHD-02
  const CountingDataset dataset(22);
  std::vector<std::vector<int64_t>> epochs(3);
  Reader a(dataset, OfRank(0, 2, 2), Epochs(3, 2, 22)), b(dataset, OfRank(1, 2, 2), Epochs(3, 2, 22));
  for (int64_t step = 0; step < 33; ++step) {
    for (Reader* reader : {&a, &b}) {
      for (int64_t row : reader->NextRows()) epochs[static_cast<size_t>(step / 11)].push_back(row);
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(epochs[0], epochs[2]);
  for (const auto& rows : epochs) {
    EXPECT_EQ(rows.size(), 22u);
    EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), 22u);
  }
}

TEST(Loader, RanksOfAnyWidthMakeEqualStepsAndShareTheSamples) {  // SHD-04, SHD-05
  for (const auto& [size, batch, epochs] : std::vector<std::array<int64_t, 3>>{{1003, 12, 2}, {40, 12, 1}}) {
    const StepPlanCounts counts = Epochs(epochs, batch, size);
    std::vector<std::vector<int64_t>> reference;
    std::vector<uint64_t> digests;
    for (int64_t ranks : {1, 2, 3, 4}) {
      const CountingDataset dataset(size);
      std::vector<std::unique_ptr<Reader>> readers;
      for (int64_t r = 0; r < ranks; ++r)
        readers.push_back(std::make_unique<Reader>(dataset, OfRank(r, ranks, 4), counts));
      std::vector<std::vector<int64_t>> steps;
      std::vector<uint64_t> seen_digests;
      for (int64_t step = 1; step <= counts.steps; ++step) {
        std::vector<int64_t> rows;
        for (auto& reader : readers) {
          const Batch* part = (*reader)->Next().value();
          EXPECT_EQ(part->step, step);
          EXPECT_EQ(part->valid, counts.ValidSamples(step));
          if (reader == readers.front()) seen_digests.push_back(part->sample_digest);
          EXPECT_EQ(part->sample_digest, seen_digests.back());
          EXPECT_EQ(part->first_position, counts.FirstPosition(step) + static_cast<int64_t>(rows.size()));
          rows.insert(rows.end(), part->labels, part->labels + part->rows);
        }
        steps.push_back(rows);
      }
      for (auto& reader : readers) EXPECT_EQ((*reader)->Next().status().code(), absl::StatusCode::kOutOfRange);
      if (ranks == 1) reference = steps, digests = seen_digests;
      EXPECT_EQ(steps, reference) << ranks << " ranks";
      EXPECT_EQ(seen_digests, digests);
    }
  }
}

TEST(Loader, OneFileOfFortyRecordsIsSplitInHalves) {  // SHD-05
  const CountingDataset dataset(40);
  std::set<int64_t> of_rank[2];
  for (int64_t rank : {0, 1}) {
    Reader reader(dataset, OfRank(rank, 2, 2), Epochs(1, 8, 40));
    for (int step = 0; step < 5; ++step) {
      for (int64_t row : reader.NextRows()) of_rank[rank].insert(row);
    }
    EXPECT_EQ(of_rank[rank].size(), 20u);
  }
  of_rank[0].merge(of_rank[1]);
  EXPECT_EQ(of_rank[0].size(), 40u);
}

TEST(Loader, GrowingFromOneToTwoRanksLosesNothing) {  // SHD-07
  const CountingDataset dataset(16);
  std::vector<int64_t> seen = Reader(dataset, OfRank(0, 1, 2, false), Epochs(1, 4, 16)).NextRows();
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3));
  Reader a(dataset, OfRank(0, 2, 2, false), Epochs(1, 4, 16)), b(dataset, OfRank(1, 2, 2, false), Epochs(1, 4, 16));
  a->Seek(1);
  b->Seek(1);
  EXPECT_THAT(a.NextRows(), ElementsAre(4, 5));
  EXPECT_THAT(b.NextRows(), ElementsAre(6, 7));
  EXPECT_THAT(a.NextRows(), ElementsAre(8, 9));
  EXPECT_THAT(b.NextRows(), ElementsAre(10, 11));
}

TEST(Loader, ShrinkingFromTwoRanksToOneLosesNothing) {  // SHD-08
  const CountingDataset dataset(40);
  Reader a(dataset, OfRank(0, 2, 2, false), Epochs(1, 4, 40));
  for (int step = 0; step < 3; ++step) a.NextRows();  // sample 12
  Reader one(dataset, OfRank(0, 1, 2, false), Epochs(1, 4, 40));
  one->Seek(3);
  EXPECT_THAT(one.NextRows(), ElementsAre(12, 13, 14, 15));
}

TEST(Loader, EachSampleIsReadOncePerEpochByAllRanksTogether) {  // SHD-12
  const CountingDataset dataset(16);
  Reader a(dataset, OfRank(0, 2, 2), Epochs(1, 4, 16)), b(dataset, OfRank(1, 2, 2), Epochs(1, 4, 16));
  for (int step = 0; step < 4; ++step) a.NextRows(), b.NextRows();
  EXPECT_EQ(dataset.total_reads(), 16);
  for (int64_t row = 0; row < 16; ++row) EXPECT_EQ(dataset.reads(row), 1) << row;
}

TEST(Loader, ThreadsPrefetchAndSeeksNeverChangeWhatAStepSees) {
  const CountingDataset dataset(101);
  const StepPlanCounts counts = Epochs(5, 6, 101);
  std::vector<std::vector<int64_t>> reference;
  Reader plain(dataset, OfRank(0, 1, 2), counts);
  for (int64_t step = 1; step <= counts.steps; ++step) reference.push_back(plain.NextRows());
  for (const auto& [threads, prefetch] : std::vector<std::pair<int, int>>{{1, 1}, {3, 2}, {2, 7}, {4, 4}}) {
    LoaderOptions options = OfRank(0, 1, 2);
    options.threads = threads;
    options.prefetch = prefetch;
    Reader reader(dataset, options, counts);
    uint32_t state = static_cast<uint32_t>(threads);
    for (int jump = 0; jump < 40; ++jump) {
      state = state * 1664525u + 1013904223u;
      int64_t step = (state >> 8) % counts.steps;
      reader->Seek(step);
      for (int i = 0; i < 5 && step < counts.steps; ++i, ++step)
        ASSERT_EQ(reader.NextRows(), reference[static_cast<size_t>(step)]);
    }
  }
}

TEST(Loader, StepLoopDoesNotAllocate) {
  const CountingDataset dataset(997, 28 * 28);
  LoaderOptions options = OfRank(0, 1, 4);
  options.threads = 2;
  Reader reader(dataset, options, Epochs(3, 64, 997));
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(reader->Next().ok());
  const int64_t before = testing::Allocations();
  bool ok = true;
  for (int step = 0; step < 30; ++step) ok = ok && reader->Next().ok();
  EXPECT_EQ(testing::Allocations() - before, 0);
  EXPECT_TRUE(ok);
}

TEST(Loader, AnErrorOfTheDataSetArrivesAtItsStep) {
  CountingDataset dataset(16);
  dataset.bad_row = 9;
  Reader reader(dataset, OfRank(0, 1, 1, false), Epochs(1, 4, 16));
  EXPECT_TRUE(reader->Next().ok());
  EXPECT_TRUE(reader->Next().ok());
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kDataLoss);
}

TEST(Loader, OptionsThatDoNotFitAreRefused) {
  const CountingDataset dataset(16);
  const StepPlanCounts counts = Epochs(1, 4, 16);
  const auto create = [&](auto change) {
    LoaderOptions options = OfRank(0, 1, 2);
    change(options);
    return Loader::Create(dataset, options, counts, {}).status().code();
  };
  EXPECT_EQ(create([](LoaderOptions& o) { o.shards = 3; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create([](LoaderOptions& o) { o.first_shard = 2; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create([](LoaderOptions& o) { o.last_shard = 3; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create([](LoaderOptions& o) { o.threads = 0; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create([](LoaderOptions& o) { o.normalization.std = 0; }), absl::StatusCode::kInvalidArgument);
}

TEST(Evaluation, EverySampleOnceAndEqualBitsAtAnyWidth) {  // SHD-01
  for (const auto& [size, cell_rows] : std::vector<std::pair<int64_t, int64_t>>{{21, 4}, {10, 3}, {1, 8}}) {
    std::optional<double> reference;
    for (int32_t ranks : {1, 2, 3, 4}) {
      const CountingDataset dataset(size);
      const EvalPlan plan{.size = size, .cell_rows = cell_rows, .ranks = ranks};
      std::vector<double> cell_sums;
      double denominator = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        EvalReader reader(dataset, {.mean = 0.1, .std = 0.3}, cell_rows);
        std::vector<float> x(static_cast<size_t>(cell_rows * 4)), weights(static_cast<size_t>(cell_rows));
        std::vector<int32_t> labels(static_cast<size_t>(cell_rows));
        for (int64_t cell = plan.FirstCell(rank); cell < plan.FirstCell(rank + 1); ++cell) {
          ASSERT_TRUE(reader.Fill(cell, x.data(), labels.data(), weights.data()).ok());
          double sum = 0;
          for (int64_t r = 0; r < cell_rows; ++r) {
            sum += static_cast<double>(weights[static_cast<size_t>(r)]) * x[static_cast<size_t>(r * 4)];
            denominator += static_cast<double>(weights[static_cast<size_t>(r)]);
          }
          cell_sums.push_back(sum);
        }
      }
      EXPECT_EQ(plan.FirstCell(ranks), plan.cells());
      EXPECT_EQ(denominator, static_cast<double>(size));
      for (int64_t row = 0; row < size; ++row) EXPECT_EQ(dataset.reads(row), 1);
      double metric = 0;
      for (double sum : cell_sums) metric += sum;
      if (!reference) reference = metric;
      EXPECT_EQ(metric, *reference) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace tutti
