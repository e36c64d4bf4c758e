#include "engine/comm/tree_reduce.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tutti {
namespace {

// The maximal nodes of the tree below `node` that lie wholly inside `range`, left to right.
void Cover(ShardRange node, ShardRange range, std::vector<ShardRange>* out) {
  if (node.end <= range.begin || range.end <= node.begin) return;
  if (range.begin <= node.begin && node.end <= range.end) {
    out->push_back(node);
    return;
  }
  const int32_t middle = TreeSplit(node);
  Cover({node.begin, middle}, range, out);
  Cover({middle, node.end}, range, out);
}

// Inner nodes of the subtree, children before parents.
void PostOrder(ShardRange node, std::vector<ShardRange>* out) {
  if (node.size() < 2) return;
  const int32_t middle = TreeSplit(node);
  PostOrder({node.begin, middle}, out);
  PostOrder({middle, node.end}, out);
  out->push_back(node);
}

// Takes the lowest free number, or a new one.
int32_t Take(std::vector<int32_t>* free, int32_t* total) {
  if (free->empty()) return (*total)++;
  const auto lowest = std::min_element(free->begin(), free->end());
  const int32_t taken = *lowest;
  free->erase(lowest);
  return taken;
}

}  // namespace

ShardRange ShardsOfRank(int32_t shards, int32_t world_size, Rank rank) {
  TUTTI_CHECK(1 <= world_size && world_size <= shards, "{} shards, {} ranks", shards, world_size);
  TUTTI_CHECK(0 <= rank.value() && rank.value() < world_size, "rank {} of {}", rank.value(), world_size);
  const int32_t base = shards / world_size, more = shards % world_size, r = rank.value();
  const int32_t begin = r * base + std::min(r, more);
  return {begin, begin + base + (r < more ? 1 : 0)};
}

int32_t TreeSplit(ShardRange node) {
  return node.begin + static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(node.size() - 1)));
}

TreeReducer::TreeReducer(int32_t shards, int32_t world_size, Rank rank, int32_t lanes)
    : shards_(shards),
      world_size_(world_size),
      rank_(rank),
      lanes_(lanes),
      local_(ShardsOfRank(shards, world_size, rank)) {
  TUTTI_CHECK(lanes >= 1);
  for (int32_t r = 0; r < world_size; ++r) {
    std::vector<ShardRange> partials;
    Cover({0, shards}, ShardsOfRank(shards, world_size, Rank(r)), &partials);
    for (int32_t i = 0; i < static_cast<int32_t>(partials.size()); ++i) leaves_.push_back({partials[i], Rank(r), i});
    partials_of_.push_back(static_cast<int32_t>(partials.size()));
    if (r == rank.value()) partials_ = std::move(partials);
  }
  PlanWaves(lanes);
  std::vector<int32_t> free_temporaries;
  PlanSteps({0, shards}, &free_temporaries);
}

ShardRange TreeReducer::WaveShards(int32_t wave) const {
  const int32_t begin = local_.begin + wave * lanes_;
  return {begin, std::min(begin + lanes_, local_.end)};
}

void TreeReducer::PlanWaves(int32_t lanes) {
  std::vector<ShardRange> nodes;
  for (const ShardRange& partial : partials_) PostOrder(partial, &nodes);
  std::vector<int32_t> free;
  slot_of_.resize(local_.size());
  size_t next = 0;
  for (int32_t begin = local_.begin; begin < local_.end; begin += lanes) {
    const int32_t end = std::min(begin + lanes, local_.end);
    for (int32_t s = begin; s < end; ++s) slot_of_[s - local_.begin] = Take(&free, &slots_);
    std::vector<TreeMerge> merges;
    for (; next < nodes.size() && nodes[next].end <= end; ++next) {
      const int32_t from = SlotOf(TreeSplit(nodes[next]));
      merges.push_back({SlotOf(nodes[next].begin), from});
      free.push_back(from);
    }
    merges_.push_back(std::move(merges));
  }
  for (const ShardRange& partial : partials_) partial_slots_.push_back(SlotOf(partial.begin));
}

// Returns the value id of `node`: a leaf, or the temporary that holds its sum.
int32_t TreeReducer::PlanSteps(ShardRange node, std::vector<int32_t>* free_temporaries) {
  const int32_t leaves = static_cast<int32_t>(leaves_.size());
  for (int32_t i = 0; i < leaves; ++i) {
    if (leaves_[i].shards == node) return i;
  }
  const int32_t middle = TreeSplit(node);
  const int32_t left = PlanSteps({node.begin, middle}, free_temporaries);
  const int32_t right = PlanSteps({middle, node.end}, free_temporaries);
  for (const int32_t operand : {left, right}) {
    if (operand >= leaves) free_temporaries->push_back(operand - leaves);
  }
  const int32_t target = leaves + Take(free_temporaries, &temporaries_);
  steps_.push_back({target, left, right});
  return target;
}

int32_t TreeReducer::MaxPartials() const { return *std::max_element(partials_of_.begin(), partials_of_.end()); }

Bytes TreeReducer::BytesSent(ElementCount count) const {
  const int64_t r = rank_.value(), world = world_size_;
  const int64_t own = count.value() * (r + 1) / world - count.value() * r / world;
  return Bytes(4 * ((count.value() - own) * PartialsOf(rank_) + own * (world - 1)));
}

}  // namespace tutti
