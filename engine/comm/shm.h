// Ranks of one host over one preallocated memfd (engine/comm/shm_region.h). A rank that waits spins for a bounded time
// where every rank can have a core of its own, then sleeps on a futex and looks every 50 ms whether its peers still
// live.
#pragma once

#include <memory>
#include <span>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/comm/communicator.h"

namespace tutti {

struct ShmOptions {
  int fd = -1;  // the memfd; only read during Attach, the caller keeps it
  Rank rank;
  int32_t world_size = 1;
  Generation generation{1};       // a region serves one generation
  int64_t window_bytes = 0;       // as given to ShmRegionBytes
  Millis timeout{60'000};         // without progress
  Millis attach_timeout{60'000};  // until every rank is there
};

// Blocks until all ranks attached. INVALID_ARGUMENT: the region is too small. FAILED_PRECONDITION: it belongs to
// another generation or world, or the rank is taken. DEADLINE_EXCEEDED names the ranks that did not come.
StatusOr<std::unique_ptr<Communicator>> AttachShm(const ShmOptions& options);

// This rank's window of a communicator made by AttachShm, 64-byte aligned; empty without one. AllReduce and
// TreeAllReduce whose buffers all lie at the same window offsets on every rank are done in place; others are staged.
std::span<std::byte> ShmWindow(Communicator& comm);

}  // namespace tutti
