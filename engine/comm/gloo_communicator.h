// The collectives over a GlooLink. Internal to comm.
//
// Each call starts with one message from everybody to everybody: the call's announcement, with the data where it is
// small. Large sums go block by block: each rank gets its part of a block from all, adds in plan order, and sends the
// sum to all, which are as many bytes as a ring moves.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/gloo_link.h"
#include "engine/comm/reduce.h"

namespace tutti {

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(std::unique_ptr<GlooLink> link);

  Rank rank() const override { return Rank(me_); }
  int32_t world_size() const override { return world_; }
  Status AllReduce(void* data, ElementCount count, CommType type, ReduceOp op) override;
  Status TreeAllReduce(const TreeReducer& tree, std::span<const float* const> partials, float* result,
                       ElementCount count) override;
  Status ReduceScatter(const void* send, void* receive, ElementCount count, CommType type, ReduceOp op) override;
  Status AllGather(const void* send, void* receive, ElementCount count, CommType type) override;
  Status AllToAll(std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> receive) override;
  Status Broadcast(void* data, ElementCount count, CommType type, Rank root) override;
  Status SendRecv(std::span<const std::byte> send, Rank to, std::span<std::byte> receive, Rank from) override;
  Status Barrier() override;
  void Abort(const std::string& reason) override;
  int64_t sequence() const override { return sequence_.load(); }

 private:
  struct Reduction {
    ReducePlan plan;
    CommType type;
    ReduceOp op;
    std::span<const void* const> values;  // this rank's partials
    void* result;
    int64_t count;
  };
  struct Block {
    int64_t begin, size;  // elements
  };

  Status Open(CallHeader call);
  // Exchanges announcements with the first `inline_bytes` of outbox_'s payload; compares them.
  Status Meet(int64_t inline_bytes);
  std::byte* payload(int32_t rank) { return inbox_[rank].data() + sizeof(CallHeader); }
  uint64_t Slot(int channel) const { return static_cast<uint64_t>(sequence_.load()) * 4 + channel; }
  Status AllReduceWith(CallHeader call, const Reduction& reduction);
  Status ReduceBlocks(const Reduction& reduction);
  Status PostBlock(const Reduction& reduction, Block block, int64_t round);
  Status FinishBlock(const Reduction& reduction, Block block, int64_t round);

  std::unique_ptr<GlooLink> link_;
  const int32_t me_, world_;
  std::atomic<int64_t> sequence_{0};
  CallHeader call_;
  FoldPlan fold_;
  std::vector<CallHeader> calls_;
  std::vector<std::vector<std::byte>> inbox_;  // by rank: announcement and payload; the own one is what is sent
  std::vector<std::byte> parts_;               // two rounds of everybody's partials of the own part
  std::vector<const void*> operands_;
  std::vector<std::byte> scratch_;
};

}  // namespace tutti
