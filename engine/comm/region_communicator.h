// The collectives over shared memory: behind both CreateLocalWorld and AttachShm. Internal to comm.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/reduce.h"
#include "engine/comm/region.h"

namespace tutti {

class RegionCommunicator : public Communicator {
 public:
  static StatusOr<std::unique_ptr<RegionCommunicator>> Create(const RegionOptions& options, Generation generation,
                                                              Millis attach_timeout);
  // All ranks of a world inside this process.
  static std::vector<std::unique_ptr<Communicator>> CreateWorld(RegionOptions options);

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
  std::span<std::byte> window() const { return view_.window(me_); }

 private:
  explicit RegionCommunicator(const RegionOptions& options);

  // What one all-reduce works on; `values` are this rank's partials.
  struct Reduction {
    ReducePlan plan;
    CommType type;
    ReduceOp op;
    std::span<const void* const> values;
    void* result;
    int64_t count;
  };
  // One block of a staged all-reduce: elements [begin, begin + size) cut into a part per rank.
  struct Block {
    int64_t begin, size;
  };

  Status Open(CallHeader call);  // a new call: number, health
  Status Meet();                 // announces the call, waits for everybody's announcement, compares
  Status AllReduceWith(CallHeader call, const Reduction& reduction);
  Status ReduceSmall(const Reduction& reduction);
  Status ReduceInPlace(const Reduction& reduction);
  Status ReduceStaged(const Reduction& reduction);
  void StageBlock(const Reduction& reduction, Block block, int64_t round);
  void ReduceBlock(const Reduction& reduction, Block block, int64_t round);
  void CopyOutBlock(const Reduction& reduction, Block block, int64_t round);
  int64_t PartBytes(int32_t partials) const;  // room of one partial's part in a staging buffer
  int64_t WindowOffsetOf(const void* data, int64_t bytes) const;
  Announcement& announcement(int32_t rank) const { return view_.slot(rank).announcements[parity_]; }

  // `rounds` times: stage(round) into this rank's buffer, tick, wait for everybody's, consume(round).
  template <typename StageFn, typename ConsumeFn>
  Status Rounds(int64_t rounds, StageFn stage, ConsumeFn consume);

  const int32_t me_, world_;
  RegionPeer peer_;
  const RegionView& view_;
  std::atomic<int64_t> sequence_{0};
  int parity_ = 0;  // of the running call's number
  CallHeader call_;
  FoldPlan fold_;
  std::vector<CallHeader> calls_;
  std::vector<const void*> operands_;  // by leaf
  std::vector<void*> targets_;
  std::vector<std::byte> scratch_;
};

}  // namespace tutti
