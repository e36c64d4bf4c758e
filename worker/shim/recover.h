// What a dead shim left behind: makes its folder say how the run ended.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tutti/v1/agent.pb.h"
#include "tutti/v1/shim.pb.h"
#include "worker/shim/event_log.h"

namespace tutti::worker {

// Call with shim.lock held, so that no shim lives. Ranks whose end is not recorded are killed (by pid and start time)
// and recorded as RANK_STATE_LOST with signal 9, or exit code 255 where that is not known, 127 where they never began;
// events.bin then ends with all_exited. Does nothing more where it already does. `node`: whose ranks of `start`.
Status RecoverRun(const std::string& run_directory, const v1::StartJob& start, const std::string& node);

// The state that the events of a run amount to, as a living shim would tell it.
StatusOr<v1::ShimState> StateFromDisk(const std::string& run_directory, const v1::StartJob& start,
                                      const std::string& node);

}  // namespace tutti::worker
