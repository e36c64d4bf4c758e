#include "engine/comm/region_communicator.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

void Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

std::byte* At(void* base, int64_t offset) { return static_cast<std::byte*>(base) + offset; }
const std::byte* At(const void* base, int64_t offset) { return static_cast<const std::byte*>(base) + offset; }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

RegionCommunicator::RegionCommunicator(const RegionOptions& o)
    : me_(o.rank.value()),
      world_(o.world_size),
      peer_(o),
      view_(peer_.view()),
      fold_(o.world_size),
      calls_(o.world_size) {}

StatusOr<std::unique_ptr<RegionCommunicator>> RegionCommunicator::Create(const RegionOptions& options,
                                                                         Generation generation, Millis attach_timeout) {
  std::unique_ptr<RegionCommunicator> comm(new RegionCommunicator(options));
  TUTTI_RETURN_IF_ERROR(comm->peer_.Attach(generation, attach_timeout));
  return comm;
}

std::vector<std::unique_ptr<Communicator>> RegionCommunicator::CreateWorld(RegionOptions options) {
  std::vector<std::unique_ptr<RegionCommunicator>> ranks;
  for (int32_t r = 0; r < options.world_size; ++r) {
    options.rank = Rank(r);
    ranks.emplace_back(new RegionCommunicator(options));
    TUTTI_CHECK_OK(ranks.back()->peer_.Claim(Generation(1)));
  }
  return {std::make_move_iterator(ranks.begin()), std::make_move_iterator(ranks.end())};
}

Status RegionCommunicator::Open(CallHeader call) {
  TUTTI_RETURN_IF_ERROR(peer_.PoisonStatus());
  call.sequence = sequence_.fetch_add(1) + 1;
  parity_ = static_cast<int>(call.sequence % 2);
  call_ = call;
  peer_.set_title(&call_);
  announcement(me_) = {};
  announcement(me_).call = call;
  return OkStatus();
}

// Buffers of a parity are free here: whoever announced the previous call had finished the one before.
Status RegionCommunicator::Meet() {
  peer_.Tick();
  TUTTI_RETURN_IF_ERROR(peer_.WaitAll(peer_.ticks()));
  for (int32_t r = 0; r < world_; ++r) calls_[r] = announcement(r).call;
  const Status agreed = CheckCalls(calls_);
  return agreed.ok() ? agreed : peer_.Poison(agreed.code(), -1, Message(agreed));
}

template <typename StageFn, typename ConsumeFn>
Status RegionCommunicator::Rounds(int64_t rounds, StageFn stage, ConsumeFn consume) {
  for (int64_t round = 0; round < rounds; ++round) {
    stage(round);  // peers read the other buffer at most: they consumed this one before their last tick
    peer_.Tick();
    TUTTI_RETURN_IF_ERROR(peer_.WaitAll(peer_.ticks()));
    consume(round);
  }
  return OkStatus();
}

Status RegionCommunicator::AllReduce(void* data, ElementCount count, CommType type, ReduceOp op) {
  CallHeader call{.kind = CallKind::kAllReduce, .type = static_cast<int32_t>(type), .op = static_cast<int32_t>(op)};
  call.count = count.value();
  const void* value = data;
  return AllReduceWith(call, {fold_.plan(), type, op, {&value, 1}, data, count.value()});
}

Status RegionCommunicator::TreeAllReduce(const TreeReducer& tree, std::span<const float* const> partials, float* result,
                                         ElementCount count) {
  TUTTI_CHECK(tree.world_size() == world_ && tree.rank().value() == me_ && partials.size() == tree.partials().size());
  CallHeader call{.kind = CallKind::kTreeAllReduce, .count = count.value(), .shards = tree.shards()};
  const std::span<const void* const> values(reinterpret_cast<const void* const*>(partials.data()), partials.size());
  return AllReduceWith(call, {PlanOf(tree), CommType::kF32, ReduceOp::kSum, values, result, count.value()});
}

int64_t RegionCommunicator::WindowOffsetOf(const void* data, int64_t bytes) const {
  const std::span<std::byte> window = view_.window(me_);
  const std::byte* begin = static_cast<const std::byte*>(data);
  const std::less_equal<const std::byte*> ordered;
  const bool inside = ordered(window.data(), begin) && ordered(begin + bytes, window.data() + window.size());
  return inside ? begin - window.data() : -1;
}

