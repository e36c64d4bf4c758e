// The pure core of the agent: every transition without a process.
#include "worker/agent/agent.h"

#include "gtest/gtest.h"
#include "tests/worker/support.h"

namespace tutti::worker {
namespace {

using std::chrono::milliseconds;

class AgentCore : public ::testing::Test {
 protected:
  AgentCore() { Make({}); }

  void Make(std::vector<v1::StartJob> restored, int64_t seen_term = 0) {
    v1::Node node;
    node.set_name("here");
    for (int i = 0; i < 4; ++i) node.add_slots()->set_id("cpu" + std::to_string(i));
    state_ = MakeAgentState(node, seen_term, std::move(restored), &actions_);
  }
  void Do(const AgentEvent& event) { actions_ = Step(state_, event, now_); }
  void Receive(const v1::ConnectResponse& message) { Do(FromCoordinator{message}); }

  void Welcome(int64_t term = 1, const std::vector<v1::StartJob>& desired = {},
               const std::vector<v1::AckEvents>& acks = {}) {
    Do(StreamOpened{});
    v1::ConnectResponse message;
    message.mutable_welcome()->set_term(term);
    for (const auto& start : desired) *message.mutable_welcome()->add_desired() = start;
    for (const auto& ack : acks) *message.mutable_welcome()->add_acks() = ack;
    Receive(message);
  }
  void Start(const v1::StartJob& start) {
    v1::ConnectResponse message;
    *message.mutable_start() = start;
    Receive(message);
  }
  void Revoke(const std::string& job, int64_t up_to, v1::Intent intent = v1::INTENT_UNSPECIFIED, int64_t grace = 0,
              bool forget = false) {
    v1::ConnectResponse message;
    v1::Revoke* revoke = message.mutable_revoke();
    revoke->set_job_id(job);
    revoke->set_up_to_generation(up_to);
    revoke->set_intent(intent);
    revoke->set_grace_ms(grace);
    revoke->set_forget(forget);
    Receive(message);
  }
  worker::Run& RunOf(const std::string& job, int64_t generation) { return state_.runs.at({job, generation}); }
  void Attached(const std::string& job, int64_t generation, v1::Intent intent = v1::INTENT_RUN) {
    v1::ShimState shim;
    shim.set_intent(intent);
    shim.add_ranks()->set_state(v1::RANK_STATE_RUNNING);
    Do(ShimAttached{{job, generation}, RunOf(job, generation).epoch, shim});
  }
  void Reported(const std::string& job, int64_t generation, int64_t sequence, int64_t epoch = 0) {
    v1::ShimEvent event;
    event.set_sequence(sequence);
    event.mutable_rank_event()->mutable_step()->set_step(sequence);
    Do(ShimReported{{job, generation}, epoch != 0 ? epoch : RunOf(job, generation).epoch, event});
  }
  void AllExited(const std::string& job, int64_t generation, int64_t sequence) {
    v1::ShimEvent event;
    event.set_sequence(sequence);
    event.set_all_exited(true);
    Do(ShimReported{{job, generation}, RunOf(job, generation).epoch, event});
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const AgentAction& action : actions_) {
      if (const T* item = std::get_if<T>(&action)) found.push_back(*item);
    }
    return found;
  }
  std::vector<v1::ConnectRequest> Sent(v1::ConnectRequest::MessageCase kind) const {
    std::vector<v1::ConnectRequest> found;
    for (const auto& send : All<SendToCoordinator>()) {
      if (send.message.message_case() == kind) found.push_back(send.message);
    }
    return found;
  }

