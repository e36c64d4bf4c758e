// How calls end that cannot succeed: disagreement, abort, no progress, a rank that left.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/comm/gloo.h"
#include "engine/comm/shm.h"
#include "engine/comm/shm_region.h"
#include "tests/engine/comm/world.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CallsThatFail : public ::testing::TestWithParam<WorldParam> {
 protected:
  Comms Make(Millis timeout = Millis(60'000)) {
    return MakeWorld(std::get<0>(GetParam()), std::get<1>(GetParam()), timeout);
  }
  int32_t world() const { return std::get<1>(GetParam()); }
  int32_t last() const { return world() - 1; }
};

INSTANTIATE_TEST_SUITE_P(All, CallsThatFail,
                         ::testing::Combine(::testing::Values(Backend::kLocal, Backend::kShm, Backend::kGloo),
                                            ::testing::Values(2, 4)),
                         WorldName);

// Runs fn on all ranks; every rank must fail with `code` and a message with all `words`, and again at once in the next
// call.
void ExpectAllFail(Comms& comms, absl::StatusCode code, std::vector<std::string> words,
                   const std::function<Status(Communicator&)>& fn) {
  const std::vector<Status> first = RunRanks(comms, fn);
  const std::vector<Status> second = RunRanks(comms, [](Communicator& c) { return c.Barrier(); });
  for (const auto& statuses : {first, second}) {
    for (size_t r = 0; r < statuses.size(); ++r) {
      EXPECT_EQ(statuses[r].code(), code) << "rank " << r << ": " << statuses[r];
      for (const std::string& word : words) EXPECT_THAT(Message(statuses[r]), HasSubstr(word)) << "rank " << r;
    }
  }
}

TEST_P(CallsThatFail, DifferentLengthsNameBothAndDeliverNothing) {  // NUM-12
  for (const int64_t n : {10, 1'000'000}) {
    Comms comms = Make();
    std::atomic<bool> delivered = false;
    ExpectAllFail(
        comms, absl::StatusCode::kInvalidArgument,
        {"rank 0", fmt::format("rank {}", last()), fmt::format("{} f32", n), fmt::format("{} f32", n + 2), "#2"},
        [&](Communicator& c) -> Status {
          TUTTI_RETURN_IF_ERROR(c.Barrier());
          std::vector<float> data(c.rank().value() == last() ? n + 2 : n, 1.0f);
          const Status status = c.AllReduce(data.data(), ElementCount(data.size()), CommType::kF32, ReduceOp::kSum);
          if (std::any_of(data.begin(), data.end(), [](float x) { return x != 1.0f; })) delivered = true;
          return status;
        });
    EXPECT_FALSE(delivered);
  }
}

TEST_P(CallsThatFail, DifferentOperationsAreNamed) {
  Comms comms = Make();
  ExpectAllFail(comms, absl::StatusCode::kInvalidArgument, {"barrier", "all-reduce (max) of 1 i64", "#1"},
                [](Communicator& c) {
                  int64_t value = 0;
                  return c.rank().value() == 0 ? c.Barrier()
                                               : c.AllReduce(&value, ElementCount(1), CommType::kI64, ReduceOp::kMax);
                });
}

TEST_P(CallsThatFail, AllToAllSizesThatDoNotMatchPairwise) {
  Comms comms = Make();
  ExpectAllFail(comms, absl::StatusCode::kInvalidArgument, {"rank 0 sends 8 bytes to rank 1, which expects 4"},
                [this](Communicator& c) {
                  std::vector<std::byte> bytes(8);
                  std::vector<std::span<const std::byte>> send(world());
                  std::vector<std::span<std::byte>> receive(world());
                  if (c.rank().value() == 0) send[1] = bytes;
                  if (c.rank().value() == 1) receive[0] = std::span(bytes).first(4);
                  return c.AllToAll(send, receive);
                });
}

TEST_P(CallsThatFail, SendWithoutReceiver) {
  Comms comms = Make();
  ExpectAllFail(comms, absl::StatusCode::kInvalidArgument, {"rank 0 sends 3 bytes to rank 1, which expects 0"},
                [](Communicator& c) {
                  const std::vector<std::byte> bytes(c.rank().value() == 0 ? 3 : 0);
                  return c.SendRecv(bytes, Rank(1), {}, Rank(0));
                });
}

TEST_P(CallsThatFail, SequenceHashNamesBothSides) {
  Comms comms = Make();
  ExpectOk(comms, [](Communicator& c) { return CompareSequenceHash(c, 77, "program A"); });
  const std::vector<Status> statuses = RunRanks(comms, [this](Communicator& c) {
    const bool other = c.rank().value() == last();
    return CompareSequenceHash(c, other ? 78 : 77, other ? "program B" : "program A");
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0 plans 'program A'"),
                                       HasSubstr(fmt::format("rank {} plans 'program B'", last()))));
  }
}

