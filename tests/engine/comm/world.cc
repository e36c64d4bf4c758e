#include "tests/engine/comm/world.h"

#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "base/check.h"
#include "engine/comm/gloo.h"
#include "engine/comm/local.h"
#include "engine/comm/shm.h"
#include "engine/comm/shm_region.h"

namespace tutti {

const char* NameOf(Backend backend) {
  return backend == Backend::kLocal ? "Local" : backend == Backend::kShm ? "Shm" : "Gloo";
}

std::string WorldName(const ::testing::TestParamInfo<WorldParam>& info) {
  return fmt::format("{}{}", NameOf(std::get<0>(info.param)), std::get<1>(info.param));
}

int MakeShmRegion(int32_t world_size, int64_t window_bytes) {
  const int fd = ::memfd_create("tutti-test", MFD_CLOEXEC);
  TUTTI_CHECK(fd >= 0 && ::ftruncate(fd, ShmRegionBytes(world_size, window_bytes)) == 0);
  return fd;
}

Comms MakeWorld(Backend backend, int32_t world_size, Millis timeout, int64_t window_bytes) {
  if (backend == Backend::kLocal) return CreateLocalWorld({.world_size = world_size, .timeout = timeout});
  const UniqueFd region(backend == Backend::kShm ? MakeShmRegion(world_size, window_bytes) : -1);
  std::vector<std::unique_ptr<GlooEndpoint>> endpoints(world_size);
  std::vector<std::string> blobs(world_size);
  for (int32_t r = 0; r < world_size && backend == Backend::kGloo; ++r) {
    GlooOptions options{.address = "127.0.0.1", .rank = Rank(r), .world_size = world_size, .timeout = timeout};
    endpoints[r] = *GlooEndpoint::Create(options);
    blobs[r] = endpoints[r]->blob();
  }
  Comms comms(world_size);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      if (backend == Backend::kGloo) {
        comms[r] = *endpoints[r]->Connect(blobs, Millis(20'000));
        return;
      }
      ShmOptions options;
      options.fd = region.get();
      options.rank = Rank(r);
      options.world_size = world_size;
      options.window_bytes = window_bytes;
      options.timeout = timeout;
      comms[r] = *AttachShm(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return comms;
}

std::vector<Status> RunRanks(Comms& comms, const std::function<Status(Communicator&)>& fn) {
  std::vector<Status> statuses(comms.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms.size(); ++r) threads.emplace_back([&, r] { statuses[r] = fn(*comms[r]); });
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ExpectOk(Comms& comms, const std::function<Status(Communicator&)>& fn) {
  const std::vector<Status> statuses = RunRanks(comms, fn);
  for (size_t r = 0; r < statuses.size(); ++r) EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r];
}

}  // namespace tutti
