// The numbers: beside PyTorch, beside formulas, and when they are not finite.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/checkpoint/store.h"
#include "tests/engine/runtime/allocation_counter.h"
#include "tests/engine/train/training.h"

namespace tutti::testing {
namespace {

class Numerics : public ::testing::Test {
 protected:
  Numerics() : directory_(TempDirectory::Create("tutti-train-").value()) { FillFormula(&data_, 64, 8, 4); }

  v1::JobSpec Job(const std::string& layers) {
    return SmallJob(data_, layers, JoinPath(directory_.path(), fmt::format("run{}", runs_++)));
  }
  static std::vector<RankRun> Train(const v1::JobSpec& spec, WorldOptions options = {}) {
    auto runs = RunWorld(spec, options);
    for (const RankRun& run : runs) EXPECT_TRUE(run.result.ok()) << run.result.status();
    return runs;
  }
  static void Accumulate(v1::JobSpec* spec, int64_t shards, int64_t micro) {
    spec->mutable_numerics()->set_shards(shards);
    spec->mutable_batch()->set_micro(micro);
  }

  IdxFolder data_;
  TempDirectory directory_;
  int runs_ = 0;
};

// Expected values of this and the next test: PyTorch 2.x on the CPU, data of FillFormula(64, 8, 4) as (x / 255 - 0.5) /
// 0.5, batches of 16 rows in order, cross_entropy, weights as InitialValues makes them (Philox4x32-10 keyed by
// XXH3("initial/<name>", seed 1)):
//   nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)); torch.optim.SGD(lr=0.1, momentum=0.9)
// Tolerance: sums of up to 64 products in f32, five steps: 1e-5 relative.
TEST_F(Numerics, PerceptronLossesAgreeWithPyTorch) {
  const double losses[] = {1.3971673, 1.3801465, 1.4323156, 1.4160271, 1.3374084};
  const double norms[] = {0.45698079, 0.38969019, 0.43022281, 0.41804701, 0.42322186};
  const auto runs = Train(Job("flatten dense:16 relu dense:4"));
  const auto steps = runs[0].steps();
  ASSERT_EQ(steps.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(steps[i].loss() / losses[i], 1, 1e-5) << i;
    EXPECT_NEAR(steps[i].gradient_norm() / norms[i], 1, 1e-4) << i;
  }
  ASSERT_EQ(runs[0].evaluations().size(), 1u);
  EXPECT_NEAR(runs[0].evaluations()[0].loss() / 1.3543036, 1, 1e-5);
  EXPECT_EQ(runs[0].evaluations()[0].accuracy(), 0.34375);
}

//   nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
//   nn.Flatten(), nn.Linear(64, 4)); torch.optim.AdamW(lr=0.01, weight_decay=0.0). Adam divides by sqrt(v): small
//   gradients carry rounding on.
TEST_F(Numerics, ConvolutionWithBatchNormAgreesWithPyTorch) {
  const double losses[] = {1.5045154, 1.3641877, 1.4383596, 1.3606178, 1.1845902};
  const double norms[] = {2.506005, 1.268438, 1.6121273, 1.6069654, 1.9786836};
  const double means[] = {-0.0032595452, -0.00031713821, -0.0057876441, 0.00036769657};
  const double variances[] = {0.62371737, 0.60064769, 0.62071747, 0.63497138};
  v1::JobSpec spec = Job("conv:4:3:1 bn relu pool flatten dense:4");
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  spec.mutable_optimizer()->set_learning_rate(0.01);
  spec.mutable_optimizer()->set_momentum(0);
  spec.mutable_optimizer()->set_beta1(0.9);
  spec.mutable_optimizer()->set_beta2(0.999);
  spec.mutable_optimizer()->set_epsilon(1e-8);
  const auto runs = Train(spec);
  const auto steps = runs[0].steps();
  ASSERT_EQ(steps.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(steps[i].loss() / losses[i], 1, 1e-4) << i;
    EXPECT_NEAR(steps[i].gradient_norm() / norms[i], 1, 1e-3) << i;
  }
  EXPECT_NEAR(runs[0].evaluations().at(0).loss() / 1.3247463, 1, 1e-4);
  const auto loaded = LoadCheckpoint(runs[0].result->final_checkpoint());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (int c = 0; c < 4; ++c) {
    EXPECT_NEAR(loaded->tensors.at("statistic/layers.1.running_mean").data[c], means[c], 2e-5) << c;
    EXPECT_NEAR(loaded->tensors.at("statistic/layers.1.running_variance").data[c], variances[c], 2e-5) << c;
  }
}

// NUM-01, NUM-02, NUM-10, JOB-07: however 16 samples are cut, it is the same step; with clipping, so that a wrong
// factor would show.
TEST_F(Numerics, ShardsAndMicroBatchesDoNotChangeTheStep) {
  std::vector<std::vector<v1::StepRecord>> all;
  const std::pair<int64_t, int64_t> cuts[] = {{1, 16}, {1, 4}, {2, 8}, {4, 4}, {8, 1}};
  for (const auto& [shards, micro] : cuts) {
    v1::JobSpec spec = Job("flatten dense:16 relu dense:4");
    Accumulate(&spec, shards, micro);
    spec.mutable_optimizer()->set_clip_norm(0.25);
    spec.mutable_train()->set_steps(20);
    all.push_back(Train(spec)[0].steps());
  }
  for (const auto& steps : all) {
    ASSERT_EQ(steps.size(), 20u);
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(steps[i].loss(), all[0][i].loss(), 1e-5) << i;
      EXPECT_NEAR(steps[i].gradient_norm() / all[0][i].gradient_norm(), 1, 1e-4) << i;
      EXPECT_EQ(steps[i].clipped(), steps[i].gradient_norm() > 0.25) << i;  // OPT-11: the norm before clipping
    }
  }
}

// numerics.mode fast: the same sums in another order: 64 products and 4 shards in f32, five steps.
TEST_F(Numerics, FastModeAgreesUpToRounding) {
  v1::JobSpec spec = Job("flatten dense:16 relu dense:4");
  Accumulate(&spec, 4, 4);
  const auto exact = Train(spec, {.ranks = 3})[0].steps();
  spec.mutable_numerics()->set_mode(v1::NUMERICS_MODE_FAST);
  spec.mutable_checkpoint()->set_directory(JoinPath(directory_.path(), "fast"));
  const auto fast = Train(spec, {.ranks = 3})[0].steps();
  ASSERT_EQ(fast.size(), 5u);
  for (size_t i = 0; i < fast.size(); ++i) EXPECT_NEAR(fast[i].loss() / exact[i].loss(), 1, 1e-5) << i;
}

// NUM-03, NUM-09, LOG-05: 20 samples in batches of 16: the second step has 4 valid rows, all in the first rank's
// shards. With a rate of almost zero both steps and the evaluation see the same weights, so 16 L1 + 4 L2 = 20 L.
TEST_F(Numerics, LossIsTheMeanOverValidSamplesAlsoWhereARankHasNone) {
  IdxFolder few;
  FillFormula(&few, 20, 8, 4);
  v1::JobSpec spec = SmallJob(few, "flatten dense:16 relu dense:4", JoinPath(directory_.path(), "few"));
  Accumulate(&spec, 4, 4);
  spec.mutable_optimizer()->set_learning_rate(1e-30);
  spec.mutable_train()->set_steps(0);
  spec.mutable_train()->set_epochs(1);
  const auto runs = Train(spec, {.ranks = 2});
  const auto steps = runs[0].steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].samples(), 16);
  EXPECT_EQ(steps[1].samples(), 4);
  EXPECT_TRUE(std::isfinite(steps[1].gradient_norm()));
  const double mean = (16 * steps[0].loss() + 4 * steps[1].loss()) / 20;
  EXPECT_NEAR(runs[0].evaluations().at(0).loss() / mean, 1, 1e-6);
  EXPECT_EQ(runs[0].evaluations()[0].samples(), 20);
}

