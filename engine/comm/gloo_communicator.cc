#include "engine/comm/gloo_communicator.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

constexpr int64_t kInlineBytes = 16 << 10;  // payload that travels with the announcement
constexpr int64_t kPartBytes = 256 << 10;   // of one partial in one block
constexpr int kAnnounce = 0, kData = 1, kResult = 2;

std::byte* At(void* base, int64_t offset) { return static_cast<std::byte*>(base) + offset; }
const std::byte* At(const void* base, int64_t offset) { return static_cast<const std::byte*>(base) + offset; }
int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

void Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

GlooCommunicator::GlooCommunicator(std::unique_ptr<GlooLink> link)
    : link_(std::move(link)),
      me_(link_->rank()),
      world_(link_->world_size()),
      fold_(world_),
      calls_(world_),
      inbox_(world_, std::vector<std::byte>(sizeof(CallHeader) + kInlineBytes)) {
  link_->set_title(&call_);
  call_.sequence = 0;
}

Status GlooCommunicator::Open(CallHeader call) {
  TUTTI_RETURN_IF_ERROR(link_->Health());
  call.sequence = sequence_.fetch_add(1) + 1;
  call_ = call;
  return OkStatus();
}

Status GlooCommunicator::Meet(int64_t inline_bytes) {
  std::memcpy(inbox_[me_].data(), &call_, sizeof(call_));
  for (int32_t p = 0; p < world_; ++p) {
    if (p != me_) TUTTI_RETURN_IF_ERROR(link_->Receive(p, Slot(kAnnounce), inbox_[p].data(), inbox_[p].size()));
  }
  for (int32_t p = 0; p < world_; ++p) {
    if (p != me_) {
      TUTTI_RETURN_IF_ERROR(link_->Send(p, Slot(kAnnounce), inbox_[me_].data(), sizeof(CallHeader) + inline_bytes));
    }
  }
  TUTTI_RETURN_IF_ERROR(link_->WaitAll());
  for (int32_t r = 0; r < world_; ++r) std::memcpy(&calls_[r], inbox_[r].data(), sizeof(CallHeader));
  const Status agreed = CheckCalls(calls_);
  return agreed.ok() ? agreed : link_->Poison(agreed.code(), -1, Message(agreed), false);
}

Status GlooCommunicator::AllReduce(void* data, ElementCount count, CommType type, ReduceOp op) {
  CallHeader call{.kind = CallKind::kAllReduce, .type = static_cast<int32_t>(type), .op = static_cast<int32_t>(op)};
  call.count = count.value();
  const void* value = data;
  return AllReduceWith(call, {fold_.plan(), type, op, {&value, 1}, data, count.value()});
}

Status GlooCommunicator::TreeAllReduce(const TreeReducer& tree, std::span<const float* const> partials, float* result,
                                       ElementCount count) {
  TUTTI_CHECK(tree.world_size() == world_ && tree.rank().value() == me_ && partials.size() == tree.partials().size());
  CallHeader call{.kind = CallKind::kTreeAllReduce, .count = count.value(), .shards = tree.shards()};
  const std::span<const void* const> values(reinterpret_cast<const void* const*>(partials.data()), partials.size());
  return AllReduceWith(call, {PlanOf(tree), CommType::kF32, ReduceOp::kSum, values, result, count.value()});
}

Status GlooCommunicator::AllReduceWith(CallHeader call, const Reduction& r) {
  TUTTI_RETURN_IF_ERROR(Open(call));
  const int64_t bytes = r.count * SizeOf(r.type);
  operands_.resize(r.plan.leaves.size());
  if (bytes * r.plan.max_partials > kInlineBytes) {
    TUTTI_RETURN_IF_ERROR(Meet(0));
    return ReduceBlocks(r);
  }
  for (size_t i = 0; i < r.values.size(); ++i) Copy(payload(me_) + i * bytes, r.values[i], bytes);
  TUTTI_RETURN_IF_ERROR(Meet(static_cast<int64_t>(r.values.size()) * bytes));
  for (size_t l = 0; l < operands_.size(); ++l) {
    operands_[l] = payload(r.plan.leaves[l].owner.value()) + r.plan.leaves[l].index * bytes;
  }
  void* const target = r.result;
  Reduce(r.plan, r.type, r.op, operands_, &scratch_, {&target, 1}, r.count);
  return OkStatus();
}