// The last rank never calls; an abort from another thread ends the waiting of all others at once.
TEST_P(CallsThatFail, AbortEndsTheCallEverywhere) {
  Comms comms = Make();
  ExpectOk(comms, [](Communicator& c) { return c.Barrier(); });
  std::atomic<int32_t> waiting = 0;
  const Nanos begin = SystemClock().Monotonic();
  ExpectAllFail(comms, absl::StatusCode::kAborted, {"rank 0 aborted: resize"}, [&](Communicator& c) {
    if (c.rank().value() == last()) {
      while (waiting < last()) std::this_thread::yield();
      comms[0]->Abort("resize");
    } else {
      ++waiting;
    }
    std::vector<float> data(300'000);
    return c.AllReduce(data.data(), ElementCount(data.size()), CommType::kF32, ReduceOp::kSum);
  });
  EXPECT_LT(SystemClock().Monotonic() - begin, Millis(10'000));
}

TEST_P(CallsThatFail, RankThatDoesNotComeIsNamedAfterTheTimeout) {
  Comms comms = Make(Millis(200));
  const Nanos begin = SystemClock().Monotonic();
  const std::vector<Status> statuses =
      RunRanks(comms, [this](Communicator& c) { return c.rank().value() == last() ? OkStatus() : c.Barrier(); });
  EXPECT_GE(SystemClock().Monotonic() - begin, Millis(200));
  EXPECT_LT(SystemClock().Monotonic() - begin, Millis(10'000));
  for (int32_t r = 0; r < last(); ++r) {
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kDeadlineExceeded) << statuses[r];
    EXPECT_THAT(Message(statuses[r]), AllOf(HasSubstr("barrier #1"), HasSubstr(fmt::format("rank {}", last()))));
    EXPECT_EQ(BlamedRank(statuses[r]), Rank(last()));
  }
}

TEST_P(CallsThatFail, RankThatLeavesIsNamedAtOnce) {
  Comms comms = Make();
  ExpectOk(comms, [](Communicator& c) { return c.Barrier(); });
  const std::vector<Status> statuses = RunRanks(comms, [&](Communicator& c) {
    if (c.rank().value() != last()) return c.Barrier();
    comms[last()].reset();
    return OkStatus();
  });
  for (int32_t r = 0; r < last(); ++r) {
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
    EXPECT_EQ(BlamedRank(statuses[r]), Rank(last())) << statuses[r];
  }
}

TEST(AttachShm, RefusesWrongGenerationSizeAndTakenRank) {
  const UniqueFd region(MakeShmRegion(1, 0));
  ShmOptions options;
  options.fd = region.get();
  options.generation = Generation(7);
  const auto comm = AttachShm(options);
  ASSERT_TRUE(comm.ok()) << comm.status();
  EXPECT_THAT(Message(AttachShm(options).status()), HasSubstr("attached already"));
  options.generation = Generation(8);
  EXPECT_EQ(AttachShm(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.window_bytes = 1 << 20;
  EXPECT_EQ(AttachShm(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.fd = -1;
  EXPECT_FALSE(AttachShm(options).ok());
}

TEST(AttachShm, NamesTheRanksThatDoNotCome) {
  const UniqueFd region(MakeShmRegion(3, 0));
  ShmOptions options;
  options.fd = region.get();
  options.world_size = 3;
  options.attach_timeout = Millis(50);
  const Status status = AttachShm(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), HasSubstr("ranks 1, 2"));
  EXPECT_THAT(Message(status), HasSubstr("expected 3 ranks, arrived 1"));  // RDZ-03
}

TEST(GlooEndpoint, RefusesForeignBlobsAndUnreachablePeers) {
  const auto create = [](const std::string& address) {
    GlooOptions options;
    options.address = address;
    options.world_size = 2;
    return GlooEndpoint::Create(options).status().code();
  };
  EXPECT_EQ(create(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create("no-such-host.invalid"), absl::StatusCode::kUnavailable);
  const auto make = [](int32_t rank, int64_t generation) {
    return *GlooEndpoint::Create(
        {.address = "127.0.0.1", .rank = Rank(rank), .world_size = 2, .generation = Generation(generation)});
  };
  auto own = make(0, 2), old = make(1, 1), peer = make(1, 2);
  const auto connect = [&](const std::string& blob) {
    const std::vector<std::string> blobs = {own->blob(), blob};
    return own->Connect(blobs, Millis(100)).status();
  };
  EXPECT_EQ(connect(old->blob()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(connect(old->blob().substr(1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(connect("").code(), absl::StatusCode::kInvalidArgument);
  const std::string gone = peer->blob();
  peer.reset();
  const Status absent =
      connect(gone);  // refused, or nobody connects to us: the system's port numbers decide who calls whom
  EXPECT_THAT(absent.code(), ::testing::AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded))
      << absent;
  EXPECT_EQ(BlamedRank(absent), Rank(1)) << absent;
  EXPECT_EQ(connect(gone).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tutti
