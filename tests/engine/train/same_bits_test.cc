// The result depends on the job and the seed: not on the number of ranks, on who died, or on where it was resumed.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/train/training.h"

namespace tutti::testing {
namespace {

// Dropout, batch norm, a residual block, accumulation, clipping, a schedule, shuffling, and a batch size that does not
// divide the data.
constexpr const char* kEverything = "conv:4:3:1 bn relu pool dropout:0.3 flatten dense:16 res:16 dense:4";

class SameBits : public ::testing::Test {
 protected:
  SameBits() : directory_(TempDirectory::Create("tutti-train-").value()) {
    FillFormula(&data_, 90, 8, 4);
    spec_ = SmallJob(data_, kEverything, Folder("base"));
    spec_.mutable_data()->set_shuffle(true);
    spec_.mutable_numerics()->set_shards(4);
    spec_.mutable_batch()->set_micro(2);  // 4 shards of 2 micro-batches
    spec_.mutable_train()->set_steps(0);
    spec_.mutable_train()->set_epochs(2);  // 180 samples: 11 full batches and one of 4 samples
    spec_.mutable_train()->set_evaluate_every_steps(5);
    spec_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
    spec_.mutable_optimizer()->set_beta1(0.9);
    spec_.mutable_optimizer()->set_beta2(0.999);
    spec_.mutable_optimizer()->set_epsilon(1e-8);
    spec_.mutable_optimizer()->set_learning_rate(0.01);
    spec_.mutable_optimizer()->set_clip_norm(1.0);
    spec_.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_COSINE);
    spec_.mutable_schedule()->set_warmup_steps(3);
    spec_.mutable_checkpoint()->set_every_steps(4);
  }

  std::string Folder(const std::string& name) const { return JoinPath(directory_.path(), name); }

  std::vector<RankRun> Train(const std::string& folder, WorldOptions options) {
    spec_.mutable_checkpoint()->set_directory(Folder(folder));
    return RunWorld(spec_, options);
  }

  // The weights of a run from the first to the last step at width 4.
  const v1::RankResult& Reference() {
    if (!reference_) {
      const auto runs = Train("reference", {.ranks = 4});
      TUTTI_CHECK_OK(runs[0].result.status());
      reference_ = *runs[0].result;
    }
    return *reference_;
  }

  static WorldOptions Stop(int ranks, int64_t at_step, v1::Intent intent) {
    WorldOptions options{.ranks = ranks};
    options.on_event = [=](int rank, const v1::RankEvent& event, Communicator&, ControlBox& control) {
      // Only one rank hears of it. Events of step k come after footer k, so step k + 1 is the last one.
      if (rank == 0 && event.has_step() && event.step().step() == at_step - 1) control.Raise(intent);
    };
    return options;
  }

  IdxFolder data_;
  TempDirectory directory_;
  v1::JobSpec spec_;
  std::optional<v1::RankResult> reference_;
};

// NUM-06, NUM-10, SHD-01, SHD-04, OPT-05, LOG-05
TEST_F(SameBits, EqualForOneToFourRanks) {
  std::vector<std::vector<RankRun>> worlds;
  for (int ranks = 1; ranks <= 4; ++ranks) worlds.push_back(Train(fmt::format("w{}", ranks), {.ranks = ranks}));
  for (const auto& world : worlds) {
    for (const RankRun& run : world) ASSERT_TRUE(run.result.ok()) << run.result.status() << " in " << run.where;
  }
  const RankRun& one = worlds[0][0];
  ASSERT_EQ(one.steps().size(), 12u);
  EXPECT_EQ(one.steps().back().samples(), 4);
  EXPECT_EQ(one.result->samples(), 180);
  EXPECT_EQ(one.result->weights_sha256().size(), 64u);
  ASSERT_EQ(one.evaluations().size(), 3u);  // steps 5, 10 and the end
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const RankRun& other = worlds[ranks - 1][0];
    EXPECT_EQ(other.result->weights_sha256(), one.result->weights_sha256()) << ranks;
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(other.steps()[i].loss(), one.steps()[i].loss()) << ranks << " step " << i + 1;
      EXPECT_EQ(other.steps()[i].gradient_norm(), one.steps()[i].gradient_norm());
      EXPECT_EQ(other.steps()[i].learning_rate(), one.steps()[i].learning_rate());
      EXPECT_EQ(other.steps()[i].sample_digest(), one.steps()[i].sample_digest());
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(other.evaluations()[i].samples(), 90);
      EXPECT_EQ(other.evaluations()[i].loss(), one.evaluations()[i].loss());
      EXPECT_EQ(other.evaluations()[i].accuracy(), one.evaluations()[i].accuracy());
    }
  }
}

