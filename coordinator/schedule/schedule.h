// Gang placement, pure: all ranks of a job or none. Jobs are taken in the order of the queue. A job that could run here
// but does not fit now reserves every slot that it may use, so that later ones never starve it; one that can never run
// reserves nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/v1/cluster.pb.h"
#include "tutti/v1/job.pb.h"

namespace tutti::coordinator {

struct SlotView {
  std::string id;
  v1::DeviceKind device = v1::DEVICE_KIND_UNSPECIFIED;
  int64_t cores = 0;
  int64_t memory_bytes = 0;       // 0: the agent does not know
  std::string holder;             // job id; empty: none
  bool locked_elsewhere = false;  // by a process that is not ours
};
struct NodeView {
  std::string name;
  bool usable = false;  // takes new ranks now
  std::vector<SlotView> slots;
};
struct ClusterView {
  std::vector<NodeView> nodes;  // registered and not lost, by name
};
struct PlacementRequest {
  std::string job_id;
  int64_t ranks = 1;
  v1::DeviceKind device = v1::DEVICE_KIND_CPU;
  int32_t cores_per_rank = 0;  // 0: whatever the slot has
  int64_t memory_bytes = 0;    // that a rank needs by the plan; 0: nothing was planned
};

struct Decision {
  std::string job_id;
  std::vector<v1::NodeShare> nodes{};  // in rank order; empty: not placed
  std::vector<std::string> reasons{};  // why there
  std::string reason{};                // not placed: "InsufficientSlots", "NeverFits", "NoNodes", "BehindOthers"
  std::string message{};               // "waiting: needs 2, free 1", "can never run: needs 5, total 2"
                                       // or "...: needs 2, each with 51.4 GiB of memory; ..."
  bool can_ever_run = true;            // false only once a node has registered
};

// One decision per request, in order. `partial` is the simulator's mutant: places what fits.
std::vector<Decision> Schedule(const ClusterView& cluster, const std::vector<PlacementRequest>& queue,
                               bool partial = false);

}  // namespace tutti::coordinator