Status RegionCommunicator::AllReduceWith(CallHeader call, const Reduction& r) {
  TUTTI_RETURN_IF_ERROR(Open(call));
  operands_.resize(r.plan.leaves.size());
  const int64_t bytes = r.count * SizeOf(r.type);
  if (bytes * r.plan.max_partials <= kSmallBytes) return ReduceSmall(r);
  Announcement& own = announcement(me_);
  if (r.values.size() <= kMaxInPlace && r.plan.max_partials <= kMaxInPlace) {
    for (size_t i = 0; i < r.values.size(); ++i) own.inputs[i] = WindowOffsetOf(r.values[i], bytes);
    own.output = WindowOffsetOf(r.result, bytes);
  }
  TUTTI_RETURN_IF_ERROR(Meet());
  bool in_place = true;
  for (const TreeLeaf& leaf : r.plan.leaves) {
    const Announcement& a = announcement(leaf.owner.value());
    in_place = in_place && leaf.index < kMaxInPlace && a.inputs[leaf.index] >= 0 && a.output >= 0;
  }
  return in_place ? ReduceInPlace(r) : ReduceStaged(r);
}

Status RegionCommunicator::ReduceSmall(const Reduction& r) {
  const int64_t bytes = r.count * SizeOf(r.type);
  for (size_t i = 0; i < r.values.size(); ++i) Copy(view_.small(me_, parity_) + i * bytes, r.values[i], bytes);
  TUTTI_RETURN_IF_ERROR(Meet());
  for (size_t l = 0; l < operands_.size(); ++l) {
    const TreeLeaf& leaf = r.plan.leaves[l];
    operands_[l] = view_.small(leaf.owner.value(), parity_) + leaf.index * bytes;
  }
  void* const target = r.result;
  Reduce(r.plan, r.type, r.op, operands_, &scratch_, {&target, 1}, r.count);
  return OkStatus();
}

// Every rank reads its part of all inputs where they lie and writes the sum to all outputs.
Status RegionCommunicator::ReduceInPlace(const Reduction& r) {
  const int64_t size = SizeOf(r.type);
  const PartRange part = PartOf(r.count, world_, me_);
  for (size_t l = 0; l < operands_.size(); ++l) {
    const TreeLeaf& leaf = r.plan.leaves[l];
    const int32_t owner = leaf.owner.value();
    operands_[l] = view_.window(owner).data() + announcement(owner).inputs[leaf.index] + part.begin * size;
  }
  targets_.clear();
  for (int32_t p = 0; p < world_; ++p) {
    const int32_t rank = (me_ + p) % world_;
    targets_.push_back(view_.window(rank).data() + announcement(rank).output + part.begin * size);
  }
  Reduce(r.plan, r.type, r.op, operands_, &scratch_, targets_, part.size());
  peer_.Tick();
  return peer_.WaitAll(peer_.ticks());
}

int64_t RegionCommunicator::PartBytes(int32_t partials) const { return kStageBytes / (world_ * partials) / 64 * 64; }

void RegionCommunicator::StageBlock(const Reduction& r, Block block, int64_t round) {
  const int64_t size = SizeOf(r.type), room = PartBytes(r.plan.max_partials);
  for (int32_t p = 0; p < world_; ++p) {
    if (p == me_) continue;
    const PartRange part = PartOf(block.size, world_, p);
    std::byte* to = view_.in(me_, round) + p * r.plan.max_partials * room;
    for (size_t i = 0; i < r.values.size(); ++i) {
      Copy(to + i * room, At(r.values[i], (block.begin + part.begin) * size), part.size() * size);
    }
  }
}

void RegionCommunicator::ReduceBlock(const Reduction& r, Block block, int64_t round) {
  const int64_t size = SizeOf(r.type), room = PartBytes(r.plan.max_partials);
  const PartRange part = PartOf(block.size, world_, me_);
  const int64_t offset = (block.begin + part.begin) * size;
  for (size_t l = 0; l < operands_.size(); ++l) {
    const TreeLeaf& leaf = r.plan.leaves[l];
    const int32_t owner = leaf.owner.value();
    operands_[l] = owner == me_ ? At(r.values[leaf.index], offset)
                                : view_.in(owner, round) + (me_ * r.plan.max_partials + leaf.index) * room;
  }
  void* const targets[] = {view_.out(me_, round), At(r.result, offset)};
  Reduce(r.plan, r.type, r.op, operands_, &scratch_, targets, part.size());
}

