// The additions behind every reduction, and reduction plans: which values of which ranks are added in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/tree_reduce.h"

namespace tutti {

// target[i] = op(left[i], right[i]); `target` may be `left` or `right`. Denormal results and operands are zero for f32,
// whatever the calling thread's mode: the bits must not depend on the thread.
void Combine(CommType type, ReduceOp op, void* target, const void* left, const void* right, int64_t count);

// Views of a plan: leaves (values in order, with their owners) and steps as in TreeReducer.
struct ReducePlan {
  std::span<const TreeLeaf> leaves;
  std::span<const ReduceStep> steps;
  int32_t temporaries = 0;
  int32_t max_partials = 1;
};
ReducePlan PlanOf(const TreeReducer& tree);

// One value per rank, added in rank order.
class FoldPlan {
 public:
  explicit FoldPlan(int32_t world_size);
  ReducePlan plan() const { return {leaves_, steps_, 1, 1}; }

 private:
  std::vector<TreeLeaf> leaves_;
  std::vector<ReduceStep> steps_;
};

// Runs a plan over `count` elements: values[i] belongs to leaf i; every target gets the result. Block by block, so that
// temporaries and results stay in the first-level cache. Targets may be values at the same address. `scratch` grows on
// first use only.
void Reduce(const ReducePlan& plan, CommType type, ReduceOp op, std::span<const void* const> values,
            std::vector<std::byte>* scratch, std::span<void* const> targets, int64_t count);

// Elements [begin, end) of n that rank `part` of `parts` reduces; inner borders are multiples of 16 elements.
struct PartRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
PartRange PartOf(int64_t n, int32_t parts, int32_t part);

}  // namespace tutti
