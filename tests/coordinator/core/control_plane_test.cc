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

// FLT-08
TEST(ControlPlane, RestartAdoptsWhatRunsAndCountsNothing) {
  Harness h;
  uint64_t a = h.Connect("a", 2);
  const std::string id = h.Create("u1", 2);
  const v1::StartJob start = Harness::Starts(h.TakeSent())[0];
  h.Started(a, id, 1);
  h.TrainStep(a, id, 1, 5);
  h.Restart();
  EXPECT_EQ(h.state.meta.term(), 2);
  h.Advance(seconds(120));  // nobody connects: nothing happens to the job
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RUNNING);
  a = h.Connect("a", 2, {Harness::Running(start)}, 1);
  const auto sent = h.TakeSent();
  EXPECT_TRUE(sent[0].has_welcome());
  EXPECT_EQ(sent[0].welcome().term(), 2);
  EXPECT_THAT(Harness::Starts(sent), SizeIs(1)) << "the desired set names what runs";
  EXPECT_THAT(Harness::Revokes(sent), IsEmpty());
  h.TrainStep(a, id, 1, 6);
  h.Checkpoint(a, id, 1, 100, true);
  h.Completed(a, id, 1);
  h.Exit(a, id, 1, 0, {});
  h.Exit(a, id, 1, 1, {});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(h.Status(id).attempts(), 1);
}

// FLT-08, second half: the ranks finish while the coordinator is down.
TEST(ControlPlane, OutcomeIsTakenFromTheReplayedEvents) {
  Harness h;
  uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  const v1::StartJob start = Harness::Starts(h.TakeSent())[0];
  h.Started(a, id, 1);
  h.Restart();
  a = h.Connect("a", 1, {Harness::Running(start, true)}, 1);
  EXPECT_FALSE(IsTerminal(h.Status(id).state())) << "how it ended is not known yet";
  h.TrainStep(a, id, 1, 100);
  h.Checkpoint(a, id, 1, 100, true);
  h.Completed(a, id, 1);
  h.Exit(a, id, 1, 0, {});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(ControlPlane, AnEmptyJournalAdoptsJobsTermsAndGenerations) {
  Harness old;
  old.Connect("a", 1);
  old.Create("u1", 1);
  v1::StartJob start = Harness::Starts(old.TakeSent())[0];
  start.mutable_assignment()->set_generation(7);
  Harness h;
  const uint64_t a = h.Connect("a", 1, {Harness::Running(start)}, 41);
  EXPECT_EQ(h.state.meta.term(), 42);
  const std::string& id = start.assignment().job_id();
  EXPECT_EQ(h.Status(id).generation(), 7);
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Harness::Revokes(h.TakeSent()), IsEmpty());
  EXPECT_EQ(h.Create("u1", 1), id) << "the client asks again and finds its job";
  h.Exit(a, id, 7, 0, {.signal = 9});
  h.Ended(a, id, 7);
  EXPECT_EQ(h.Status(id).failures(0).generation(), 7);
}

TEST(ControlPlane, AnAgentThatComesBackWithoutItsRanksIsANodeFailure) {
  Harness h;
  uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.Feed(AgentGone{a});
  h.Advance(seconds(3));
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_STARTING);
  h.TakeSent();
  a = h.Connect("a", 1, {}, 1);
  EXPECT_EQ(h.Status(id).failures(0).kind(), v1::FAILURE_KIND_NODE);
  EXPECT_EQ(h.Status(id).node_failures(), 1);
  EXPECT_EQ(h.Status(id).user_failures(), 0);
}

// FLT-09
TEST(ControlPlane, ANewConnectionOfTheSameNodeTakesOver) {
  Harness h;
  h.Connect("a", 1);
  h.Connect("a", 1);
  ASSERT_THAT(h.closed, SizeIs(1));
  EXPECT_EQ(h.closed[0].stream, 1u);
  EXPECT_EQ(h.closed[0].status.code(), absl::StatusCode::kAborted);
  h.Feed(AgentGone{1});
  EXPECT_EQ(h.state.nodes.at("a").node.state(), v1::NODE_STATE_READY);
  EXPECT_THAT(h.state.nodes, SizeIs(1));
}

