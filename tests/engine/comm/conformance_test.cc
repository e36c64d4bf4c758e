// What every communicator promises, on every backend, with inputs whose results have closed forms.
#include <numeric>

#include "engine/comm/shm.h"
#include "engine/comm/tree_reduce.h"
#include "tests/engine/comm/world.h"

namespace tutti {
namespace {

class Conformance : public ::testing::TestWithParam<WorldParam> {
 protected:
  int32_t world() const { return std::get<1>(GetParam()); }
  Comms comms_ = MakeWorld(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         ::testing::Combine(::testing::Values(Backend::kLocal, Backend::kShm, Backend::kGloo),
                                            ::testing::Values(1, 2, 4, 7)),
                         WorldName);

// 0, 1, odd, the inline limits and beyond, several blocks with a ragged end.
const int64_t kSizes[] = {0, 1, 13, 4096, 8192, 8193, 70'001, 1'000'003};

int64_t Weight(int64_t i) { return i % 17 + 1; }

// Rank r holds (r + 1) * Weight(i): sums are exact in both types.
template <typename T>
Status CheckAllReduce(Communicator& c, CommType type, ReduceOp op, int64_t n) {
  std::vector<T> data(n);
  for (int64_t i = 0; i < n; ++i) data[i] = static_cast<T>((c.rank().value() + 1) * Weight(i));
  TUTTI_RETURN_IF_ERROR(c.AllReduce(data.data(), ElementCount(n), type, op));
  const int64_t w = c.world_size(), factor = op == ReduceOp::kSum ? w * (w + 1) / 2 : w;
  for (int64_t i = 0; i < n; ++i) {
    if (data[i] != static_cast<T>(factor * Weight(i))) return DataLoss("element {} of {} is {}", i, n, data[i]);
  }
  return OkStatus();
}

TEST_P(Conformance, AllReduceOfEverySize) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    for (const int64_t n : kSizes) TUTTI_RETURN_IF_ERROR(CheckAllReduce<float>(c, CommType::kF32, ReduceOp::kSum, n));
    for (const int64_t n : {0, 1, 8193, 70'001}) {
      TUTTI_RETURN_IF_ERROR(CheckAllReduce<float>(c, CommType::kF32, ReduceOp::kMax, n));
      TUTTI_RETURN_IF_ERROR(CheckAllReduce<int64_t>(c, CommType::kI64, ReduceOp::kSum, n));
      TUTTI_RETURN_IF_ERROR(CheckAllReduce<int64_t>(c, CommType::kI64, ReduceOp::kMax, n));
    }
    return OkStatus();
  });
}

TEST_P(Conformance, MaxOfNegativeNumbers) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    int64_t value = -10 - c.rank().value();
    TUTTI_RETURN_IF_ERROR(c.AllReduce(&value, ElementCount(1), CommType::kI64, ReduceOp::kMax));
    return value == -10 ? OkStatus() : DataLoss("{}", value);
  });
}

// The part for rank p holds (r + 1) * (p + 1) + i.
TEST_P(Conformance, ReduceScatterOfEverySize) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    const int64_t w = c.world_size(), r = c.rank().value();
    for (const int64_t n : {0, 1, 13, 70'001}) {
      std::vector<int64_t> send(w * n), receive(n);
      for (int64_t p = 0; p < w; ++p) {
        for (int64_t i = 0; i < n; ++i) send[p * n + i] = (r + 1) * (p + 1) + i;
      }
      TUTTI_RETURN_IF_ERROR(
          c.ReduceScatter(send.data(), receive.data(), ElementCount(n), CommType::kI64, ReduceOp::kSum));
      for (int64_t i = 0; i < n; ++i) {
        if (receive[i] != (r + 1) * w * (w + 1) / 2 + w * i)
          return DataLoss("element {} of {} is {}", i, n, receive[i]);
      }
    }
    return OkStatus();
  });
}