// NUM-08: one feature, batch [1, 3]: mean 2, unbiased variance 2; running mean 0.2, running variance 0.9 + 0.2.
TEST_F(Numerics, RunningStatisticsOfOneBatchAreTheFormula) {
  IdxFolder two;
  two.Images(IdxBytes(8, {2, 1}, std::string("\x01\x03", 2)));
  two.Labels(IdxBytes(8, {2}, std::string("\x00\x01", 2)));
  v1::JobSpec spec = SmallJob(two, "bn dense:4", JoinPath(directory_.path(), "two"));
  spec.mutable_data()->set_mean(0);
  spec.mutable_data()->set_std(1.0 / 255);
  spec.mutable_batch()->set_global(2);
  spec.mutable_batch()->set_micro(2);
  spec.mutable_train()->set_steps(1);
  const auto runs = Train(spec);
  const auto loaded = LoadCheckpoint(runs[0].result->final_checkpoint());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NEAR(loaded->tensors.at("statistic/layers.0.running_mean").data[0], 0.2, 1e-6);
  EXPECT_NEAR(loaded->tensors.at("statistic/layers.0.running_variance").data[0], 1.1, 1e-6);
}

// Row 37 alone is infinite after normalisation (255 / 255 / 1e-39 overflows f32); all other pixels are zero.
class Poisoned : public Numerics {
 protected:
  Poisoned() {
    std::string pixels(64 * 64, '\0'), labels(64, '\0');
    pixels[37 * 64 + 5] = '\xff';
    for (int r = 0; r < 64; ++r) labels[r] = static_cast<char>(r % 4);
    poisoned_.Images(IdxBytes(8, {64, 8, 8}, pixels));
    poisoned_.Labels(IdxBytes(8, {64}, labels));
    spec_ = SmallJob(poisoned_, "flatten dense:16 relu dense:4", JoinPath(directory_.path(), "poisoned"));
    spec_.mutable_data()->set_mean(0);
    spec_.mutable_data()->set_std(1e-39);
    spec_.mutable_train()->set_evaluate_at_end(false);
    spec_.mutable_data()->clear_eval();
    Accumulate(&spec_, 4, 2);
  }
  IdxFolder poisoned_;
  v1::JobSpec spec_;
};