  AgentState state_;
  std::vector<AgentAction> actions_;
  Nanos now_{0};
};

using M = v1::ConnectRequest;

TEST_F(AgentCore, ReportsFirstAndNothingBeforeTheWelcome) {
  Do(StreamOpened{});
  ASSERT_EQ(All<SendToCoordinator>().size(), 1u);
  ASSERT_EQ(Sent(M::kReport).size(), 1u);
  EXPECT_EQ(Sent(M::kReport)[0].report().node().slots_size(), 4);
  now_ += std::chrono::seconds(5);
  Do(Tick{});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(AgentCore, HeartbeatEverySecondAfterTheWelcome) {
  Welcome();
  EXPECT_EQ(Sent(M::kHeartbeat).size(), 1u);
  now_ += milliseconds(999);
  Do(Tick{});
  EXPECT_EQ(Sent(M::kHeartbeat).size(), 0u);
  EXPECT_EQ(NextTick(state_, now_), Nanos(std::chrono::seconds(1)));
  now_ += milliseconds(1);
  Do(Tick{});
  EXPECT_EQ(Sent(M::kHeartbeat).size(), 1u);
}

TEST_F(AgentCore, LowerTermIsRefusedHigherOneKept) {
  Make({}, 5);
  Welcome(4);
  EXPECT_EQ(All<CloseStream>().size(), 1u);
  EXPECT_FALSE(state_.welcomed);
  Start(MakeStart("A", 1, {"", ""}));
  EXPECT_TRUE(All<LaunchRun>().empty());
  Do(StreamClosed{});
  Welcome(5);
  EXPECT_TRUE(All<PersistTerm>().empty());
  Do(StreamClosed{});
  Welcome(7);
  ASSERT_EQ(All<PersistTerm>().size(), 1u);
  EXPECT_EQ(All<PersistTerm>()[0].term, 7);
}

TEST_F(AgentCore, DesiredRunIsLaunchedAttachedAndRelayedOnce) {
  const auto start = MakeStart("A", 1, {"", ""});
  Welcome(1, {start});
  ASSERT_EQ(All<LaunchRun>().size(), 1u);
  ASSERT_EQ(All<AttachShim>().size(), 1u);
  EXPECT_EQ(All<AttachShim>()[0].after_sequence, 0);
  Attached("A", 1);
  Reported("A", 1, 1);
  ASSERT_EQ(Sent(M::kEvent).size(), 1u);
  EXPECT_EQ(Sent(M::kEvent)[0].event().sequence(), 1);
  Reported("A", 1, 1);
  EXPECT_TRUE(actions_.empty());
  Start(start);  // desired again
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(CurrentSlots(state_)[0].job_id(), "A");
  EXPECT_EQ(CurrentSlots(state_)[2].job_id(), "");
  AllExited("A", 1, 2);
  ASSERT_EQ(Sent(M::kEnded).size(), 1u);
  EXPECT_EQ(Sent(M::kEnded)[0].ended().generation(), 1);
  EXPECT_EQ(CurrentSlots(state_)[0].job_id(), "");
}

TEST_F(AgentCore, NothingIsStoppedBecauseItIsAbsentFromAList) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Do(StreamClosed{});
  Welcome(2, {});
  EXPECT_TRUE(All<SendToShim>().empty());
  EXPECT_EQ(RunOf("A", 1).phase, RunPhase::kRunning);
}

TEST_F(AgentCore, ReconnectGoesOnAtTheCoordinatorsCursor) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  for (int64_t s = 1; s <= 5; ++s) Reported("A", 1, s);
  const int64_t old_epoch = RunOf("A", 1).epoch;
  Do(StreamClosed{});
  Reported("A", 1, 6);
  EXPECT_TRUE(actions_.empty());
  v1::AckEvents ack;
  ack.set_job_id("A");
  ack.set_generation(1);
  ack.set_sequence(3);
  Welcome(1, {}, {ack});
  ASSERT_EQ(All<AttachShim>().size(), 1u);
  EXPECT_EQ(All<AttachShim>()[0].after_sequence, 3);
  Reported("A", 1, 7, old_epoch);  // still on the way from the older attachment
  EXPECT_TRUE(actions_.empty());
  Attached("A", 1);
  Reported("A", 1, 4);
  ASSERT_EQ(Sent(M::kEvent).size(), 1u);
  EXPECT_EQ(Sent(M::kEvent)[0].event().sequence(), 4);
}

