// Ranks as real processes: one is killed or stopped in the middle of a stream of all-reduces; the others must leave in
// time, with the right code, naming it.
#include "tests/engine/comm/process_test.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/check.h"
#include "base/framing.h"
#include "base/process.h"
#include "engine/comm/gloo.h"
#include "engine/comm/shm.h"
#include "tests/engine/comm/world.h"

namespace tutti {
namespace {

constexpr int kSocket = 3, kMemory = 4;
constexpr int kExitBase = 40;  // a rank exits with this + the code of its error

StatusOr<std::unique_ptr<Communicator>> Connect(const std::string& backend, Rank rank, int32_t world, Millis timeout) {
  if (backend == "shm") {
    ShmOptions options;
    options.fd = kMemory;
    options.rank = rank;
    options.world_size = world;
    options.timeout = timeout;
    return AttachShm(options);
  }
  TUTTI_ASSIGN_OR_RETURN(
      auto endpoint,
      GlooEndpoint::Create({.address = "127.0.0.1", .rank = rank, .world_size = world, .timeout = timeout}));
  TUTTI_RETURN_IF_ERROR(SendFrame(kSocket, endpoint->blob()));
  std::vector<std::string> blobs;
  for (int32_t r = 0; r < world; ++r) {
    TUTTI_ASSIGN_OR_RETURN(auto blob, ReceiveFrame(kSocket));
    blobs.push_back(blob.value_or(""));
  }
  return endpoint->Connect(blobs, Millis(20'000));
}

class RankProcesses {
 public:
  RankProcesses(const std::string& backend, int32_t world, Millis timeout) : pids_(world, -1) {
    const UniqueFd memory(MakeShmRegion(world, 0));
    for (int32_t r = 0; r < world; ++r) {
      int ends[2];
      TUTTI_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      sockets_.emplace_back(ends[0]);
      const UniqueFd child(ends[1]);
      SpawnOptions options;
      options.argv = {"/proc/self/exe",  "--rank-process",      backend,
                      std::to_string(r), std::to_string(world), std::to_string(timeout.count())};
      options.environment = CurrentEnvironment();
      options.descriptors = {{0, 0}, {1, 1}, {2, 2}, {kSocket, child.get()}, {kMemory, memory.get()}};
      const auto pid = Spawn(options);
      TUTTI_CHECK(pid.ok(), "{}", pid.status().ToString());
      pids_[r] = *pid;
    }
    if (backend == "gloo") TradeBlobs();
    for (int32_t r = 0; r < world; ++r) EXPECT_EQ(Receive(r), "running");
  }
  ~RankProcesses() {
    for (int32_t r = 0; r < static_cast<int32_t>(pids_.size()); ++r) {
      if (pids_[r] > 0) Signal(r, SIGKILL), Wait(r);
    }
  }
  RankProcesses(const RankProcesses&) = delete;

  void Signal(int32_t rank, int signal) { TUTTI_CHECK(::kill(pids_[rank], signal) == 0); }
  ExitStatus Wait(int32_t rank) {
    int status = 0;
    TUTTI_CHECK(::waitpid(pids_[rank], &status, 0) == pids_[rank]);
    pids_[rank] = -1;
    return ExitStatusFromWait(status);
  }
  // Next frame of a rank; "" when it is silent for 20 s.
  std::string Receive(int32_t rank) {
    pollfd poll_fd{sockets_[rank].get(), POLLIN, 0};
    if (::poll(&poll_fd, 1, 20'000) != 1) return "";
    const auto frame = ReceiveFrame(sockets_[rank].get());
    return frame.ok() ? frame->value_or("") : frame.status().ToString();
  }

 private:
  void TradeBlobs() {
    std::vector<std::string> blobs;
    for (int32_t r = 0; r < static_cast<int32_t>(pids_.size()); ++r) blobs.push_back(Receive(r));
    for (const UniqueFd& socket : sockets_) {
      for (const std::string& blob : blobs) TUTTI_CHECK_OK(SendFrame(socket.get(), blob));
    }
  }
  std::vector<UniqueFd> sockets_;
  std::vector<pid_t> pids_;
};

class RankProcess : public ::testing::TestWithParam<std::string> {
 protected:
  // The survivors of a fault in rank 1 of 3 end with `code`, blame rank 1, and do so within `bound`.
  void Expect(RankProcesses& ranks, absl::StatusCode code, Nanos since, Millis bound) {
    for (const int32_t r : {0, 2}) {
      EXPECT_EQ(ranks.Receive(r), fmt::format("{} blames 1", static_cast<int>(code))) << "rank " << r;
      EXPECT_LT(SystemClock().Monotonic() - since, bound);
      EXPECT_EQ(ranks.Wait(r).code, kExitBase + static_cast<int>(code));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, RankProcess, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_P(RankProcess, KilledPeerEndsTheOthersFast) {
  RankProcesses ranks(GetParam(), 3, Millis(60'000));
  const Nanos begin = SystemClock().Monotonic();
  ranks.Signal(1, SIGKILL);
  Expect(ranks, absl::StatusCode::kUnavailable, begin, Millis(3'000));
}

TEST_P(RankProcess, StoppedPeerEndsTheOthersAfterTheTimeout) {
  RankProcesses ranks(GetParam(), 3, Millis(1'000));
  const Nanos begin = SystemClock().Monotonic();
  ranks.Signal(1, SIGSTOP);
  Expect(ranks, absl::StatusCode::kDeadlineExceeded, begin, Millis(6'000));
}

}  // namespace

int RunRankProcess(int argc, char** argv) {
  TUTTI_CHECK(argc == 6);
  auto comm = Connect(argv[2], Rank(std::stoi(argv[3])), std::stoi(argv[4]), Millis(std::stoi(argv[5])));
  TUTTI_CHECK(comm.ok(), "rank {}: {}", argv[3], comm.status().ToString());
  std::vector<float> data(100'000, 1.0f);
  Status status = (*comm)->Barrier();
  TUTTI_CHECK_OK(status);
  TUTTI_CHECK_OK(SendFrame(kSocket, "running"));
  while (status.ok()) {
    std::fill(data.begin(), data.end(), 1.0f);
    status = (*comm)->AllReduce(data.data(), ElementCount(data.size()), CommType::kF32, ReduceOp::kSum);
    const float expected = static_cast<float>((*comm)->world_size());
    TUTTI_CHECK(!status.ok() || data == std::vector<float>(data.size(), expected), "wrong sum");
  }
  const std::string report =
      fmt::format("{} blames {}", static_cast<int>(status.code()), BlamedRank(status).value_or(Rank(-1)).value());
  TUTTI_CHECK_OK(SendFrame(kSocket, report));
  return kExitBase + static_cast<int>(status.code());
}

}  // namespace tutti
