#include "coordinator/core/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/core/harness.h"

namespace tutti::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Jobs, SameUidAndDigestIsTheSameJob) {
  Harness h;
  const std::string id = h.Create("u1", 2);
  EXPECT_EQ(h.Create("u1", 2), id);
  EXPECT_TRUE(h.replies[0].created);
  EXPECT_FALSE(h.replies[1].created);
  h.Create("u1", 3);
  EXPECT_EQ(h.replies[2].status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(h.jobs, SizeIs(1));
}

TEST(Jobs, StartsAtOnceWhereSlotsAreFreeAndEndsOnce) {
  Harness h;
  const uint64_t a = h.Connect("a", 2);
  const std::string id = h.Create("u1", 2);
  const auto starts = Harness::Starts(h.TakeSent());
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].assignment().generation(), 1);
  EXPECT_THAT(h.Status(id).ranks(1).cores(), ElementsAre(1));
  EXPECT_EQ(h.jobs.at(id).job().status().generation(), 1) << "journaled with the same commit";
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RUNNING);
  h.Checkpoint(a, id, 1, 100, true);
  h.Completed(a, id, 1);
  h.Exit(a, id, 1, 0, {});
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RUNNING) << "rank 1 is alive";  // SCH-05
  h.Exit(a, id, 1, 1, {});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(h.Status(id).weights_sha256(), "abc");
  const auto revokes = Harness::Revokes(h.TakeSent());
  ASSERT_THAT(revokes, SizeIs(1));
  EXPECT_TRUE(revokes[0].forget());
  EXPECT_THAT(h.jobs.at(id).shares(), IsEmpty()) << "slots are freed";
  h.Ended(a, id, 1);  // again: harmless
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_SUCCEEDED);
}

// SCH-05
TEST(Jobs, RanksThatStayAfterRankZeroEndedWellAreStoppedAfterTheGrace) {
  Harness h;
  const uint64_t a = h.Connect("a", 2);
  const std::string id = h.Create("u1", 2);
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 100);
  h.Completed(a, id, 1);
  h.Exit(a, id, 1, 0, {});
  h.TakeSent();
  h.Advance(milliseconds(4800));
  EXPECT_THAT(Harness::Revokes(h.TakeSent()), IsEmpty());
  h.Advance(milliseconds(400));
  EXPECT_THAT(Harness::Revokes(h.TakeSent()), SizeIs(1));
  h.Exit(a, id, 1, 1, {.signal = 15, .by_us = true});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(h.Status(id).failures(), IsEmpty());
}

// API-07
TEST(Cancel, ReplySaysCancellingAndIsHarmlessWhenRepeated) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.TakeSent();
  h.Feed(CancelJob{.request = 90, .id = id, .force = false});
  EXPECT_EQ(h.replies.back().job.status().state(), v1::JOB_STATE_CANCELLING);
  const auto revokes = Harness::Revokes(h.TakeSent());
  ASSERT_THAT(revokes, SizeIs(1));
  EXPECT_EQ(revokes[0].intent(), v1::INTENT_CANCEL);
  h.Feed(CancelJob{.request = 91, .id = id, .force = false});
  EXPECT_EQ(h.replies.back().job.status().state(), v1::JOB_STATE_CANCELLING);
  h.Exit(a, id, 1, 0, {});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_CANCELLED);
  const int64_t revision = h.state.jobs.at(id).job().revision();
  h.Feed(CancelJob{.request = 92, .id = id, .force = true});
  EXPECT_EQ(h.replies.back().job.status().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(h.replies.back().job.revision(), revision);
  h.Feed(CancelJob{.request = 93, .id = "nobody", .force = false});
  EXPECT_EQ(h.replies.back().status.code(), absl::StatusCode::kNotFound);
}