// Transfers of block k + 1 run while block k is added. A result part replaces an input part only after its reducer
// received the input.
Status GlooCommunicator::ReduceBlocks(const Reduction& r) {
  const int64_t size = SizeOf(r.type), per_block = (kPartBytes / size - 16) * world_;
  const int64_t blocks = CeilDiv(r.count, per_block);
  const auto block_at = [&](int64_t k) { return Block{k * per_block, std::min(per_block, r.count - k * per_block)}; };
  const size_t room = 2 * r.plan.leaves.size() * kPartBytes;
  if (parts_.size() < room) parts_.resize(room);
  TUTTI_RETURN_IF_ERROR(PostBlock(r, block_at(0), 0));
  int64_t needed = link_->posted();
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t arrived = needed;
    if (k + 1 < blocks) {
      TUTTI_RETURN_IF_ERROR(PostBlock(r, block_at(k + 1), k + 1));
      needed = link_->posted();
    }
    TUTTI_RETURN_IF_ERROR(link_->WaitThrough(arrived));
    TUTTI_RETURN_IF_ERROR(FinishBlock(r, block_at(k), k));
  }
  return link_->WaitAll();
}

Status GlooCommunicator::PostBlock(const Reduction& r, Block block, int64_t round) {
  const int64_t size = SizeOf(r.type), leaves = static_cast<int64_t>(r.plan.leaves.size());
  const PartRange own = PartOf(block.size, world_, me_);
  for (int64_t l = 0; l < leaves; ++l) {
    const TreeLeaf& leaf = r.plan.leaves[l];
    std::byte* part = parts_.data() + (round % 2 * leaves + l) * kPartBytes;
    const bool mine = leaf.owner.value() == me_;
    operands_[l] = nullptr;
    if (!mine) TUTTI_RETURN_IF_ERROR(link_->Receive(leaf.owner.value(), Slot(kData), part, own.size() * size));
  }
  for (int32_t p = 0; p < world_; ++p) {
    const PartRange part = PartOf(block.size, world_, p);
    for (size_t i = 0; p != me_ && i < r.values.size(); ++i) {
      const std::byte* from = At(r.values[i], (block.begin + part.begin) * size);
      TUTTI_RETURN_IF_ERROR(link_->Send(p, Slot(kData), from, part.size() * size));
    }
  }
  return OkStatus();
}

Status GlooCommunicator::FinishBlock(const Reduction& r, Block block, int64_t round) {
  const int64_t size = SizeOf(r.type), leaves = static_cast<int64_t>(r.plan.leaves.size());
  const PartRange own = PartOf(block.size, world_, me_);
  std::byte* result = At(r.result, (block.begin + own.begin) * size);
  for (int64_t l = 0; l < leaves; ++l) {
    const TreeLeaf& leaf = r.plan.leaves[l];
    const bool mine = leaf.owner.value() == me_;
    operands_[l] = mine ? At(r.values[leaf.index], (block.begin + own.begin) * size)
                        : parts_.data() + (round % 2 * leaves + l) * kPartBytes;
  }
  void* const target = result;
  Reduce(r.plan, r.type, r.op, operands_, &scratch_, {&target, 1}, own.size());
  for (int32_t p = 0; p < world_; ++p) {
    if (p == me_) continue;
    const PartRange part = PartOf(block.size, world_, p);
    std::byte* to = At(r.result, (block.begin + part.begin) * size);
    TUTTI_RETURN_IF_ERROR(link_->Receive(p, Slot(kResult), to, part.size() * size));
    TUTTI_RETURN_IF_ERROR(link_->Send(p, Slot(kResult), result, own.size() * size));
  }
  return OkStatus();
}

