// Size of the shared memory of one generation's ranks on one host. Whoever starts the ranks creates a memfd of this
// size (memfd_create + ftruncate: zero-filled) and every rank inherits its descriptor; see engine/comm/shm.h. Pages
// that are never touched cost nothing.
#pragma once

#include <cstdint>

namespace tutti {

// `window_bytes`: memory of each rank inside the region that peers read and write in place, without a copy (ShmWindow
// in engine/comm/shm.h); 0: none, everything goes through a staging area of fixed size, so messages of any size work
// either way.
int64_t ShmRegionBytes(int32_t world_size, int64_t window_bytes);

}  // namespace tutti