// CKP-15, SHD-07, SHD-08, OPT-03, OPT-06: yield at step 6 on two ranks, go on with three, yield again, end with one.
TEST_F(SameBits, ResumedAtOtherWidths) {
  const auto first = Train("widths", Stop(2, 6, v1::INTENT_YIELD));
  ASSERT_TRUE(first[0].result.ok()) << first[0].result.status();
  EXPECT_EQ(first[0].result->reason(), v1::FINISH_REASON_YIELDED);
  EXPECT_EQ(first[1].result->reason(), v1::FINISH_REASON_YIELDED);
  EXPECT_EQ(first[0].result->last_step(), 6);

  WorldOptions second = Stop(3, 9, v1::INTENT_YIELD);
  second.generation = 2;
  second.base_step = 6;
  second.bases = {{1, 0}};
  const auto middle = Train("widths", second);
  ASSERT_TRUE(middle[0].result.ok()) << middle[0].result.status();
  EXPECT_EQ(middle[0].result->last_step(), 9);

  const auto last = Train("widths", {.ranks = 1, .generation = 3, .base_step = 9, .bases = {{1, 0}, {2, 6}}});
  ASSERT_TRUE(last[0].result.ok()) << last[0].result.status();
  EXPECT_EQ(last[0].result->reason(), v1::FINISH_REASON_COMPLETED);
  EXPECT_EQ(last[0].result->weights_sha256(), Reference().weights_sha256());
  EXPECT_EQ(last[0].result->samples(), 180);
  ASSERT_EQ(last[0].steps().size(), 3u);
  EXPECT_EQ(last[0].steps()[0].step(), 10);
}

// SHD-03: a rank dies in step 7; the newest durable step is 4.
TEST_F(SameBits, KilledInAStepAndResumedFromTheCheckpoint) {
  WorldOptions killed{.ranks = 3};
  killed.on_event = [](int rank, const v1::RankEvent& event, Communicator& comm, ControlBox&) {
    if (rank == 0 && event.has_step() && event.step().step() == 6) comm.Abort("rank 0 is gone");
  };
  const auto first = Train("killed", killed);
  for (const RankRun& run : first) {
    EXPECT_EQ(run.result.status().code(), absl::StatusCode::kAborted);
    EXPECT_TRUE(run.failed_in_collective);
  }
  EXPECT_NE(first[1].where.find("step 7"), std::string::npos) << first[1].where;
  const auto second = Train("killed", {.ranks = 2, .generation = 2, .base_step = 4, .bases = {{1, 0}}});
  ASSERT_TRUE(second[0].result.ok()) << second[0].result.status();
  EXPECT_EQ(second[0].steps().front().step(), 5);
  EXPECT_EQ(second[0].result->weights_sha256(), Reference().weights_sha256());
}

// OPT-07: the job file's rate holds, and a person is told both.
TEST_F(SameBits, ChangedLearningRateOnResumeIsSaid) {
  ASSERT_TRUE(Train("rate", Stop(1, 3, v1::INTENT_YIELD))[0].result.ok());
  spec_.mutable_optimizer()->set_learning_rate(0.02);
  WorldOptions again = Stop(1, 5, v1::INTENT_CANCEL);
  again.generation = 2;
  again.base_step = 3;
  const auto runs = Train("rate", again);
  ASSERT_TRUE(runs[0].result.ok()) << runs[0].result.status();
  std::string notices;
  for (const v1::RankEvent& event : runs[0].events) notices += event.notice().message();
  EXPECT_NE(notices.find("trained with 0.01, the job file says 0.02"), std::string::npos) << notices;
  // Cosine from 0.02 after a warm-up of 3, at update 4 of 12: progress 1 / 9.
  EXPECT_NEAR(runs[0].steps()[0].learning_rate(), 0.02 * 0.5 * (1 + std::cos(M_PI / 9)), 1e-12);
}

TEST_F(SameBits, CancelWritesACheckpointAndLeaves) {
  const auto runs = Train("cancel", Stop(2, 3, v1::INTENT_CANCEL));
  ASSERT_TRUE(runs[0].result.ok()) << runs[0].result.status();
  EXPECT_EQ(runs[0].result->reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(runs[0].result->last_step(), 3);
  EXPECT_TRUE(FileExists(JoinPath(runs[0].result->final_checkpoint(), "manifest.json")));
}

TEST_F(SameBits, CheckpointOnRequestDoesNotChangeTheResult) {
  spec_.mutable_checkpoint()->set_every_steps(0);
  WorldOptions options{.ranks = 2};
  options.on_event = [](int rank, const v1::RankEvent& event, Communicator&, ControlBox& control) {
    if (rank == 0 && event.has_step() && event.step().step() == 2) control.RequestCheckpoint();
  };
  const auto runs = Train("request", options);
  ASSERT_TRUE(runs[0].result.ok()) << runs[0].result.status();
  std::vector<int64_t> steps;
  for (const v1::RankEvent& event : runs[0].events) {
    if (event.has_checkpoint()) steps.push_back(event.checkpoint().step());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 12}));
  EXPECT_EQ(runs[0].result->weights_sha256(), Reference().weights_sha256());
}

}  // namespace
}  // namespace tutti::testing