// Row 37 is in batch 3 (rows 32..47), shard 1 (rows 36..39), which rank 0 of 2 computes.
TEST_F(Poisoned, NonFiniteStepIsSkippedByTheWholeWorldAndItsCauseNamed) {
  spec_.mutable_train()->set_steps(4);
  const auto runs = Train(spec_, {.ranks = 2});
  const auto steps = runs[0].steps();
  ASSERT_EQ(steps.size(), 4u);
  for (int i : {0, 1, 3}) EXPECT_FALSE(steps[i].skipped()) << i;
  EXPECT_TRUE(steps[2].skipped());
  EXPECT_EQ(steps[2].skip_cause().substr(0, 24), "rank 0, shard 1, layers.");
  EXPECT_EQ(steps[1].update(), 2);
  EXPECT_EQ(steps[2].update(), 2);
  EXPECT_EQ(steps[3].update(), 3);
  EXPECT_EQ(runs[0].result->samples(), 64);  // the batch index went on: no sample was repeated

  // Nothing moved in the skipped step: steps 1, 2 and 3 end with the weights of steps 1 and 2.
  std::string digests[2];
  for (int64_t last : {2, 3}) {
    v1::JobSpec shorter = spec_;
    shorter.mutable_train()->set_steps(last);
    shorter.mutable_checkpoint()->set_directory(JoinPath(directory_.path(), fmt::format("until{}", last)));
    digests[last - 2] = Train(shorter, {.ranks = 2})[0].result->weights_sha256();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(Poisoned, TooManySkippedStepsInARowFailTheJob) {
  spec_.mutable_data()->set_mean(1);  // every pixel is infinite now
  spec_.mutable_train()->set_steps(9);
  spec_.mutable_train()->set_max_skipped_steps(2);
  const auto runs = RunWorld(spec_, {.ranks = 2});
  for (const RankRun& run : runs) {
    EXPECT_EQ(run.result.status().code(), absl::StatusCode::kFailedPrecondition) << run.result.status();
    EXPECT_FALSE(run.failed_in_collective);
  }
  EXPECT_EQ(runs[0].steps().size(), 3u);
}

// JOB-07: the plan says what a step is made of; the arena is exactly as planned, before and after.
TEST_F(Numerics, MeasuredArenaIsThePlannedOne) {
  v1::JobSpec spec = Job("conv:4:3:1 bn relu pool flatten dense:4");
  Accumulate(&spec, 2, 4);
  for (int ranks : {1, 2}) {
    spec.mutable_checkpoint()->set_directory(JoinPath(directory_.path(), fmt::format("arena{}", ranks)));
    const auto runs = Train(spec, {.ranks = ranks});
    for (int rank = 0; rank < ranks; ++rank) {
      const v1::RankResult& result = *runs[rank].result;
      const auto dry = ExactPlan(MakeConfig(spec, {.ranks = ranks}, rank));
      ASSERT_TRUE(dry.ok()) << dry.status();
      EXPECT_GT(result.measured_arena_bytes(), 0);
      EXPECT_EQ(result.measured_arena_bytes(), dry->memory().arena_bytes());
      EXPECT_EQ(result.plan().memory().arena_bytes(), dry->memory().arena_bytes());
    }
  }
}

TEST_F(Numerics, StepLoopAllocatesNothingLarge) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer brings its own malloc";
  v1::JobSpec spec = Job("conv:4:3:1 bn relu pool dropout:0.5 flatten dense:16 relu dense:4");
  Accumulate(&spec, 4, 2);
  spec.mutable_train()->set_steps(20);
  for (int ranks : {1, 2}) {
    spec.mutable_checkpoint()->set_directory(JoinPath(directory_.path(), fmt::format("malloc{}", ranks)));
    std::unique_ptr<AllocationCounter> counter;
    int64_t count = -1, largest = 0;
    WorldOptions options{.ranks = ranks};
    options.on_event = [&](int rank, const v1::RankEvent& event, Communicator&, ControlBox&) {
      if (rank != 0 || !event.has_step()) return;
      if (event.step().step() == 5) counter = std::make_unique<AllocationCounter>(1024);
      if (event.step().step() != 18) return;
      count = counter->count();
      largest = counter->largest();
      counter.reset();
    };
    Train(spec, options);
    EXPECT_EQ(count, 0) << ranks << " ranks; largest allocation " << largest;
  }
}

TEST_F(Numerics, WrongModelsAreRefusedWithTheLayersPath) {
  v1::JobSpec spec = Job("flatten conv:4:3:1 dense:4");
  auto trainer = Trainer::Create(MakeConfig(spec, {}, 0));
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(trainer.status()).find("layers.1"), std::string::npos) << trainer.status();
  spec = Job("flatten dense:5");  // data.classes is 4
  trainer = Trainer::Create(MakeConfig(spec, {}, 0));
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(trainer.status()).find("data.classes is 4"), std::string::npos) << trainer.status();
}

}  // namespace
}  // namespace tutti::testing