TEST(ControlPlane, MalformedReportsAreRefused) {
  Harness h;
  h.Connect("../x", 1);
  h.Connect("", 1);
  ASSERT_THAT(h.closed, SizeIs(2));
  EXPECT_EQ(h.closed[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(h.state.nodes, IsEmpty());
}

// FLT-10
TEST(Liveness, ProgressKeepsASilentNodeAndItsLossIsANodeFailure) {
  Harness h;
  h.heartbeats = false;
  const uint64_t a = h.Connect("a", 1), b = h.Connect("b", 1);
  h.Connect("c", 2);
  const std::string id = h.Create("u1", 3);
  ASSERT_EQ(h.Status(id).assignment().nodes_size(), 2);
  const bool uses_a = h.Status(id).assignment().nodes(1).node() == "a";
  const uint64_t gone = uses_a ? a : b, other = uses_a ? b : a;
  const uint64_t first = 3;  // c has rank 0
  h.Started(first, id, 1);
  h.Feed(AgentGone{gone});
  for (int step = 1; step <= 40; ++step) {
    h.Said(first, {});
    h.Said(other, {});
    h.TrainStep(first, id, 1, step);
    h.Advance(seconds(1));
  }
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RUNNING) << "an all-reduce that completes proves that all ranks live";
  for (int second = 0; second < 12; ++second) {
    h.Said(first, {});
    h.Said(other, {});
    h.Advance(seconds(1));
  }
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(h.state.nodes.at(uses_a ? "a" : "b").node.state(), v1::NODE_STATE_LOST);
  h.Exit(first, id, 1, 0, {.code = 75});
  h.Ended(first, id, 1);
  ASSERT_THAT(h.Status(id).failures(), SizeIs(1));
  EXPECT_EQ(h.Status(id).failures(0).kind(), v1::FAILURE_KIND_NODE);
  EXPECT_THAT(h.Status(id).failures(0).cause(), HasSubstr("is lost: no contact for"));
  EXPECT_EQ(h.Status(id).generation(), 2) << "three slots are left";
}

TEST(Liveness, WhenMostVanishTogetherNobodyIsEvicted) {
  Harness h;
  h.heartbeats = false;
  std::vector<uint64_t> streams;
  for (const char* name : {"a", "b", "c"}) streams.push_back(h.Connect(name, 1));
  const std::string id = h.Create("u1", 3);
  for (const uint64_t stream : streams) h.Feed(AgentGone{stream});
  h.Advance(seconds(3600), seconds(1));
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_STARTING);
  for (const auto& [name, node] : h.state.nodes) EXPECT_EQ(node.node.state(), v1::NODE_STATE_SUSPECTED);
}

// FLT-10: a coordinator that was stopped for a minute blames nobody.
TEST(Liveness, AGapOfOurOwnExtendsLeases) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  h.Connect("b", 1);
  h.Connect("c", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  h.now += seconds(300);
  h.Feed(Tick{});
  for (const auto& [name, node] : h.state.nodes) EXPECT_EQ(node.node.state(), v1::NODE_STATE_READY) << name;
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_STARTING);
}