TEST(Cancel, ACompleteFinalManifestWins) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.Feed(CancelJob{.request = 90, .id = id, .force = false});
  h.Checkpoint(a, id, 1, 100, true);
  h.Exit(a, id, 1, 0, {.signal = 9});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(Cancel, TheLastCheckpointOfACancelledRunIsNoFinalManifest) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.Feed(CancelJob{.request = 90, .id = id, .force = false});
  h.Checkpoint(a, id, 1, 42, true);
  h.Exit(a, id, 1, 0, {});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(h.Status(id).durable_step(), 42);
}

// FLT-02
TEST(Failures, TheFirstRealEndIsTheCauseAndVictimsAreNamed) {
  Harness h;
  const uint64_t a = h.Connect("a", 1), b = h.Connect("b", 1), c = h.Connect("c", 1);
  const std::string id = h.Create("u1", 3);
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 7);
  h.TakeSent();
  h.Victim(a, id, 1, 0, 1);  // heard first, from another node
  h.Exit(a, id, 1, 0, {.code = 75});
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(Harness::Revokes(h.TakeSent()), IsEmpty()) << "a victim's end waits for the one that caused it";
  h.Exit(b, id, 1, 1, {.code = 7, .lines = {"boom"}});
  EXPECT_THAT(Harness::Revokes(h.TakeSent()), SizeIs(3));
  h.Exit(c, id, 1, 2, {.signal = 15, .by_us = true});
  h.Ended(a, id, 1);
  h.Ended(b, id, 1);
  EXPECT_THAT(h.Status(id).failures(), IsEmpty()) << "a rank may still be alive on c";
  h.Ended(c, id, 1);
  ASSERT_THAT(h.Status(id).failures(), SizeIs(1));
  const v1::Failure& failure = h.Status(id).failures(0);
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_EQ(failure.node(), "b");
  EXPECT_EQ(failure.exit_code(), 7);
  EXPECT_EQ(failure.cause(), "exit code 7");
  EXPECT_THAT(failure.last_lines(), ElementsAre("boom"));
  EXPECT_THAT(failure.victims(), ElementsAre(0, 2));
  EXPECT_EQ(failure.completed_step(), 7);
  EXPECT_EQ(failure.next(), "generation 2 from step 0 (1 of 3 user-failure restarts used)");
  EXPECT_EQ(h.Status(id).generation(), 2) << "the generation made progress: no backoff";
}

TEST(Failures, OnlyVictimsBlameTheRankTheyWaitedFor) {
  Harness h;
  const uint64_t a = h.Connect("a", 2);
  const std::string id = h.Create("u1", 2);
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 7);
  h.Victim(a, id, 1, 0, 1);
  h.Exit(a, id, 1, 0, {.code = 75});
  h.TakeSent();
  h.Advance(milliseconds(600));
  ASSERT_THAT(Harness::Revokes(h.TakeSent()), SizeIs(1)) << "who did not answer is stopped";
  h.Exit(a, id, 1, 1, {.signal = 9, .by_us = true});
  h.Ended(a, id, 1);
  const v1::Failure& failure = h.Status(id).failures(0);
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_EQ(failure.kind(), v1::FAILURE_KIND_STALL);
  EXPECT_EQ(failure.where(), "all-reduce #3 of step 8");
  EXPECT_THAT(failure.victims(), ElementsAre(0));
}

// FLT-07
TEST(Failures, SignalsAndCodesAreToldApart) {
  v1::RankStatus rank;
  rank.set_state(v1::RANK_STATE_EXITED);
  rank.set_signal(9);
  EXPECT_EQ(DescribeEnd(rank), "killed by signal 9, cause unknown, possibly memory");
  rank.set_message("out of memory: limit 1 GiB, peak 1 GiB");
  EXPECT_EQ(DescribeEnd(rank), "killed by signal 9: out of memory: limit 1 GiB, peak 1 GiB");
  rank.clear_message();
  rank.set_signal(0);
  rank.set_exit_code(137);
  EXPECT_EQ(DescribeEnd(rank), "exit code 137");
  rank.set_exit_code(0);
  EXPECT_EQ(DescribeEnd(rank), "exit code 0 before the last step");
}