Status GlooCommunicator::ReduceScatter(const void* send, void* receive, ElementCount count, CommType type,
                                       ReduceOp op) {
  CallHeader call{.kind = CallKind::kReduceScatter, .type = static_cast<int32_t>(type), .op = static_cast<int32_t>(op)};
  call.count = count.value();
  TUTTI_RETURN_IF_ERROR(Open(call));
  TUTTI_RETURN_IF_ERROR(Meet(0));
  const int64_t size = SizeOf(type), n = count.value(), per_round = kPartBytes / size;
  if (parts_.size() < static_cast<size_t>(world_ * kPartBytes)) parts_.resize(world_ * kPartBytes);
  operands_.resize(world_);
  for (int64_t begin = 0; begin < n; begin += per_round) {
    const int64_t here = std::min(per_round, n - begin);
    for (int32_t p = 0; p < world_; ++p) {
      operands_[p] = p == me_ ? At(send, (p * n + begin) * size) : parts_.data() + p * kPartBytes;
      if (p == me_) continue;
      TUTTI_RETURN_IF_ERROR(link_->Receive(p, Slot(kData), parts_.data() + p * kPartBytes, here * size));
      TUTTI_RETURN_IF_ERROR(link_->Send(p, Slot(kData), At(send, (p * n + begin) * size), here * size));
    }
    TUTTI_RETURN_IF_ERROR(link_->WaitAll());
    void* const target = At(receive, begin * size);
    Reduce(fold_.plan(), type, op, operands_, &scratch_, {&target, 1}, here);
  }
  return OkStatus();
}

Status GlooCommunicator::AllGather(const void* send, void* receive, ElementCount count, CommType type) {
  TUTTI_RETURN_IF_ERROR(
      Open({.kind = CallKind::kAllGather, .type = static_cast<int32_t>(type), .count = count.value()}));
  const int64_t bytes = count.value() * SizeOf(type);
  const bool small = bytes <= kInlineBytes;
  if (small) Copy(payload(me_), send, bytes);
  TUTTI_RETURN_IF_ERROR(Meet(small ? bytes : 0));
  Copy(At(receive, me_ * bytes), send, bytes);
  for (int32_t p = 0; p < world_; ++p) {
    if (p == me_) continue;
    if (small) {
      Copy(At(receive, p * bytes), payload(p), bytes);
    } else {
      TUTTI_RETURN_IF_ERROR(link_->Receive(p, Slot(kData), At(receive, p * bytes), bytes));
      TUTTI_RETURN_IF_ERROR(link_->Send(p, Slot(kData), send, bytes));
    }
  }
  return link_->WaitAll();
}

Status GlooCommunicator::AllToAll(std::span<const std::span<const std::byte>> send,
                                  std::span<const std::span<std::byte>> receive) {
  TUTTI_CHECK(static_cast<int32_t>(send.size()) == world_ && static_cast<int32_t>(receive.size()) == world_);
  const int64_t row_bytes = 2 * world_ * int64_t{sizeof(int64_t)};
  TUTTI_CHECK(row_bytes <= kInlineBytes, "all-to-all of {} ranks", world_);
  TUTTI_RETURN_IF_ERROR(Open({.kind = CallKind::kAllToAll}));
  std::vector<int64_t> row(2 * world_), sent, expected;
  for (int32_t p = 0; p < world_; ++p) {
    row[p] = static_cast<int64_t>(send[p].size());
    row[world_ + p] = static_cast<int64_t>(receive[p].size());
  }
  std::memcpy(payload(me_), row.data(), row_bytes);
  TUTTI_RETURN_IF_ERROR(Meet(row_bytes));
  for (int32_t r = 0; r < world_; ++r) {
    std::memcpy(row.data(), payload(r), row_bytes);
    sent.insert(sent.end(), row.begin(), row.begin() + world_);
    expected.insert(expected.end(), row.begin() + world_, row.end());
  }
  const Status agreed = CheckAllToAll(call_, sent, expected);
  if (!agreed.ok()) return link_->Poison(agreed.code(), -1, Message(agreed), false);
  Copy(receive[me_].data(), send[me_].data(), send[me_].size());
  for (int32_t p = 0; p < world_; ++p) {
    if (p == me_) continue;
    if (!receive[p].empty())
      TUTTI_RETURN_IF_ERROR(link_->Receive(p, Slot(kData), receive[p].data(), receive[p].size()));
    if (!send[p].empty()) TUTTI_RETURN_IF_ERROR(link_->Send(p, Slot(kData), send[p].data(), send[p].size()));
  }
  return link_->WaitAll();
}