TEST_F(AgentCore, GapAsksAgain) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Reported("A", 1, 1);
  Reported("A", 1, 3);
  EXPECT_TRUE(Sent(M::kEvent).empty());
  ASSERT_EQ(All<AttachShim>().size(), 1u);
  EXPECT_EQ(All<AttachShim>()[0].after_sequence, 1);
}

TEST_F(AgentCore, HeartbeatsOfRanksPassWithoutACursor) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Reported("A", 1, 0);
  EXPECT_EQ(Sent(M::kEvent).size(), 1u);
  EXPECT_EQ(RunOf("A", 1).relayed, 0);
}

TEST_F(AgentCore, RestoredRunsAreReportedOnlyWhenTheirStateIsKnown) {
  Make({MakeStart("A", 3, {"", ""}), MakeStart("B", 1, {""})}, 2);
  ASSERT_EQ(All<AttachShim>().size(), 2u);
  EXPECT_LT(All<AttachShim>()[0].after_sequence, 0);
  Do(StreamOpened{});
  EXPECT_TRUE(actions_.empty());
  Attached("A", 3, v1::INTENT_YIELD);
  EXPECT_TRUE(actions_.empty());
  v1::ShimState dead;
  dead.add_ranks()->set_exit_code(7);
  Do(ShimAttached{{"B", 1}, RunOf("B", 1).epoch, dead});
  const auto reports = Sent(M::kReport);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].report().seen_term(), 2);
  ASSERT_EQ(reports[0].report().running_size(), 2);
  EXPECT_EQ(reports[0].report().running(0).generation(), 3);
  EXPECT_EQ(reports[0].report().running(0).intent(), v1::INTENT_YIELD);
  EXPECT_EQ(reports[0].report().running(0).uid(), "uid of A");
  EXPECT_EQ(reports[0].report().running(1).ranks(0).exit_code(), 7);
}

TEST_F(AgentCore, RunThatEndedUnseenIsReportedAsEnded) {
  Make({MakeStart("A", 1, {""})});
  Do(StreamOpened{});
  v1::ShimState ended;
  ended.set_all_exited(true);
  Do(ShimAttached{{"A", 1}, RunOf("A", 1).epoch, ended});
  ASSERT_EQ(Sent(M::kReport).size(), 1u);
  EXPECT_TRUE(Sent(M::kReport)[0].report().running(0).ended());
}

TEST_F(AgentCore, RevokeStopsUpToTheGenerationAndOnlyThen) {
  Welcome(1, {MakeStart("A", 2, {""})});
  Attached("A", 2);
  Revoke("A", 1);
  EXPECT_TRUE(All<SendToShim>().empty());
  Revoke("A", 2, v1::INTENT_UNSPECIFIED, 1234);
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.stop().grace_ms(), 1234);
}

TEST_F(AgentCore, RevokeWithIntentChecksPointsFirstAndKillsAfterTheGrace) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Revoke("A", 1, v1::INTENT_CANCEL, 2000);
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.control().intent(), v1::INTENT_CANCEL);
  now_ += milliseconds(1999);
  Do(Tick{});
  EXPECT_TRUE(All<SendToShim>().empty());
  now_ += milliseconds(1);
  Do(Tick{});
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_TRUE(All<SendToShim>()[0].request.has_stop());
  EXPECT_EQ(All<SendToShim>()[0].request.stop().grace_ms(), 0);
}

TEST_F(AgentCore, RevokeBeforeTheShimAnswersIsNotLost) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Revoke("A", 1, v1::INTENT_UNSPECIFIED, 100);
  EXPECT_TRUE(All<SendToShim>().empty());
  Attached("A", 1);
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.stop().grace_ms(), 100);
}

