// Where one rank is: shared by the parts of a trainer, read when something failed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/train/trainer.h"
#include "tutti/v1/rank.pb.h"

namespace tutti {

class RunState {
 public:
  RunState(const v1::RankConfig& config, Communicator& comm, const TrainerHooks& hooks)
      : comm(comm), clock(hooks.clock != nullptr ? *hooks.clock : SystemClock()), config_(config), hooks_(hooks) {}

  // Marks what is being done; `doing` must be a literal.
  void Enter(v1::Phase phase, std::string_view doing) {
    const bool changed = phase != phase_;
    phase_ = phase;
    doing_ = doing;
    if (changed) Beat();
  }
  void set_step(int64_t step) { step_ = step; }
  int64_t step() const { return step_; }

  // Passes on the status of a collective; an error is remembered as the peers' or the world's, not this rank's own.
  Status Collective(Status status) {
    if (!status.ok()) failed_in_collective_ = true;
    return status;
  }
  bool failed_in_collective() const { return failed_in_collective_; }

  std::string Where() const;       // "gradient exchange #31 of step 10412"
  void Beat();                     // a heartbeat now
  void BeatIfDue();                // at most one a second
  void Emit(v1::RankEvent event);  // fills in generation, rank and time
  void Notice(v1::NoticeLevel level, std::string message);
  bool is_root() const { return config_.rank() == 0; }
  const ControlBox* control() const { return hooks_.control; }

  Communicator& comm;
  const Clock& clock;

 private:
  const v1::RankConfig& config_;
  const TrainerHooks& hooks_;
  v1::Phase phase_ = v1::PHASE_UNSPECIFIED;
  std::string_view doing_ = "start";
  int64_t step_ = 0;
  bool failed_in_collective_ = false;
  Nanos last_beat_{0};
};

// Milliseconds from `start` to `end`.
inline double MillisBetween(Nanos start, Nanos end) {
  return std::chrono::duration<double, std::milli>(end - start).count();
}

}  // namespace tutti
