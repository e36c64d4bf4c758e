// How ranks of one process (local) or one host (shm) wait for each other in the memory that they share. Internal to
// comm.
//
// Every rank makes the same sequence of ticks (a counter in its slot), so a tick number says how far a rank is: what a
// rank wrote before tick t may be read by whoever saw t.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/comm/call.h"
#include "engine/comm/communicator.h"
#include "engine/comm/region_layout.h"

namespace tutti {

struct RegionOptions {
  std::shared_ptr<std::byte> memory;
  int32_t world_size = 1;
  Rank rank;
  int64_t window_bytes = 0;
  Millis timeout{0};
  bool processes = false;  // peers are processes: watch whether they live
};

// One rank's end of a region: ticks, waits, poison.
class RegionPeer {
 public:
  explicit RegionPeer(const RegionOptions& options);
  ~RegionPeer();

  // Claims this rank's slot; Attach then waits until everybody claimed theirs. See AttachShm.
  Status Claim(Generation generation);
  Status Attach(Generation generation, Millis timeout);

  const RegionView& view() const { return view_; }
  int32_t rank() const { return rank_; }
  uint32_t ticks() const { return ticks_; }

  void Tick();                                                                    // publishes what was written
  Status WaitAll(uint32_t tick);                                                  // until every rank made `tick`
  Status PoisonStatus() const;                                                    // OK when healthy
  Status Poison(absl::StatusCode code, int32_t blamed, const std::string& text);  // first one wins; returns the winner
  void set_title(const CallHeader* call) { call_ = call; }                        // named in errors

 private:
  bool Reached(int32_t peer, uint32_t tick) const;
  Status WaitFor(int32_t peer, uint32_t tick);
  bool Spin(int32_t peer, uint32_t tick);
  Status CheckPeers(uint32_t tick);  // ends the call when a rank that is still needed is gone
  Status TimedOut(uint32_t tick);
  bool Gone(int32_t peer);
  Status ClaimHeader(Generation generation);
  Status WaitAttached(Nanos deadline);
  void OpenPeers();

  std::shared_ptr<std::byte> memory_;
  RegionView view_;
  const int32_t rank_, world_size_;
  const int64_t window_bytes_;
  const Millis timeout_;
  const bool processes_;
  uint32_t ticks_ = 0;
  int64_t spin_ns_ = 0, max_spin_ns_ = 0;
  const CallHeader* call_ = nullptr;
  std::vector<UniqueFd> pidfds_;  // by rank; invalid: /proc is asked instead
};

}  // namespace tutti
