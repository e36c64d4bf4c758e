// What a rank says about the call that it enters, and the comparison that every rank makes before any result is
// delivered.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/comm/communicator.h"

namespace tutti {

enum class CallKind : int32_t {
  kAllReduce = 1,
  kTreeAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSendRecv,
  kBarrier
};

// Crosses process and host borders as it is: fixed size, native order (hosts of one job are of one architecture).
struct CallHeader {
  int64_t sequence = 0;
  CallKind kind = CallKind::kBarrier;
  int32_t type = 0;  // CommType
  int32_t op = 0;    // ReduceOp
  int32_t root = 0;
  int64_t count = 0;           // elements
  int64_t shards = 0;          // tree all-reduce
  int32_t to = -1, from = -1;  // send-receive; -1: nothing in that direction
  int64_t send_bytes = 0, receive_bytes = 0;
};

// "all-reduce (sum) of 10 f32"
std::string Describe(const CallHeader& call);
// "all-reduce #31"
std::string Title(const CallHeader& call);

// Calls by rank. INVALID_ARGUMENT names two ranks that disagree, their operations and lengths, and the call's number.
// Pure and deterministic: every rank comes to the same answer.
Status CheckCalls(std::span<const CallHeader> calls);

// Row r of `send` (world x world) is what rank r sends to each rank, row r of `receive` what it expects from each.
Status CheckAllToAll(const CallHeader& call, std::span<const int64_t> send, std::span<const int64_t> receive);

// A status that BlamedRank understands; `blamed` < 0: none.
Status WithBlame(Status status, int32_t blamed);

// "rank 3", "ranks 1, 2"
std::string RankList(std::span<const int32_t> ranks);

}  // namespace tutti
