#include "engine/comm/local.h"

#include <sys/mman.h>

#include "base/check.h"
#include "engine/comm/region_communicator.h"

namespace tutti {

std::vector<std::unique_ptr<Communicator>> CreateLocalWorld(const LocalOptions& options) {
  const int64_t bytes = RegionView::TotalBytes(options.world_size, 0);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TUTTI_CHECK(memory != MAP_FAILED, "no memory for {} ranks ({} bytes)", options.world_size, bytes);
  const std::shared_ptr<std::byte> shared(static_cast<std::byte*>(memory),
                                          [bytes](std::byte* p) { ::munmap(p, bytes); });
  RegionOptions region;
  region.memory = shared;
  region.world_size = options.world_size;
  region.timeout = options.timeout;
  return RegionCommunicator::CreateWorld(region);
}

}  // namespace tutti