// FLT-12
TEST(Liveness, AStallNamesTheRankThatIsBehindAndASlowFirstStepIsNone) {
  Harness h;
  const uint64_t a = h.Connect("a", 2);
  const std::string id = h.Create("u1", 2);
  h.Started(a, id, 1);
  h.Advance(seconds(300), seconds(1));
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_STARTING) << "the first step may take long";
  for (int step = 1; step <= 3; ++step) {
    h.TrainStep(a, id, 1, step);
    for (int rank = 0; rank < 2; ++rank) {
      v1::RankEvent beat = h.Event_(1, rank);
      beat.mutable_heartbeat()->set_phase(v1::PHASE_TRAINING);
      beat.mutable_heartbeat()->set_step(rank == 0 ? step + 1 : step);
      h.Rank(a, id, beat);
    }
    h.Advance(milliseconds(100));
  }
  h.TakeSent();
  h.Advance(seconds(70), seconds(1));
  EXPECT_EQ(h.Status(id).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(Harness::Revokes(h.TakeSent()), SizeIs(1));
  h.Exit(a, id, 1, 0, {.signal = 15, .by_us = true});
  h.Exit(a, id, 1, 1, {.signal = 9, .by_us = true});
  h.Ended(a, id, 1);
  EXPECT_EQ(h.Status(id).failures(0).kind(), v1::FAILURE_KIND_STALL);
  EXPECT_EQ(h.Status(id).failures(0).rank(), 1);
  EXPECT_EQ(h.Status(id).generation(), 2);
  h.Started(a, id, 2);
  h.Advance(seconds(100), seconds(1));
  EXPECT_EQ(h.Status(id).generation(), 2) << "what was seen of the last generation does not count again";
}

TEST(StartFailures, AreNodeFailuresAndFreeTheSlots) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  v1::ConnectRequest message;
  message.mutable_start_failed()->set_job_id(id);
  message.mutable_start_failed()->set_generation(1);
  message.mutable_start_failed()->set_message("tutti-rank is missing");
  h.Said(a, message);
  EXPECT_EQ(h.Status(id).failures(0).cause(), "node a could not start the ranks: tutti-rank is missing");
  EXPECT_EQ(h.Status(id).node_failures(), 1);
  h.Advance(milliseconds(1200));
  EXPECT_EQ(h.Status(id).generation(), 2);
}

// API-06
TEST(Ranks, EachRanksEndIsKept) {
  Harness h;
  const uint64_t a = h.Connect("a", 3);
  const std::string id = h.Create("u1", 3, 0);
  h.Started(a, id, 1);
  h.Exit(a, id, 1, 1, {.code = 3});
  h.Exit(a, id, 1, 2, {.signal = 11});
  h.Exit(a, id, 1, 0, {.signal = 15, .by_us = true});
  h.Ended(a, id, 1);
  const auto& ranks = h.jobs.at(id).job().status().ranks();
  EXPECT_TRUE(ranks[0].stopped_by_us());
  EXPECT_EQ(ranks[1].exit_code(), 3);
  EXPECT_EQ(ranks[2].signal(), 11);
  for (const v1::RankStatus& rank : ranks) {
    EXPECT_EQ(rank.node(), "a");
    EXPECT_EQ(rank.generation(), 1);
    EXPECT_GT(rank.end_unix_ms(), 0);
  }
}

TEST(Events, RepeatedOnesAreKeptOnceAndAcknowledged) {
  Harness h;
  const uint64_t a = h.Connect("a", 1);
  const std::string id = h.Create("u1", 1);
  h.Started(a, id, 1);
  for (int step = 1; step <= 5; ++step) h.TrainStep(a, id, 1, step);
  h.sequence = 3;  // the agent repeats
  for (int step = 3; step <= 5; ++step) h.TrainStep(a, id, 1, step);
  EXPECT_THAT(h.records, SizeIs(5));
  h.TakeSent();
  h.Advance(milliseconds(100));
  const auto sent = h.TakeSent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].ack().sequence(), 6);
}

TEST(Watch, ChangesHaveRisingRevisionsAndTheOldestAreForgotten) {
  Options options;
  options.changes_kept = 4;
  Harness h(options);
  for (int i = 0; i < 10; ++i) h.Create(fmt::format("u{}", i), 1);
  ASSERT_THAT(h.state.changes, SizeIs(4));
  for (size_t i = 1; i < 4; ++i) EXPECT_GT(h.state.changes[i].revision, h.state.changes[i - 1].revision);
  EXPECT_EQ(h.state.forgotten_revision, h.state.changes.front().revision - 1);
  EXPECT_EQ(h.meta.revision(), h.state.changes.back().revision);
}

}  // namespace
}  // namespace tutti::coordinator