// One generation of a job on one node that ends with `end`, without a step.
void FailOnce(Harness& h, uint64_t stream, const std::string& id, const Harness::End& end) {
  const int64_t generation = h.Status(id).generation();
  h.Started(stream, id, generation);
  h.Exit(stream, id, generation, 0, end);
  h.Ended(stream, id, generation);
}

// FLT-14
TEST(Failures, CrashAtStartBacksOffAndStopsWithoutProgress) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1, 10);
  std::vector<int64_t> delays_ms;
  while (!IsTerminal(h.Status(id).state())) {
    FailOnce(h, a, id, {.code = 1});
    const int64_t generation = h.Status(id).generation();
    int64_t waited = 0;
    for (; waited < 20000 && !IsTerminal(h.Status(id).state()) && h.Status(id).generation() == generation;
         waited += 100) {
      h.Advance(milliseconds(100));
    }
    if (!IsTerminal(h.Status(id).state())) delays_ms.push_back(waited);
  }
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.Status(id).reason(), "NoProgress");
  EXPECT_EQ(h.Status(id).attempts(), 3);
  ASSERT_THAT(delays_ms, SizeIs(2));
  EXPECT_NEAR(delays_ms[0], 1000, 100);
  EXPECT_NEAR(delays_ms[1], 2000, 100);
  EXPECT_THAT(h.jobs.at(id).history(), SizeIs(3)) << "each attempt's logs stay addressable";
}

TEST(Failures, BudgetsAreSeparateAndUserFailuresEndTheJob) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1, 2);
  for (int64_t generation = 1; generation <= 3; ++generation) {
    ASSERT_EQ(h.Status(id).generation(), generation);
    h.Started(a, id, generation);
    h.TrainStep(a, id, generation, 10 * generation);
    h.Exit(a, id, generation, 0, {.code = 1});
    h.Ended(a, id, generation);
  }
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.Status(id).user_failures(), 2);
  EXPECT_EQ(h.Status(id).node_failures(), 0);
  EXPECT_THAT(h.Status(id).message(), HasSubstr("no restart: 2 of 2 user-failure restarts used"));
}

// SCH-10
TEST(Failures, ExitCodesMayForbidARestart) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  FailOnce(h, a, id, {.code = 3});
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.Status(id).attempts(), 1);
  EXPECT_THAT(h.Status(id).message(), HasSubstr("exit code 3 says that it would fail again"));
}

TEST(Generations, BasesAndTheFenceTravelWithTheAssignment) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 15);
  h.Checkpoint(a, id, 1, 10);
  h.Exit(a, id, 1, 0, {.signal = 9});
  h.TakeSent();
  h.Ended(a, id, 1);
  auto starts = Harness::Starts(h.TakeSent());
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].assignment().generation(), 2);
  EXPECT_EQ(starts[0].assignment().base_step(), 10);
  h.Started(a, id, 2, 10);
  EXPECT_EQ(h.Status(id).completed_step(), 10);
  h.TrainStep(a, id, 2, 12);
  h.Exit(a, id, 2, 0, {.signal = 9});
  h.Ended(a, id, 2);
  EXPECT_EQ(h.Status(id).generation(), 2) << "step 15 was not reached again: no progress, a backoff";
  h.Advance(milliseconds(1100));
  starts = Harness::Starts(h.TakeSent());
  ASSERT_THAT(starts, SizeIs(1));
  ASSERT_THAT(starts[0].assignment().bases(), SizeIs(2));
  EXPECT_EQ(starts[0].assignment().bases(0).base_step(), 0);
  EXPECT_EQ(starts[0].assignment().bases(1).generation(), 2);
  EXPECT_EQ(starts[0].assignment().bases(1).base_step(), 10);
}

TEST(Generations, AZombiesEventsChangeNothing) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 5);
  h.Exit(a, id, 1, 0, {.code = 1});
  h.Ended(a, id, 1);
  ASSERT_EQ(h.Status(id).generation(), 2);
  h.Checkpoint(a, id, 1, 99, true);
  h.Completed(a, id, 1);
  EXPECT_EQ(h.Status(id).durable_step(), 0);
  EXPECT_FALSE(h.state.jobs.at(id).row.final_complete());
}

