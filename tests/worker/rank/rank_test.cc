// tutti-rank as a process: what it says on its socket, and what it ends with.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/framing.h"
#include "engine/comm/shm_region.h"
#include "tests/engine/train/training.h"
#include "worker/rank/session.h"

namespace tutti::testing {
namespace {

constexpr const char* kRankProgram = TUTTI_BIN_DIR "/tutti-rank";

// One tutti-rank and our end of its socket.
class RankProcess {
 public:
  RankProcess(const v1::RankConfig& config, int shared_memory) {
    int fds[2];
    TUTTI_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    socket_.Reset(fds[0]);
    const UniqueFd theirs(fds[1]);
    SpawnOptions options;
    options.argv = {kRankProgram};
    options.environment = CurrentEnvironment();
    options.descriptors = {{0, 0}, {1, 2}, {2, 2}, {kShimSocket, theirs.get()}};
    if (shared_memory >= 0) options.descriptors[kSharedMemory] = shared_memory;
    pid_ = Spawn(options).value();
    TUTTI_CHECK_OK(SendFrame(socket_.get(), config.SerializeAsString()));
  }
  ~RankProcess() {
    if (pid_ > 0 && ::kill(pid_, SIGKILL) == 0) Wait();
  }

  // The next event that is no heartbeat; nullopt at the end of the stream.
  std::optional<v1::RankEvent> Next() {
    for (;;) {
      const auto frame = ReceiveFrame(socket_.get());
      if (!frame.ok() || !*frame) return std::nullopt;
      v1::RankEvent event;
      TUTTI_CHECK(event.ParseFromString(**frame));
      if (!event.has_heartbeat()) return event;
    }
  }
  // Reads until `wanted` says yes.
  std::optional<v1::RankEvent> Until(const std::function<bool(const v1::RankEvent&)>& wanted) {
    for (;;) {
      std::optional<v1::RankEvent> event = Next();
      if (!event || wanted(*event)) return event;
    }
  }
  void Send(const v1::RankCommand& command) { TUTTI_CHECK_OK(SendFrame(socket_.get(), command.SerializeAsString())); }
  void Signal(int signal) { ::kill(pid_, signal); }
  void HangUp() { socket_.Reset(); }
  ExitStatus Wait() {
    int status = 0;
    TUTTI_CHECK(::waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    return ExitStatusFromWait(status);
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

class RankProcessTest : public ::testing::Test {
 protected:
  RankProcessTest() : directory_(TempDirectory::Create("tutti-rank-").value()) {
    FillFormula(&data_, 64, 8, 4);
    spec_ = SmallJob(data_, "flatten dense:16 relu dense:4", JoinPath(directory_.path(), "run"));
    spec_.mutable_numerics()->set_shards(2);
    spec_.mutable_batch()->set_micro(8);
    spec_.mutable_restart()->set_collective_timeout_ms(20'000);
  }

  std::vector<std::unique_ptr<RankProcess>> StartWorld(int ranks) {
    const int64_t bytes = ShmRegionBytes(ranks, 0);
    memory_.Reset(::memfd_create("ranks", MFD_CLOEXEC));
    TUTTI_CHECK(::ftruncate(memory_.get(), bytes) == 0);
    std::vector<std::unique_ptr<RankProcess>> world;
    for (int rank = 0; rank < ranks; ++rank) {
      v1::RankConfig config = MakeConfig(spec_, {.ranks = ranks}, rank);
      config.set_comm(v1::COMM_BACKEND_SHM);
      config.set_shared_memory_bytes(bytes);
      world.push_back(std::make_unique<RankProcess>(config, memory_.get()));
    }
    return world;
  }

  IdxFolder data_;
  TempDirectory directory_;
  v1::JobSpec spec_;
  UniqueFd memory_;
};

TEST_F(RankProcessTest, TwoRanksTrainOverSharedMemoryAndEndWell) {
  auto world = StartWorld(2);
  std::string digests[2];
  for (int rank = 0; rank < 2; ++rank) {
    const auto started = world[rank]->Until([](const v1::RankEvent& e) { return e.has_started(); });
    ASSERT_TRUE(started.has_value());
    EXPECT_EQ(started->rank(), rank);
    EXPECT_EQ(started->generation(), 1);
    digests[rank] = started->started().weights_digest();
  }
  EXPECT_EQ(digests[0], digests[1]);  // NUM-06
  int64_t steps = 0;
  const auto result = world[0]->Until([&](const v1::RankEvent& e) {
    steps += e.has_step() ? 1 : 0;
    return e.has_result();
  });
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(steps, 5);
  EXPECT_EQ(result->result().reason(), v1::FINISH_REASON_COMPLETED);
  EXPECT_EQ(result->result().last_step(), 5);
  EXPECT_EQ(result->result().measured_arena_bytes(), result->result().plan().memory().arena_bytes());
  const auto other = world[1]->Until([](const v1::RankEvent& e) { return e.has_step() || e.has_result(); });
  ASSERT_TRUE(other.has_value());
  EXPECT_TRUE(other->has_result());  // steps are reported by rank 0 alone
  for (auto& rank : world) EXPECT_EQ(rank->Wait().code, 0);
}

// The same job over TCP: blobs travel through the shims, and the bits are those of shared memory.
TEST_F(RankProcessTest, RanksOfSeveralNodesMeetThroughTheirShims) {
  std::string weights[2];
  for (const bool tcp : {false, true}) {
    spec_.mutable_checkpoint()->set_directory(JoinPath(directory_.path(), tcp ? "tcp" : "shm"));
    std::vector<std::unique_ptr<RankProcess>> world;
    if (!tcp) world = StartWorld(2);
    for (int rank = 0; tcp && rank < 2; ++rank) {
      v1::RankConfig config = MakeConfig(spec_, {.ranks = 2}, rank);
      config.set_comm(v1::COMM_BACKEND_GLOO);
      config.set_advertise_address("127.0.0.1");
      world.push_back(std::make_unique<RankProcess>(config, -1));
    }
    v1::RankCommand command;
    for (auto& rank : world) {
      if (!tcp) continue;
      const auto ready = rank->Until([](const v1::RankEvent& e) { return e.has_ready(); });
      ASSERT_TRUE(ready.has_value());
      command.mutable_peers()->add_blobs(ready->ready().peer_blob());
    }
    for (auto& rank : world) {
      if (tcp) rank->Send(command);
    }
    const auto result = world[0]->Until([](const v1::RankEvent& e) { return e.has_result(); });
    ASSERT_TRUE(result.has_value());
    weights[tcp ? 1 : 0] = result->result().weights_sha256();
    for (auto& rank : world) EXPECT_EQ(rank->Wait().code, 0);
  }
  EXPECT_EQ(weights[0], weights[1]);
}

// RDZ-03: one limit for the whole start. A rank that comes within it is met; the world then trains.
TEST_F(RankProcessTest, ARankWaitsForOneThatStartsLater) {
  spec_.mutable_restart()->set_start_timeout_ms(60'000);
  std::vector<std::unique_ptr<RankProcess>> world;
  v1::RankCommand command;
  for (int rank = 0; rank < 2; ++rank) {  // rank 1 does not exist before rank 0 waits
    v1::RankConfig config = MakeConfig(spec_, {.ranks = 2}, rank);
    config.set_comm(v1::COMM_BACKEND_GLOO);
    config.set_advertise_address("127.0.0.1");
    world.push_back(std::make_unique<RankProcess>(config, -1));
    const auto ready = world[rank]->Until([](const v1::RankEvent& e) { return e.has_ready(); });
    ASSERT_TRUE(ready.has_value());
    command.mutable_peers()->add_blobs(ready->ready().peer_blob());
  }
  for (auto& rank : world) rank->Send(command);
  EXPECT_TRUE(world[0]->Until([](const v1::RankEvent& e) { return e.has_result(); }).has_value());
  for (auto& rank : world) EXPECT_EQ(rank->Wait().code, 0);
}

// RDZ-03: one that never comes ends the wait at the limit, within 10 %; both backends say what they waited for.
TEST_F(RankProcessTest, ARankGivesUpAtTheStartTimeout) {
  spec_.mutable_restart()->set_start_timeout_ms(2'000);
  v1::RankConfig config = MakeConfig(spec_, {.ranks = 2}, 0);
  config.set_comm(v1::COMM_BACKEND_GLOO);
  config.set_advertise_address("127.0.0.1");
  RankProcess alone(config, -1);
  const auto ready = alone.Until([](const v1::RankEvent& e) { return e.has_ready(); });
  const auto failure = alone.Until([](const v1::RankEvent& e) { return e.has_failure(); });
  ASSERT_TRUE(ready.has_value() && failure.has_value());
  EXPECT_NEAR(static_cast<double>(failure->unix_ms() - ready->unix_ms()), 2'000, 200);
  EXPECT_TRUE(failure->failure().victim());
  EXPECT_NE(failure->failure().message().find("not all of 2 ranks were ready within 2000 ms"), std::string::npos)
      << failure->failure().message();
  EXPECT_EQ(alone.Wait().code, 75);

  const int64_t bytes = ShmRegionBytes(2, 0);
  memory_.Reset(::memfd_create("ranks", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory_.get(), bytes), 0);
  config.set_comm(v1::COMM_BACKEND_SHM);
  config.set_shared_memory_bytes(bytes);
  RankProcess waiting(config, memory_.get());
  const auto gave_up = waiting.Until([](const v1::RankEvent& e) { return e.has_failure(); });
  ASSERT_TRUE(gave_up.has_value());
  EXPECT_TRUE(gave_up->failure().victim());
  EXPECT_EQ(gave_up->failure().blamed_rank(), 1);
  EXPECT_NE(gave_up->failure().message().find("expected 2 ranks, arrived 1"), std::string::npos)
      << gave_up->failure().message();
  EXPECT_EQ(waiting.Wait().code, 75);
}

TEST_F(RankProcessTest, SurvivorOfAKilledPeerIsAVictimThatNamesIt) {
  spec_.mutable_train()->set_steps(1'000'000);
  auto world = StartWorld(2);
  ASSERT_TRUE(world[0]->Until([](const v1::RankEvent& e) { return e.has_step() && e.step().step() >= 3; }));
  world[1]->Signal(SIGKILL);
  const auto failure = world[0]->Until([](const v1::RankEvent& e) { return e.has_failure(); });
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(failure->failure().victim());
  EXPECT_EQ(failure->failure().blamed_rank(), 1) << failure->failure().message();
  EXPECT_TRUE(failure->failure().retryable());
  EXPECT_EQ(world[0]->Wait().code, 75);
  EXPECT_EQ(world[1]->Wait().signal, SIGKILL);
}

TEST_F(RankProcessTest, SigtermOfOneRankMakesAllCheckpointAndLeave) {
  spec_.mutable_train()->set_steps(1'000'000);
  auto world = StartWorld(2);
  ASSERT_TRUE(world[0]->Until([](const v1::RankEvent& e) { return e.has_step(); }));
  world[1]->Signal(SIGTERM);
  const auto result = world[0]->Until([](const v1::RankEvent& e) { return e.has_result(); });
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->result().reason(), v1::FINISH_REASON_YIELDED);
  EXPECT_TRUE(FileExists(JoinPath(result->result().final_checkpoint(), "manifest.json")));
  for (auto& rank : world) EXPECT_EQ(rank->Wait().code, 0);
}

TEST_F(RankProcessTest, CancelCommandLeavesForGood) {
  spec_.mutable_train()->set_steps(1'000'000);
  auto world = StartWorld(1);
  ASSERT_TRUE(world[0]->Until([](const v1::RankEvent& e) { return e.has_step(); }));
  v1::RankCommand command;
  command.mutable_control()->set_intent(v1::INTENT_CANCEL);
  world[0]->Send(command);
  const auto result = world[0]->Until([](const v1::RankEvent& e) { return e.has_result(); });
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->result().reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(world[0]->Wait().code, 0);
}

TEST_F(RankProcessTest, EndOfTheShimEndsTheRank) {
  spec_.mutable_train()->set_steps(1'000'000);
  auto world = StartWorld(1);
  ASSERT_TRUE(world[0]->Until([](const v1::RankEvent& e) { return e.has_step(); }));
  world[0]->HangUp();
  EXPECT_EQ(world[0]->Wait().code, 1);
}

// DAT-02, CKP-14: what no retry can mend ends with code 2 and the reason.
TEST_F(RankProcessTest, WrongJobsEndWithCodeTwo) {
  spec_.mutable_data()->set_classes(3);  // labels go up to 3
  {
    auto world = StartWorld(1);
    const auto failure = world[0]->Until([](const v1::RankEvent& e) { return e.has_failure(); });
    ASSERT_TRUE(failure.has_value());
    EXPECT_FALSE(failure->failure().victim());
    EXPECT_FALSE(failure->failure().retryable());
    EXPECT_EQ(world[0]->Wait().code, 2);
  }
  spec_.mutable_data()->set_classes(4);
  spec_.mutable_checkpoint()->set_resume(v1::RESUME_MODE_PATH);
  spec_.mutable_checkpoint()->set_resume_from("/no/such/dir");
  auto world = StartWorld(1);
  const auto failure = world[0]->Until([](const v1::RankEvent& e) { return e.has_failure(); });
  ASSERT_TRUE(failure.has_value());
  EXPECT_NE(failure->failure().message().find("/no/such/dir"), std::string::npos);
  EXPECT_EQ(world[0]->Wait().code, 2);
}

TEST_F(RankProcessTest, DryPlanIsExactForSpecAndConfig) {
  for (const bool whole_config : {false, true}) {
    const std::string path = JoinPath(directory_.path(), "job.pb");
    const v1::RankConfig config = MakeConfig(spec_, {.ranks = 1}, 0);
    TUTTI_CHECK_OK(
        WriteFileAtomic(path, whole_config ? config.SerializeAsString() : config.spec().SerializeAsString()));
    const auto json = DryRun(path);
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_NE(json->find("\"exactBytes\":true"), std::string::npos) << *json;
  }
  EXPECT_EQ(DryRun(JoinPath(directory_.path(), "absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST(BlamedRank, IsTheFirstRankThatAMessageNames) {
  EXPECT_EQ(BlamedRank("all-reduce #31: waited for rank 3, rank 4"), 3);
  EXPECT_EQ(BlamedRank("frank discussion of rank order, then rank 12 ended"), 12);
  EXPECT_EQ(BlamedRank("connection lost"), -1);
}

}  // namespace
}  // namespace tutti::testing