TEST_P(Conformance, AllGatherOfEverySize) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    const int64_t w = c.world_size(), r = c.rank().value();
    for (const int64_t n : {0, 1, 13, 8192, 8193, 200'007}) {
      std::vector<float> send(n), receive(w * n, -1.0f);
      for (int64_t i = 0; i < n; ++i) send[i] = static_cast<float>(100 * r + Weight(i));
      TUTTI_RETURN_IF_ERROR(c.AllGather(send.data(), receive.data(), ElementCount(n), CommType::kF32));
      for (int64_t i = 0; i < w * n; ++i) {
        if (receive[i] != static_cast<float>(100 * (i / n) + Weight(i % n)))
          return DataLoss("element {}: {}", i, receive[i]);
      }
    }
    return OkStatus();
  });
}

// Rank r sends (r * 7 + p * 3) % 5 * unit bytes of value 16 r + p to rank p: some pairs exchange nothing.
TEST_P(Conformance, AllToAllOfUnequalSizes) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    const int32_t w = c.world_size(), r = c.rank().value();
    for (const int64_t unit : {0, 1, 100'003}) {
      const auto size = [&](int32_t from, int32_t to) { return (from * 7 + to * 3) % 5 * unit; };
      std::vector<std::vector<std::byte>> out(w), in(w);
      std::vector<std::span<const std::byte>> send;
      std::vector<std::span<std::byte>> receive;
      for (int32_t p = 0; p < w; ++p) {
        out[p].assign(size(r, p), std::byte(16 * r + p));
        in[p].assign(size(p, r), std::byte(255));
        send.emplace_back(out[p]);
        receive.emplace_back(in[p]);
      }
      TUTTI_RETURN_IF_ERROR(c.AllToAll(send, receive));
      for (int32_t p = 0; p < w; ++p) {
        if (in[p] != std::vector<std::byte>(size(p, r), std::byte(16 * p + r))) return DataLoss("from rank {}", p);
      }
    }
    return OkStatus();
  });
}

TEST_P(Conformance, BroadcastFromEveryRoot) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    for (int32_t root = 0; root < c.world_size(); ++root) {
      for (const int64_t n : {0, 1, 13, 300'007}) {
        std::vector<float> data(n, static_cast<float>(c.rank().value()));
        TUTTI_RETURN_IF_ERROR(c.Broadcast(data.data(), ElementCount(n), CommType::kF32, Rank(root)));
        if (data != std::vector<float>(n, static_cast<float>(root))) return DataLoss("{} elements from {}", n, root);
      }
    }
    return OkStatus();
  });
}

TEST_P(Conformance, SendRecvAroundARing) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    const int32_t w = c.world_size(), r = c.rank().value(), next = (r + 1) % w, previous = (r + w - 1) % w;
    for (const int64_t n : {1, 13, 1'500'001}) {
      const std::vector<std::byte> send(n, std::byte(r));
      std::vector<std::byte> receive(n, std::byte(255));
      TUTTI_RETURN_IF_ERROR(c.SendRecv(send, Rank(next), receive, Rank(previous)));
      if (receive != std::vector<std::byte>(n, std::byte(previous))) return DataLoss("{} bytes", n);
    }
    return OkStatus();
  });
}

TEST_P(Conformance, SendRecvAlongALineWithOpenEnds) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    const int32_t w = c.world_size(), r = c.rank().value();
    int64_t sent = 40 + r, received = -1;
    const auto out = std::as_bytes(std::span(&sent, r + 1 < w ? 1 : 0));
    const auto in = std::as_writable_bytes(std::span(&received, r > 0 ? 1 : 0));
    TUTTI_RETURN_IF_ERROR(c.SendRecv(out, Rank(r + 1), in, Rank(r - 1)));
    return received == (r > 0 ? 39 + r : -1) ? OkStatus() : DataLoss("{}", received);
  });
}