TEST(Peers, TableGoesOutWhenAllRanksAreThere) {
  Harness h;
  const uint64_t a = h.Connect("a", 1), b = h.Connect("b", 1);
  const std::string id = h.Create("u1", 2);
  h.TakeSent();
  v1::RankEvent ready = h.Event_(1, 1);
  ready.mutable_ready()->set_peer_blob("one");
  h.Rank(b, id, ready);
  EXPECT_THAT(h.TakeSent(), IsEmpty());
  ready = h.Event_(1, 0);
  ready.mutable_ready()->set_peer_blob("zero");
  h.Rank(a, id, ready);
  const auto sent = h.TakeSent();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_THAT(sent[0].peers().peers().blobs(), ElementsAre("zero", "one"));
}

// RDZ-03: a rank waits for the others as long as restart.startTimeoutMs says, and no hidden limit is shorter.
class Start : public ::testing::Test {
 protected:
  Start() : a(h.Connect("a", 1)), b(h.Connect("b", 1)), id(h.Create("u1", 2)) {
    h.state.jobs.at(id).row.mutable_job()->mutable_spec()->mutable_restart()->set_start_timeout_ms(3'000'000);
    Ready(a, 0);
    h.TakeSent();
  }
  void Ready(uint64_t stream, int32_t rank) {
    v1::RankEvent ready = h.Event_(1, rank);
    ready.mutable_ready()->set_peer_blob(fmt::format("blob {}", rank));
    h.Rank(stream, id, ready);
  }

  Harness h;
  const uint64_t a, b;
  const std::string id;
};

TEST_F(Start, ARankThatComesLateIsWaitedFor) {
  h.Advance(seconds(2999), seconds(1));
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_STARTING);
  h.TakeSent();
  Ready(b, 1);
  const auto sent = h.TakeSent();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_THAT(sent[0].peers().peers().blobs(), ElementsAre("blob 0", "blob 1"));
  EXPECT_EQ(h.Status(id).attempts(), 1);
  EXPECT_THAT(h.Status(id).failures(), IsEmpty());
}

TEST_F(Start, ARankThatNeverComesIsNamedWithWhatWasExpectedAndWhatArrived) {
  v1::RankEvent gave_up = h.Event_(1, 0);
  gave_up.mutable_failure()->set_victim(true);
  gave_up.mutable_failure()->set_blamed_rank(-1);
  gave_up.mutable_failure()->set_message("not all ranks were ready");
  h.Rank(a, id, gave_up);
  h.Exit(a, id, 1, 0, {.code = 75});
  h.Advance(milliseconds(600));
  ASSERT_THAT(Harness::Revokes(h.TakeSent()), SizeIs(2)) << "who did not come is stopped";
  h.Exit(b, id, 1, 1, {.signal = 9, .by_us = true});
  h.Ended(a, id, 1);
  h.Ended(b, id, 1);
  ASSERT_THAT(h.Status(id).failures(), SizeIs(1));
  const v1::Failure& failure = h.Status(id).failures(0);
  EXPECT_EQ(failure.cause(),
            "did not start in time: expected 2 ranks, arrived 1, missing rank 1 on b; not all ranks were ready");
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_EQ(failure.node(), "b");
  EXPECT_EQ(failure.kind(), v1::FAILURE_KIND_STALL);
  EXPECT_THAT(failure.victims(), ElementsAre(0));
}

// A rank that crashes while others wait for it is the cause by its own end, not for being late.
TEST_F(Start, ARankThatFailsBeforeItIsReadyIsNotCalledLate) {
  h.Exit(b, id, 1, 1, {.code = 7});
  h.Exit(a, id, 1, 0, {.signal = 15, .by_us = true});
  h.Ended(a, id, 1);
  h.Ended(b, id, 1);
  ASSERT_THAT(h.Status(id).failures(), SizeIs(1));
  EXPECT_EQ(h.Status(id).failures(0).cause(), "exit code 7");
}

}  // namespace
}  // namespace tutti::coordinator
