// Lifetimes -> offsets in one block. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/ops/op.h"

namespace tutti {

inline constexpr int64_t kTensorAlignment = 64;
constexpr int64_t AlignUp(int64_t bytes, int64_t alignment = kTensorAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Memory that is in use from step `first` to step `last`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;   // one per lifetime, multiples of kTensorAlignment
  int64_t total_bytes = 0;
  int64_t lower_bound_bytes = 0;  // the largest sum of sizes alive at one step: no plan can be smaller
};

// Greedy by size (largest first; ties by first use, then by index): each goes into the smallest gap between the already placed ones
// that are alive at the same time.
MemoryPlan PlanMemory(std::span<const Lifetime> lifetimes);

// What the intermediates of `graph` need on any CPU, before it is compiled: plain layout with channels padded to 16, legal aliases
// in place. Upper bound for planning; the compiled program has the exact number.
StatusOr<MemoryPlan> PlanGraphMemory(const Graph& graph, const OpRegistry& ops);

}  // namespace tutti