void RegionCommunicator::CopyOutBlock(const Reduction& r, Block block, int64_t round) {
  const int64_t size = SizeOf(r.type);
  for (int32_t p = 0; p < world_; ++p) {
    if (p == me_) continue;
    const PartRange part = PartOf(block.size, world_, p);
    Copy(At(r.result, (block.begin + part.begin) * size), view_.out(p, round), part.size() * size);
  }
}

// Per block: stage the parts that others reduce, reduce the own part, copy the others' results. The next block is
// staged before the current one is waited for. A result is overwritten two blocks later, after a wait for ticks that
// its readers made after reading.
Status RegionCommunicator::ReduceStaged(const Reduction& r) {
  const int64_t per_block = PartBytes(r.plan.max_partials) / SizeOf(r.type) * world_ - 16 * world_;
  TUTTI_CHECK(per_block > 0, "{} ranks with {} partials do not fit the staging area", world_, r.plan.max_partials);
  const int64_t blocks = CeilDiv(r.count, per_block);
  const auto block_at = [&](int64_t k) { return Block{k * per_block, std::min(per_block, r.count - k * per_block)}; };
  StageBlock(r, block_at(0), 0);
  peer_.Tick();
  uint32_t staged = peer_.ticks();  // tick that says: everybody staged block k
  for (int64_t k = 0; k < blocks; ++k) {
    const uint32_t needed = staged;
    if (k + 1 < blocks) {
      StageBlock(r, block_at(k + 1), k + 1);
      peer_.Tick();
      staged = peer_.ticks();
    }
    TUTTI_RETURN_IF_ERROR(peer_.WaitAll(needed));
    ReduceBlock(r, block_at(k), k);
    peer_.Tick();
    TUTTI_RETURN_IF_ERROR(peer_.WaitAll(peer_.ticks()));
    CopyOutBlock(r, block_at(k), k);
  }
  return OkStatus();
}

Status RegionCommunicator::ReduceScatter(const void* send, void* receive, ElementCount count, CommType type,
                                         ReduceOp op) {
  CallHeader call{.kind = CallKind::kReduceScatter, .type = static_cast<int32_t>(type), .op = static_cast<int32_t>(op)};
  call.count = count.value();
  TUTTI_RETURN_IF_ERROR(Open(call));
  TUTTI_RETURN_IF_ERROR(Meet());
  const int64_t size = SizeOf(type), n = count.value(), room = PartBytes(1), per_round = room / size;
  operands_.resize(world_);
  const auto here = [&](int64_t k) { return std::min(per_round, n - k * per_round); };
  return Rounds(
      CeilDiv(n, per_round),
      [&](int64_t k) {
        for (int32_t p = 0; p < world_; ++p) {
          Copy(view_.in(me_, k) + p * room, At(send, (p * n + k * per_round) * size), here(k) * size);
        }
      },
      [&](int64_t k) {
        for (int32_t p = 0; p < world_; ++p) operands_[p] = view_.in(p, k) + me_ * room;
        void* const target = At(receive, k * per_round * size);
        Reduce(fold_.plan(), type, op, operands_, &scratch_, {&target, 1}, here(k));
      });
}

Status RegionCommunicator::AllGather(const void* send, void* receive, ElementCount count, CommType type) {
  CallHeader call{.kind = CallKind::kAllGather, .type = static_cast<int32_t>(type), .count = count.value()};
  TUTTI_RETURN_IF_ERROR(Open(call));
  const int64_t bytes = count.value() * SizeOf(type);
  if (bytes <= kSmallBytes) {
    Copy(view_.small(me_, parity_), send, bytes);
    TUTTI_RETURN_IF_ERROR(Meet());
    for (int32_t p = 0; p < world_; ++p) Copy(At(receive, p * bytes), view_.small(p, parity_), bytes);
    return OkStatus();
  }
  TUTTI_RETURN_IF_ERROR(Meet());
  const auto here = [&](int64_t k) { return std::min(kStageBytes, bytes - k * kStageBytes); };
  return Rounds(
      CeilDiv(bytes, kStageBytes), [&](int64_t k) { Copy(view_.in(me_, k), At(send, k * kStageBytes), here(k)); },
      [&](int64_t k) {
        for (int32_t p = 0; p < world_; ++p) Copy(At(receive, p * bytes + k * kStageBytes), view_.in(p, k), here(k));
      });
}

