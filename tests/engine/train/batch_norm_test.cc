// NUM-08: batch norm on several ranks: one set of running statistics, and a checkpoint that evaluates as the run did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/checkpoint/store.h"
#include "tests/engine/train/training.h"

namespace tutti::testing {
namespace {

constexpr int kRows = 64, kSide = 8, kPixels = kSide * kSide, kClasses = 4;

// What the trainer reads of pixel i of row r: FillFormula's byte, normalised with mean 0.5 and deviation 0.5.
double Pixel(int r, int i) { return ((r * 7 + i * 13 + r * i * 3) % 256 / 255.0 - 0.5) / 0.5; }

// Two ranks with one shard of 8 rows each: every cell of training and of evaluation belongs to one rank.
class BatchNormOnTwoRanks : public ::testing::Test {
 protected:
  BatchNormOnTwoRanks() : directory_(TempDirectory::Create("tutti-batch-norm-").value()) {
    FillFormula(&data_, kRows, kSide, kClasses);
  }

  v1::JobSpec Job(const std::string& layers, const std::string& name) {
    v1::JobSpec spec = SmallJob(data_, layers, JoinPath(directory_.path(), name));
    spec.mutable_numerics()->set_shards(2);
    spec.mutable_batch()->set_micro(8);
    return spec;
  }
  static std::vector<RankRun> Train(const v1::JobSpec& spec, const WorldOptions& options = {.ranks = 2}) {
    auto runs = RunWorld(spec, options);
    for (const RankRun& run : runs) EXPECT_TRUE(run.result.ok()) << run.result.status();
    return runs;
  }
  static std::map<std::string, LoadedTensor> TensorsOf(const RankRun& run) {
    auto loaded = LoadCheckpoint(run.result->final_checkpoint());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? std::move(loaded->tensors) : std::map<std::string, LoadedTensor>();
  }

  IdxFolder data_;
  TempDirectory directory_;
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;
};

// "bn flatten dense:4" in double precision, with the tensors of a checkpoint: y = scale (x - mean) / sqrt(variance +
// 1e-5) + shift, logits = W y + b, mean over rows of log sum exp(logits) - logits[label].
Evaluation EvaluateByFormula(const std::map<std::string, LoadedTensor>& tensors) {
  const auto value = [&](const std::string& name, size_t i) { return double{tensors.at(name).data.at(i)}; };
  const double mean = value("statistic/layers.0.running_mean", 0);
  const double deviation = std::sqrt(value("statistic/layers.0.running_variance", 0) + 1e-5);
  Evaluation sum;
  for (int r = 0; r < kRows; ++r) {
    double logits[kClasses], total = 0;
    for (int c = 0; c < kClasses; ++c) {
      logits[c] = value("layers.2.bias", c);
      for (int i = 0; i < kPixels; ++i) {
        const double y = value("layers.0.weight", 0) * (Pixel(r, i) - mean) / deviation + value("layers.0.bias", 0);
        logits[c] += value("layers.2.weight", c * kPixels + i) * y;
      }
      total += std::exp(logits[c]);
    }
    sum.loss += std::log(total) - logits[r % kClasses];
    sum.accuracy += std::max_element(logits, logits + kClasses) - logits == r % kClasses ? 1 : 0;
  }
  return {sum.loss / kRows, sum.accuracy / kRows};
}

// One step: rank 0 normalises rows 0..7, rank 1 rows 8..15. Each running statistic moves by momentum 0.1 towards the
// mean over both cells of the cell's mean, or unbiased variance.
TEST_F(BatchNormOnTwoRanks, RunningStatisticsAreTheMeanOverBothRanksCells) {
  v1::JobSpec spec = Job("bn flatten dense:4", "one-step");
  spec.mutable_train()->set_steps(1);
  double means[2] = {}, variances[2] = {};
  constexpr int kRowsOfCell = 8, kElements = kRowsOfCell * kPixels;
  for (int cell = 0; cell < 2; ++cell) {
    double squares = 0;
    for (int r = cell * kRowsOfCell; r < (cell + 1) * kRowsOfCell; ++r) {
      for (int i = 0; i < kPixels; ++i) {
        means[cell] += Pixel(r, i) / kElements;
        squares += Pixel(r, i) * Pixel(r, i);
      }
    }
    variances[cell] = (squares - kElements * means[cell] * means[cell]) / (kElements - 1);
  }
  ASSERT_GT(std::abs(means[0] - means[1]), 1e-3);  // one rank's statistics alone would show
  const auto tensors = TensorsOf(Train(spec)[0]);
  EXPECT_NEAR(tensors.at("statistic/layers.0.running_mean").data[0], 0.1 * (means[0] + means[1]) / 2, 1e-6);
  EXPECT_NEAR(tensors.at("statistic/layers.0.running_variance").data[0], 0.9 + 0.1 * (variances[0] + variances[1]) / 2,
              1e-6);
}

// Of the 8 cells of the evaluation each rank computes 4 with its own buffers: the formula with the file's buffers gives
// the run's loss only if both ranks had them.
TEST_F(BatchNormOnTwoRanks, TheRunEvaluatesWithTheStatisticsOfItsCheckpointOnEveryRank) {
  const auto runs = Train(Job("bn flatten dense:4", "formula"));
  const auto tensors = TensorsOf(runs[0]);
  ASSERT_EQ(runs[0].evaluations().size(), 1u);
  const v1::EvalRecord logged = runs[0].evaluations()[0];
  const Evaluation expected = EvaluateByFormula(tensors);
  EXPECT_EQ(logged.samples(), kRows);
  EXPECT_NEAR(logged.loss(), expected.loss, 1e-6);
  EXPECT_EQ(logged.accuracy(), expected.accuracy);
}

// A run that ends without an evaluation owes it to the next generation, which has nothing but the checkpoint: fresh
// trainers evaluate as the run that evaluated at once. Dropout: off in both.
TEST_F(BatchNormOnTwoRanks, FreshTrainersEvaluateTheCheckpointAsTheRunDid) {
  const std::string layers = "conv:4:3:1 bn relu pool flatten dropout:0.5 dense:16 bn relu dense:4";
  const auto at_once = Train(Job(layers, "at-once"));
  ASSERT_EQ(at_once[0].evaluations().size(), 1u);
  for (int ranks : {1, 2}) {
    v1::JobSpec spec = Job(layers, fmt::format("later-{}", ranks));
    spec.mutable_train()->set_evaluate_at_end(false);
    const auto silent = Train(spec);
    EXPECT_TRUE(silent[0].evaluations().empty());
    spec.mutable_train()->set_evaluate_at_end(true);
    const auto later = Train(spec, {.ranks = ranks, .generation = 2, .base_step = 5, .bases = {{1, 0}}});
    EXPECT_TRUE(later[0].steps().empty());
    ASSERT_EQ(later[0].evaluations().size(), 1u) << ranks << " ranks";
    const v1::EvalRecord now = later[0].evaluations()[0], then = at_once[0].evaluations()[0];
    EXPECT_EQ(now.step(), then.step());
    EXPECT_EQ(now.samples(), then.samples());
    EXPECT_NEAR(now.loss(), then.loss(), 1e-6) << ranks << " ranks";
    EXPECT_EQ(now.accuracy(), then.accuracy()) << ranks << " ranks";
    EXPECT_EQ(later[0].result->weights_sha256(), at_once[0].result->weights_sha256());  // buffers included
  }
}

}  // namespace
}  // namespace tutti::testing