// Calls of all kinds in a row: buffers of one call are not reused before slow ranks are done with it.
TEST_P(Conformance, LongMixedSequence) {
  ExpectOk(comms_, [](Communicator& c) -> Status {
    const int32_t w = c.world_size();
    for (int round = 0; round < 12; ++round) {
      TUTTI_RETURN_IF_ERROR(
          CheckAllReduce<float>(c, CommType::kF32, ReduceOp::kSum, round % 3 == 0 ? 20'000 + round : 5));
      float root = c.rank().value() == round % w ? static_cast<float>(round) : -1.0f;
      TUTTI_RETURN_IF_ERROR(c.Broadcast(&root, ElementCount(1), CommType::kF32, Rank(round % w)));
      if (root != static_cast<float>(round)) return DataLoss("round {}: {}", round, root);
      TUTTI_RETURN_IF_ERROR(c.Barrier());
    }
    return c.sequence() == 36 ? OkStatus() : DataLoss("{} calls", c.sequence());
  });
}

// Sum of leaf values over the tree, written as the contract says it: the left child has the greatest power of two below
// n.
float TreeSum(const std::vector<std::vector<float>>& leaves, int64_t i, int32_t begin, int32_t end) {
  if (end - begin == 1) return leaves[begin][i];
  int32_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return TreeSum(leaves, i, begin, begin + left) + TreeSum(leaves, i, begin + left, end);
}

TEST_P(Conformance, TreeAllReduceHasTheBitsOfTheTree) {
  for (const auto& [shards, n] : std::vector<std::pair<int32_t, int64_t>>{{7, 37}, {8, 200'003}, {12, 50'021}}) {
    std::vector<std::vector<float>> leaves(shards, std::vector<float>(n));
    uint32_t state = 12345;
    for (auto& leaf : leaves) {
      for (float& x : leaf)
        x = static_cast<float>(static_cast<int32_t>(state = state * 1664525u + 1013904223u)) * 0x1p-20f;
    }
    ExpectOk(comms_, [&](Communicator& c) -> Status {
      const TreeReducer tree(shards, c.world_size(), c.rank());
      std::vector<std::vector<float>> partials;
      std::vector<const float*> pointers;
      for (const ShardRange& range : tree.partials()) {
        partials.emplace_back(n);
        for (int64_t i = 0; i < n; ++i) partials.back()[i] = TreeSum(leaves, i, range.begin, range.end);
      }
      for (const auto& partial : partials) pointers.push_back(partial.data());
      float* result = partials[0].data();  // in place
      TUTTI_RETURN_IF_ERROR(c.TreeAllReduce(tree, pointers, result, ElementCount(n)));
      for (int64_t i = 0; i < n; ++i) {
        if (result[i] != TreeSum(leaves, i, 0, shards))
          return DataLoss("element {} of {} with {} shards", i, n, shards);
      }
      return OkStatus();
    });
  }
}

TEST(ShmWindow, ReducesInPlaceWhereAllBuffersAreInWindows) {
  const int64_t n = 100'003;
  Comms comms = MakeWorld(Backend::kShm, 3, Millis(60'000), 4 * n * 4);
  ExpectOk(comms, [n](Communicator& c) -> Status {
    float* window = reinterpret_cast<float*>(ShmWindow(c).data());
    for (int64_t i = 0; i < n; ++i) window[i] = static_cast<float>((c.rank().value() + 1) * Weight(i));
    TUTTI_RETURN_IF_ERROR(c.AllReduce(window, ElementCount(n), CommType::kF32, ReduceOp::kSum));
    for (int64_t i = 0; i < n; ++i) {
      if (window[i] != static_cast<float>(6 * Weight(i))) return DataLoss("element {} is {}", i, window[i]);
    }
    const TreeReducer tree(6, 3,
                           c.rank());  // two shards a rank; the middle one's are not siblings of one node over both
    std::vector<const float*> partials;
    for (size_t p = 0; p < tree.partials().size(); ++p) {
      float* partial = window + p * n;
      for (int64_t i = 0; i < n; ++i) partial[i] = static_cast<float>(tree.partials()[p].size() * Weight(i));
      partials.push_back(partial);
    }
    float* result = window + 3 * n;
    TUTTI_RETURN_IF_ERROR(c.TreeAllReduce(tree, partials, result, ElementCount(n)));
    for (int64_t i = 0; i < n; ++i) {
      if (result[i] != static_cast<float>(6 * Weight(i))) return DataLoss("tree element {} is {}", i, result[i]);
    }
    return OkStatus();
  });
}

TEST(ShmWindow, IsEmptyForOtherCommunicators) {
  Comms comms = MakeWorld(Backend::kLocal, 1);
  EXPECT_TRUE(ShmWindow(*comms[0]).empty());
}

}  // namespace
}  // namespace tutti