Status RegionCommunicator::AllToAll(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) {
  TUTTI_CHECK(static_cast<int32_t>(send.size()) == world_ && static_cast<int32_t>(receive.size()) == world_);
  TUTTI_RETURN_IF_ERROR(Open({.kind = CallKind::kAllToAll}));
  int64_t* own = view_.row(me_, parity_);
  for (int32_t p = 0; p < world_; ++p) {
    own[p] = static_cast<int64_t>(send[p].size());
    own[world_ + p] = static_cast<int64_t>(receive[p].size());
  }
  TUTTI_RETURN_IF_ERROR(Meet());
  std::vector<int64_t> sent, expected;
  for (int32_t r = 0; r < world_; ++r) {
    const int64_t* row = view_.row(r, parity_);
    sent.insert(sent.end(), row, row + world_);
    expected.insert(expected.end(), row + world_, row + 2 * world_);
  }
  const Status agreed = CheckAllToAll(call_, sent, expected);
  if (!agreed.ok()) return peer_.Poison(agreed.code(), -1, Message(agreed));
  const int64_t room = PartBytes(1);
  const auto here = [&](int64_t k, size_t bytes) { return std::min(room, static_cast<int64_t>(bytes) - k * room); };
  return Rounds(
      CeilDiv(*std::max_element(sent.begin(), sent.end()), room),
      [&](int64_t k) {
        for (int32_t p = 0; p < world_; ++p)
          Copy(view_.in(me_, k) + p * room, send[p].data() + k * room, here(k, send[p].size()));
      },
      [&](int64_t k) {
        for (int32_t p = 0; p < world_; ++p) {
          Copy(receive[p].data() + k * room, view_.in(p, k) + me_ * room, here(k, receive[p].size()));
        }
      });
}

Status RegionCommunicator::Broadcast(void* data, ElementCount count, CommType type, Rank root) {
  TUTTI_CHECK(0 <= root.value() && root.value() < world_);
  CallHeader call{.kind = CallKind::kBroadcast, .type = static_cast<int32_t>(type), .root = root.value()};
  call.count = count.value();
  TUTTI_RETURN_IF_ERROR(Open(call));
  const int64_t bytes = count.value() * SizeOf(type);
  const bool sends = me_ == root.value();
  if (bytes <= kSmallBytes) {
    if (sends) Copy(view_.small(me_, parity_), data, bytes);
    TUTTI_RETURN_IF_ERROR(Meet());
    if (!sends) Copy(data, view_.small(root.value(), parity_), bytes);
    return OkStatus();
  }
  TUTTI_RETURN_IF_ERROR(Meet());
  const auto here = [&](int64_t k) { return std::min(kStageBytes, bytes - k * kStageBytes); };
  return Rounds(
      CeilDiv(bytes, kStageBytes),
      [&](int64_t k) {
        if (sends) Copy(view_.in(me_, k), At(data, k * kStageBytes), here(k));
      },
      [&](int64_t k) {
        if (!sends) Copy(At(data, k * kStageBytes), view_.in(root.value(), k), here(k));
      });
}

Status RegionCommunicator::SendRecv(std::span<const std::byte> send, Rank to, std::span<std::byte> receive, Rank from) {
  CallHeader call{.kind = CallKind::kSendRecv};
  if (!send.empty()) call.to = to.value(), call.send_bytes = static_cast<int64_t>(send.size());
  if (!receive.empty()) call.from = from.value(), call.receive_bytes = static_cast<int64_t>(receive.size());
  TUTTI_CHECK(call.to < world_ && call.from < world_ && call.to >= -1 && call.from >= -1);
  TUTTI_RETURN_IF_ERROR(Open(call));
  TUTTI_RETURN_IF_ERROR(Meet());
  int64_t largest = 0;
  for (const CallHeader& c : calls_) largest = std::max(largest, c.send_bytes);
  const auto here = [&](int64_t k, size_t bytes) {
    return std::min(kStageBytes, static_cast<int64_t>(bytes) - k * kStageBytes);
  };
  return Rounds(
      CeilDiv(largest, kStageBytes),
      [&](int64_t k) { Copy(view_.in(me_, k), send.data() + k * kStageBytes, here(k, send.size())); },
      [&](int64_t k) {
        if (call.from < 0) return;
        Copy(receive.data() + k * kStageBytes, view_.in(call.from, k), here(k, receive.size()));
      });
}

Status RegionCommunicator::Barrier() {
  TUTTI_RETURN_IF_ERROR(Open({.kind = CallKind::kBarrier}));
  return Meet();
}

void RegionCommunicator::Abort(const std::string& reason) {
  const Status poison = peer_.Poison(absl::StatusCode::kAborted, me_, fmt::format("rank {} aborted: {}", me_, reason));
  TUTTI_CHECK(!poison.ok());
}

}  // namespace tutti
