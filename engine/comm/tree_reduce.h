// The summation tree of the numerics contract, and who does which part of it. Pure; no communication here.
//
// V logical shards are the leaves of a fixed left-balanced binary tree: a node over n > 1 leaves has the greatest power
// of two below n in its left child. A rank owns neighbouring shards, adds those that form complete subtrees of the tree
// on its own (its partials), and Communicator::TreeAllReduce adds the partials of all ranks in tree order. Every pair
// of operands that is ever added is a node's two children, so the bits depend on V alone.
//
// On a rank shards run in waves of `lanes` side by side. Gradients live in slots() buffers ("slots"), reused as
// subtrees complete:
//   for each wave w:  shard s of WaveShards(w) writes buffer SlotOf(s);
//                     then for each m of MergesAfterWave(w), in order:  AddInto(buffer[m.into], buffer[m.from], count)
//   buffers partial_slots() now hold partials(), ready for TreeAllReduce.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace tutti {

struct ShardRange {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};
// Neighbouring shards, sizes differ by at most one, larger ones first. 1 <= world_size <= shards.
ShardRange ShardsOfRank(int32_t shards, int32_t world_size, Rank rank);

// First leaf of the right child of the node over `node` (size > 1).
int32_t TreeSplit(ShardRange node);

// into[i] += from[i], denormals flushed, vectorised; the only addition that gradients ever see. Ranges may not overlap.
void AddInto(float* into, const float* from, int64_t count);

struct TreeMerge {
  int32_t into = 0, from = 0;  // slots
  bool operator==(const TreeMerge&) const = default;
};

// One addition of the sum across ranks: value[target] = value[left] + value[right]. Values 0 .. M-1 are the partials of
// all ranks in shard order; M, M+1, ... are temporaries; the last step's target is the result.
struct ReduceStep {
  int32_t target = 0, left = 0, right = 0;
};

struct TreeLeaf {
  ShardRange shards;
  Rank owner;
  int32_t index = 0;  // in the owner's partials
};

class TreeReducer {
 public:
  // 1 <= world_size <= shards, lanes >= 1.
  TreeReducer(int32_t shards, int32_t world_size, Rank rank, int32_t lanes = 1);

  int32_t shards() const { return shards_; }
  int32_t world_size() const { return world_size_; }
  Rank rank() const { return rank_; }
  ShardRange local_shards() const { return local_; }

  int32_t waves() const { return static_cast<int32_t>(merges_.size()); }
  ShardRange WaveShards(int32_t wave) const;
  std::span<const TreeMerge> MergesAfterWave(int32_t wave) const { return merges_[wave]; }
  int32_t slots() const { return slots_; }
  int32_t SlotOf(int32_t shard) const { return slot_of_[shard - local_.begin]; }  // a local shard
  std::span<const ShardRange> partials() const { return partials_; }  // this rank's largest complete subtrees
  std::span<const int32_t> partial_slots() const { return partial_slots_; }

  std::span<const TreeLeaf> leaves() const { return leaves_; }  // partials of all ranks, in shard order
  int32_t PartialsOf(Rank rank) const { return partials_of_[rank.value()]; }
  int32_t MaxPartials() const;                                  // over all ranks
  std::span<const ReduceStep> steps() const { return steps_; }  // empty when there is one leaf
  int32_t temporaries() const { return temporaries_; }

  // Bytes that this rank sends for a sum of `count` floats: its partials of everybody else's part, then its summed part
  // to everybody. Equal to a ring's 2 (R - 1) / R * 4 * count (to one element per part) where each rank has one
  // partial.
  Bytes BytesSent(ElementCount count) const;

 private:
  void PlanWaves(int32_t lanes);
  int32_t PlanSteps(ShardRange node, std::vector<int32_t>* free_temporaries);

  int32_t shards_, world_size_;
  Rank rank_;
  int32_t lanes_;
  ShardRange local_;
  std::vector<ShardRange> partials_;
  std::vector<std::vector<TreeMerge>> merges_;  // by wave
  int32_t slots_ = 0;
  std::vector<int32_t> slot_of_, partial_slots_, partials_of_;
  std::vector<TreeLeaf> leaves_;
  std::vector<ReduceStep> steps_;
  int32_t temporaries_ = 0;
};

}  // namespace tutti
