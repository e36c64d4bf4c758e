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
  std::vector<int64_t> offsets;  // one per lifetime, multiples of kTensorAlignment
  int64_t total_bytes = 0;
  int64_t lower_bound_bytes = 0;  // the largest sum of sizes alive at one step: no plan can be smaller
};

// Greedy by size (largest first; ties by first use, then by index): each goes into the smallest gap between the already
// placed ones that are alive at the same time.
MemoryPlan PlanMemory(std::span<const Lifetime> lifetimes);

// The buffers of a straight-line program: who uses which when, and which may lie in one place.
class BufferTable {
 public:
  int Add(int64_t bytes);          // returns the buffer's number
  void Use(int buffer, int step);  // read or written; all uses come before the first Share call

  // `output` holds the same bytes as `input`, made at `step` (a view).
  void ShareView(int output, int input);
  // At `step` a kernel may write `output` over `input`. Done, and true, where nobody uses input's memory after that
  // step, no other operand of the step (`operands`: its inputs, `input` once) lies there, and nothing else took it.
  bool ShareInPlace(int output, int input, int step, std::span<const int> operands);

  // Offsets per buffer.
  MemoryPlan Plan() const;

 private:
  struct Storage {
    Lifetime lifetime;
    int taken_at = -1;  // step that wrote another buffer over it
  };
  int Root(int buffer) const;
  void Join(int output, int input);
  std::vector<Storage> storages_;  // valid at roots
  std::vector<int> parents_;
};

// What the intermediates of `graph` need on any CPU, before it is compiled: plain layout with channels padded to 16,
// legal aliases in place. Upper bound for planning; the compiled program has the exact number.
StatusOr<MemoryPlan> PlanGraphMemory(const Graph& graph, const OpRegistry& ops);

}  // namespace tutti
