// Gradient exchange that overlaps with backward. A bucket is a range of the flat gradient array; the compute thread
// starts it when the last local shards wrote it, a communication thread reduces started buckets in index order (the
// same on every rank).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tree_reduce.h"

namespace tutti {

struct Bucket {
  int64_t begin = 0, end = 0;  // elements
};

// Cuts [0, boundaries.back()) into buckets of at least `target_bytes` that end at one of `boundaries` (ascending ends
// of the tensors in the flat array, in the order in which their gradients become ready); a rest below half of the
// target joins the last bucket.
std::vector<Bucket> CutBuckets(std::span<const int64_t> boundaries, Bytes target_bytes);

enum class ReduceMode {
  kTree,  // bits depend on the number of shards alone
  kFast,  // local partials in order, then the backend's own all-reduce
};

struct ExchangeOptions {
  Communicator* comm =
      nullptr;  // used by the communication thread between the first Start and the end of WaitAll; not owned
  const TreeReducer* tree = nullptr;  // not owned
  ReduceMode mode = ReduceMode::kTree;
  std::vector<float*> slots;  // tree->slots() flat gradient arrays, by slot
  float* result = nullptr;    // flat array for the sum; may be slots[tree->partial_slots()[0]]
  std::vector<Bucket> buckets;
  // By the communication thread, as soon as a bucket's sum is in `result` and likely still in the cache; may be empty.
  std::function<void(int32_t bucket)> on_reduced;
  std::vector<int> cores;  // affinity of the communication thread; empty: inherited
};

class BucketExchanger {
 public:
  explicit BucketExchanger(ExchangeOptions options);
  ~BucketExchanger();  // ends the thread; a running collective must have ended or been aborted (Communicator::Abort)
                       // before
  BucketExchanger(const BucketExchanger&) = delete;

  int32_t buckets() const;

  // Every local shard's gradient of this bucket is in its slot, all earlier waves are merged (MergesAfterWave of all
  // but the last wave); the last wave's merges are done here. From any one thread, once per bucket and step, in any
  // order. Does not allocate or block.
  void Start(int32_t bucket);

  struct Timings {
    int64_t busy_ns = 0;     // of the communication thread, waiting for peers included
    int64_t exposed_ns = 0;  // that WaitAll blocked: what nothing overlapped
  };
  // Waits for all buckets (each was started), then is ready for the next step. After an error, which is the
  // communicator's, `result` is undefined and every later WaitAll returns the same error.
  StatusOr<Timings> WaitAll();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