// Binomial tree: in round i every rank that has the data sends it 2^i places further.
Status GlooCommunicator::Broadcast(void* data, ElementCount count, CommType type, Rank root) {
  TUTTI_CHECK(0 <= root.value() && root.value() < world_);
  CallHeader call{.kind = CallKind::kBroadcast, .type = static_cast<int32_t>(type), .root = root.value()};
  call.count = count.value();
  TUTTI_RETURN_IF_ERROR(Open(call));
  const int64_t bytes = count.value() * SizeOf(type);
  const bool sends = me_ == root.value(), small = bytes <= kInlineBytes;
  if (sends && small) Copy(payload(me_), data, bytes);
  TUTTI_RETURN_IF_ERROR(Meet(sends && small ? bytes : 0));
  if (small) {
    if (!sends) Copy(data, payload(root.value()), bytes);
    return OkStatus();
  }
  const int32_t place = (me_ - root.value() + world_) % world_;
  const auto rank_at = [&](int32_t p) { return (p + root.value()) % world_; };
  for (int32_t reach = 1; reach < world_; reach *= 2) {
    if (place < reach && place + reach < world_) {
      TUTTI_RETURN_IF_ERROR(link_->Send(rank_at(place + reach), Slot(kData), data, bytes));
    } else if (reach <= place && place < 2 * reach) {
      TUTTI_RETURN_IF_ERROR(link_->Receive(rank_at(place - reach), Slot(kData), data, bytes));
      TUTTI_RETURN_IF_ERROR(link_->WaitAll());
    }
  }
  return link_->WaitAll();
}

Status GlooCommunicator::SendRecv(std::span<const std::byte> send, Rank to, std::span<std::byte> receive, Rank from) {
  CallHeader call{.kind = CallKind::kSendRecv};
  if (!send.empty()) call.to = to.value(), call.send_bytes = static_cast<int64_t>(send.size());
  if (!receive.empty()) call.from = from.value(), call.receive_bytes = static_cast<int64_t>(receive.size());
  TUTTI_CHECK(call.to < world_ && call.from < world_ && call.to >= -1 && call.from >= -1);
  TUTTI_RETURN_IF_ERROR(Open(call));
  TUTTI_RETURN_IF_ERROR(Meet(0));
  if (call.to == me_) {
    Copy(receive.data(), send.data(), send.size());
    call.to = call.from = -1;
  }
  if (call.from >= 0) TUTTI_RETURN_IF_ERROR(link_->Receive(call.from, Slot(kData), receive.data(), receive.size()));
  if (call.to >= 0) TUTTI_RETURN_IF_ERROR(link_->Send(call.to, Slot(kData), send.data(), send.size()));
  return link_->WaitAll();
}

Status GlooCommunicator::Barrier() {
  TUTTI_RETURN_IF_ERROR(Open({.kind = CallKind::kBarrier}));
  return Meet(0);
}

void GlooCommunicator::Abort(const std::string& reason) {
  const Status poison =
      link_->Poison(absl::StatusCode::kAborted, me_, fmt::format("rank {} aborted: {}", me_, reason), true);
  TUTTI_CHECK(!poison.ok());
}

}  // namespace tutti
