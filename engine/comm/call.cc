#include "engine/comm/call.h"

#include <fmt/format.h>

#include <tuple>

#include "absl/strings/cord.h"

namespace tutti {
namespace {

constexpr const char* kBlamePayload = "tutti.v1/blamed_rank";

const char* NameOf(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "all-reduce";
    case CallKind::kTreeAllReduce:
      return "tree all-reduce";
    case CallKind::kReduceScatter:
      return "reduce-scatter";
    case CallKind::kAllGather:
      return "all-gather";
    case CallKind::kAllToAll:
      return "all-to-all";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kSendRecv:
      return "send-receive";
    case CallKind::kBarrier:
      return "barrier";
  }
  return "unknown call";
}

const char* NameOf(CommType type) { return type == CommType::kF32 ? "f32" : type == CommType::kI64 ? "i64" : "bytes"; }

auto Identity(const CallHeader& c) { return std::tuple(c.sequence, c.kind, c.type, c.op, c.root, c.count, c.shards); }

Status CheckPair(const CallHeader& sender, int32_t from, const CallHeader& receiver, int32_t to) {
  const int64_t sent = sender.to == to ? sender.send_bytes : 0;
  const int64_t expected = receiver.from == from ? receiver.receive_bytes : 0;
  if (sent == expected) return OkStatus();
  return InvalidArgument("ranks disagree on {}: rank {} sends {} bytes to rank {}, which expects {}", Title(sender),
                         from, sent, to, expected);
}

}  // namespace

std::string Describe(const CallHeader& call) {
  std::string text = NameOf(call.kind);
  const bool reduces = call.kind == CallKind::kAllReduce || call.kind == CallKind::kReduceScatter;
  if (reduces) text += call.op == static_cast<int32_t>(ReduceOp::kSum) ? " (sum)" : " (max)";
  if (call.kind == CallKind::kTreeAllReduce) text += fmt::format(" ({} shards)", call.shards);
  if (call.kind == CallKind::kBroadcast) text += fmt::format(" from rank {}", call.root);
  const bool sized = reduces || call.kind == CallKind::kTreeAllReduce || call.kind == CallKind::kAllGather ||
                     call.kind == CallKind::kBroadcast;
  if (sized) text += fmt::format(" of {} {}", call.count, NameOf(static_cast<CommType>(call.type)));
  return text;
}

std::string Title(const CallHeader& call) { return fmt::format("{} #{}", NameOf(call.kind), call.sequence); }

Status CheckCalls(std::span<const CallHeader> calls) {
  for (size_t r = 1; r < calls.size(); ++r) {
    if (Identity(calls[r]) == Identity(calls[0])) continue;
    return InvalidArgument("ranks disagree on call #{}: rank 0 is in {}, rank {} in {}{}", calls[0].sequence,
                           Describe(calls[0]), r, Describe(calls[r]),
                           calls[r].sequence == calls[0].sequence ? "" : fmt::format(" (#{})", calls[r].sequence));
  }
  if (calls[0].kind != CallKind::kSendRecv) return OkStatus();
  for (int32_t r = 0; r < static_cast<int32_t>(calls.size()); ++r) {
    if (calls[r].to >= 0) TUTTI_RETURN_IF_ERROR(CheckPair(calls[r], r, calls[calls[r].to], calls[r].to));
    if (calls[r].from >= 0) TUTTI_RETURN_IF_ERROR(CheckPair(calls[calls[r].from], calls[r].from, calls[r], r));
  }
  return OkStatus();
}

Status CheckAllToAll(const CallHeader& call, std::span<const int64_t> send, std::span<const int64_t> receive) {
  int64_t world = 0;
  while (world * world < static_cast<int64_t>(send.size())) ++world;
  for (int64_t r = 0; r < world; ++r) {
    for (int64_t p = 0; p < world; ++p) {
      if (send[r * world + p] == receive[p * world + r]) continue;
      return InvalidArgument("ranks disagree on {}: rank {} sends {} bytes to rank {}, which expects {}", Title(call),
                             r, send[r * world + p], p, receive[p * world + r]);
    }
  }
  return OkStatus();
}

Status WithBlame(Status status, int32_t blamed) {
  if (blamed >= 0) status.SetPayload(kBlamePayload, absl::Cord(std::to_string(blamed)));
  return status;
}

std::optional<Rank> BlamedRank(const Status& status) {
  const auto payload = status.GetPayload(kBlamePayload);
  if (!payload.has_value()) return std::nullopt;
  return Rank(std::stoi(std::string(*payload)));
}

std::string RankList(std::span<const int32_t> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace tutti
