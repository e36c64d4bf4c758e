// A fixed pool of threads ("lanes") that compute shards of one rank side by side. Each lane has its own OpenMP team,
// its own cores and flushes denormals. RunAll allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace tutti {

struct LaneOptions {
  int lanes = 1;
  int threads = 1;                           // OpenMP threads of each lane
  std::vector<std::vector<int>> cores = {};  // per lane: CPU numbers that its team may use; empty: no pinning
};

class LanePool {
 public:
  // INVALID_ARGUMENT: fewer than one lane or thread, `cores` of another length, or a core that this process may not
  // use.
  static StatusOr<std::unique_ptr<LanePool>> Create(const LaneOptions& options);
  ~LanePool();

  int lanes() const;
  int threads() const;

  // Runs fn(lane) on every lane at once and returns when all are done; what they wrote is visible then. Compile
  // programs and run them through here, so that primitives are created and executed with one thread count. One call at
  // a time; not from a lane.
  template <typename Fn>
  void RunAll(Fn&& fn) {
    RunAllErased([](void* context, int lane) { (*static_cast<std::remove_reference_t<Fn>*>(context))(lane); }, &fn);
  }

 private:
  struct Impl;
  explicit LanePool(std::unique_ptr<Impl> impl);
  void RunAllErased(void (*fn)(void* context, int lane), void* context);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
