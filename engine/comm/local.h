// A world inside one process: rank r is whichever thread uses element r. For tests and for simulated worlds. Same
// algorithms as shm over private memory. A communicator that is dropped while others wait ends their calls with
// UNAVAILABLE.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/comm/communicator.h"

namespace tutti {

struct LocalOptions {
  int32_t world_size = 1;
  Millis timeout{60'000};  // without progress
};
std::vector<std::unique_ptr<Communicator>> CreateLocalWorld(const LocalOptions& options);

}  // namespace tutti
