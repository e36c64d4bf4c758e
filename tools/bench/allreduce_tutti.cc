// Time of one all-reduce between ranks of this host, each a process on its own core: allreduce_tutti RANKS BYTES
// ITERATIONS [window]. Prints microseconds per call as rank 0 sees it. "window": the buffers lie in the shared region,
// as a trainer may place them.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/process.h"
#include "engine/comm/shm.h"
#include "engine/comm/shm_region.h"

namespace tutti {
namespace {

constexpr int kMemory = 3;

struct Arguments {
  int32_t ranks;
  int64_t bytes, iterations;
  bool window;
};

int RunRank(int32_t rank, const Arguments& a) {
  ShmOptions options;
  options.fd = kMemory;
  options.rank = Rank(rank);
  options.world_size = a.ranks;
  options.window_bytes = a.window ? a.bytes : 0;
  auto comm = AttachShm(options);
  TUTTI_CHECK_OK(comm.status());
  const int64_t n = a.bytes / 4;
  std::vector<float> own(a.window ? 0 : n);
  float* data = a.window ? reinterpret_cast<float*>(ShmWindow(**comm).data()) : own.data();
  const auto reduce = [&] {
    TUTTI_CHECK_OK((*comm)->AllReduce(data, ElementCount(n), CommType::kF32, ReduceOp::kSum));
  };
  for (int64_t i = 0; i < n; ++i) data[i] = static_cast<float>(rank + i % 3);
  reduce();
  const int64_t w = a.ranks;
  for (int64_t i = 0; i < n; ++i)
    TUTTI_CHECK(data[i] == static_cast<float>(w * (w - 1) / 2 + w * (i % 3)), "wrong sum");
  for (int64_t i = 0; i < n; ++i) data[i] = 0;  // zeros stay finite
  for (int64_t i = 0; i < 1 + a.iterations / 10; ++i) reduce();
  TUTTI_CHECK_OK((*comm)->Barrier());
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < a.iterations; ++i) reduce();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - begin;
  if (rank == 0) std::printf("%.3f\n", elapsed.count() / static_cast<double>(a.iterations));
  return 0;
}

int RunAll(char** argv, const Arguments& a) {
  const UniqueFd memory(::memfd_create("allreduce", MFD_CLOEXEC));
  TUTTI_CHECK(::ftruncate(memory.get(), ShmRegionBytes(a.ranks, a.window ? a.bytes : 0)) == 0);
  const std::vector<int> cores = AllowedCores();
  std::vector<pid_t> pids;
  for (int32_t r = 0; r < a.ranks; ++r) {
    SpawnOptions options;
    options.argv = {"/proc/self/exe", argv[1], argv[2], argv[3], a.window ? "window" : "plain", std::to_string(r)};
    options.environment = CurrentEnvironment();
    options.descriptors = {{0, 0}, {1, 1}, {2, 2}, {kMemory, memory.get()}};
    options.cores = {cores[r % cores.size()]};
    const auto pid = Spawn(options);
    TUTTI_CHECK_OK(pid.status());
    pids.push_back(*pid);
  }
  int failed = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    TUTTI_CHECK(::waitpid(pid, &status, 0) == pid);
    failed += status != 0;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: allreduce_tutti RANKS BYTES ITERATIONS [window]\n");
    return 2;
  }
  const tutti::Arguments a{std::stoi(argv[1]), std::stoll(argv[2]), std::stoll(argv[3]),
                           argc > 4 && std::string(argv[4]) == "window"};
  return argc > 5 ? tutti::RunRank(std::stoi(argv[5]), a) : tutti::RunAll(argv, a);
}