TEST_F(AgentCore, IntentOnlyRises) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Revoke("A", 1, v1::INTENT_CANCEL, 1000);
  Revoke("A", 1, v1::INTENT_YIELD, 1000);
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.control().intent(), v1::INTENT_CANCEL);
}

TEST_F(AgentCore, RevokeOfAnUnknownJobSaysThatNothingIsHere) {
  Welcome();
  Revoke("A", 4);
  ASSERT_EQ(Sent(M::kEnded).size(), 1u);
  EXPECT_EQ(Sent(M::kEnded)[0].ended().generation(), 4);
}

TEST_F(AgentCore, ForgetWaitsForTheEnd) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Revoke("A", 1, v1::INTENT_UNSPECIFIED, 100, /*forget=*/true);
  EXPECT_TRUE(All<ForgetRun>().empty());
  AllExited("A", 1, 1);
  EXPECT_EQ(Sent(M::kEnded).size(), 1u);
  EXPECT_EQ(All<ForgetRun>().size(), 1u);
  EXPECT_TRUE(state_.runs.empty());
}

TEST_F(AgentCore, NextGenerationWaitsForTheSlotsOfItsPredecessor) {
  Welcome(1, {MakeStart("A", 1, {"", ""})});
  Attached("A", 1);
  Start(MakeStart("A", 2, {"", ""}));
  EXPECT_TRUE(All<LaunchRun>().empty());
  EXPECT_TRUE(Sent(M::kStartFailed).empty());
  Revoke("A", 1);
  AllExited("A", 1, 1);
  ASSERT_EQ(All<LaunchRun>().size(), 1u);
  EXPECT_EQ(All<LaunchRun>()[0].start.assignment().generation(), 2);
  Start(MakeStart("A", 1, {""}));  // known already: no second start
  EXPECT_TRUE(All<LaunchRun>().empty());
}

TEST_F(AgentCore, WaitingRunThatIsRevokedNeverStarts) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Start(MakeStart("A", 2, {""}));
  Revoke("A", 2);
  EXPECT_EQ(Sent(M::kEnded).size(), 1u);
  AllExited("A", 1, 1);
  EXPECT_TRUE(All<LaunchRun>().empty());
  EXPECT_FALSE(state_.runs.contains({"A", 2}));
}

TEST_F(AgentCore, SlotOfAnotherJobRefusesTheStart) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Start(MakeStart("B", 1, {""}));
  ASSERT_EQ(Sent(M::kStartFailed).size(), 1u);
  EXPECT_NE(Sent(M::kStartFailed)[0].start_failed().message().find("slot cpu0 of node here is held by job A"),
            std::string::npos);
  EXPECT_FALSE(state_.runs.contains({"B", 1}));
}

TEST_F(AgentCore, OlderGenerationOfAKnownJobIsRefused) {
  Welcome(1, {MakeStart("A", 5, {""})});
  Start(MakeStart("A", 4, {""}));
  EXPECT_EQ(Sent(M::kStartFailed).size(), 1u);
}

TEST_F(AgentCore, JobIdThatIsNoFolderNameIsRefused) {
  Welcome();
  Start(MakeStart("../A", 1, {""}));
  EXPECT_EQ(Sent(M::kStartFailed).size(), 1u);
  EXPECT_TRUE(All<LaunchRun>().empty());
}

TEST_F(AgentCore, FailedLaunchIsToldAndForgotten) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Do(LaunchFailed{{"A", 1}, "slot cpu0 is in use on this host"});
  ASSERT_EQ(Sent(M::kStartFailed).size(), 1u);
  EXPECT_EQ(All<ForgetRun>().size(), 1u);
  EXPECT_TRUE(state_.runs.empty());
}

