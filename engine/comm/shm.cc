#include "engine/comm/shm.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "engine/comm/region_communicator.h"

namespace tutti {

StatusOr<std::unique_ptr<Communicator>> AttachShm(const ShmOptions& o) {
  if (o.world_size < 1 || o.rank.value() < 0 || o.rank.value() >= o.world_size || o.generation.value() < 1 ||
      o.window_bytes < 0) {
    return InvalidArgument("shared memory: rank {} of {}, generation {}, window of {} bytes", o.rank.value(),
                           o.world_size, o.generation.value(), o.window_bytes);
  }
  struct stat info;
  if (::fstat(o.fd, &info) != 0) return ErrnoStatus(errno, fmt::format("shared memory, descriptor {}", o.fd));
  const int64_t bytes = RegionView::TotalBytes(o.world_size, o.window_bytes);
  if (info.st_size < bytes) {
    return InvalidArgument("shared memory has {} bytes, {} ranks with windows of {} bytes need {}", info.st_size,
                           o.world_size, o.window_bytes, bytes);
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, o.fd, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mapping {} bytes of shared memory", bytes));
  const std::shared_ptr<std::byte> shared(static_cast<std::byte*>(memory),
                                          [bytes](std::byte* p) { ::munmap(p, bytes); });
  const RegionOptions options{.memory = shared,
                              .world_size = o.world_size,
                              .rank = o.rank,
                              .window_bytes = o.window_bytes,
                              .timeout = o.timeout,
                              .processes = true};
  return RegionCommunicator::Create(options, o.generation, o.attach_timeout);
}

std::span<std::byte> ShmWindow(Communicator& comm) {
  auto* region = dynamic_cast<RegionCommunicator*>(&comm);
  return region == nullptr ? std::span<std::byte>() : region->window();
}

}  // namespace tutti