TEST_F(AgentCore, ClosedShimIsAttachedAgainAfterAPause) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Reported("A", 1, 1);
  Do(ShimClosed{{"A", 1}, RunOf("A", 1).epoch});
  EXPECT_TRUE(actions_.empty());
  now_ += milliseconds(100);
  Do(Tick{});
  ASSERT_EQ(All<AttachShim>().size(), 1u);
  EXPECT_EQ(All<AttachShim>()[0].after_sequence, 1);
  AllExited("A", 1, 2);
  Do(ShimClosed{{"A", 1}, RunOf("A", 1).epoch});
  now_ += milliseconds(100);
  Do(Tick{});
  EXPECT_TRUE(All<AttachShim>().empty());
}

// The run ends between the report and the welcome, and its shim leaves as it is attached to again.
TEST_F(AgentCore, EndThatWasSeenTooEarlyIsToldAfterTheWelcome) {
  Make({MakeStart("A", 1, {""})});
  Attached("A", 1);
  Do(StreamOpened{});
  EXPECT_EQ(Sent(M::kReport).size(), 1u);
  AllExited("A", 1, 2);
  EXPECT_TRUE(actions_.empty());
  v1::ConnectResponse welcome;
  welcome.mutable_welcome()->set_term(1);
  Receive(welcome);
  ASSERT_EQ(All<AttachShim>().size(), 1u);
  Do(ShimClosed{{"A", 1}, RunOf("A", 1).epoch});
  now_ += milliseconds(100);
  Do(Tick{});
  ASSERT_EQ(All<AttachShim>().size(), 1u);
  EXPECT_EQ(All<AttachShim>()[0].after_sequence, 0);
  Reported("A", 1, 1);
  AllExited("A", 1, 2);
  EXPECT_EQ(Sent(M::kEnded).size(), 1u);
  Do(ShimClosed{{"A", 1}, RunOf("A", 1).epoch});
  now_ += milliseconds(100);
  Do(Tick{});
  EXPECT_TRUE(All<AttachShim>().empty());
}

TEST_F(AgentCore, LeavingEndsRanksFirstThenExits) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  Do(LeaveNode{v1::INTENT_YIELD});
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.control().intent(), v1::INTENT_YIELD);
  EXPECT_TRUE(All<Exit>().empty());
  Start(MakeStart("B", 1, {"", "", ""}));
  EXPECT_EQ(Sent(M::kStartFailed).size(), 1u);
  Do(LeaveNode{v1::INTENT_YIELD});  // asked a second time: at once
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.stop().grace_ms(), 0);
  AllExited("A", 1, 1);
  EXPECT_EQ(Sent(M::kEnded).size(), 1u);
  EXPECT_EQ(All<Exit>().size(), 1u);
}

TEST_F(AgentCore, PeersCheckpointsAndLogsAreHandedOn) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Attached("A", 1);
  v1::ConnectResponse message;
  message.mutable_peers()->set_job_id("A");
  message.mutable_peers()->set_generation(1);
  message.mutable_peers()->mutable_peers()->add_blobs("x");
  Receive(message);
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_EQ(All<SendToShim>()[0].request.peers().blobs(0), "x");
  message.mutable_checkpoint()->set_job_id("A");
  message.mutable_checkpoint()->set_generation(1);
  Receive(message);
  ASSERT_EQ(All<SendToShim>().size(), 1u);
  EXPECT_TRUE(All<SendToShim>()[0].request.control().checkpoint_now());
  message.mutable_read_log()->set_request_id("r");
  Receive(message);
  ASSERT_EQ(All<ReadRankLog>().size(), 1u);
}

TEST_F(AgentCore, LockedElsewhereIsSaidOnlyOfSlotsThatAreNotOurs) {
  Welcome(1, {MakeStart("A", 1, {""})});
  Do(SlotsProbed{{"cpu0", "cpu2"}});
  const auto slots = CurrentSlots(state_);
  EXPECT_FALSE(slots[0].locked_elsewhere());
  EXPECT_EQ(slots[0].job_id(), "A");
  EXPECT_TRUE(slots[2].locked_elsewhere());
}

}  // namespace
}  // namespace tutti::worker
