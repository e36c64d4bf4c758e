#include "engine/runtime/lanes.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/process.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

Status Validate(const LaneOptions& options) {
  if (options.lanes < 1 || options.threads < 1)
    return InvalidArgument("{} lanes of {} threads: expected at least one of each", options.lanes, options.threads);
  if (options.cores.empty()) return OkStatus();
  if (options.cores.size() != static_cast<size_t>(options.lanes))
    return InvalidArgument("cores for {} lanes, expected {}", options.cores.size(), options.lanes);
  const std::vector<int> allowed = AllowedCores();
  for (const std::vector<int>& lane : options.cores)
    for (int core : lane)
      if (std::find(allowed.begin(), allowed.end(), core) == allowed.end())
        return InvalidArgument("core {} is not among those that this process may use", core);
  return OkStatus();
}

void PinCallingThread(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(static_cast<size_t>(core), &set);
  // Allowed when the pool was made; a core that was taken away since costs speed only.
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

// A call is published by raising `call`; lanes that have run it raise `done`. Waiting is std::atomic's: a short spin,
// then a futex.
struct LanePool::Impl {
  LaneOptions options;
  void (*fn)(void*, int) = nullptr;
  void* context = nullptr;
  bool stopping = false;
  std::atomic<uint32_t> call{0};
  std::atomic<uint32_t> done{0};
  std::vector<std::thread> threads;

  void Work(int lane) {
    // OpenMP workers inherit affinity from the thread that starts their team.
    PinCallingThread(options.cores.empty() ? std::vector<int>() : options.cores[static_cast<size_t>(lane)]);
    omp_set_num_threads(options.threads);
    FlushDenormalsInTeam(options.threads);
    for (uint32_t seen = 0;; ++seen) {
      call.wait(seen, std::memory_order_acquire);
      if (stopping) return;
      fn(context, lane);
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == threads.size()) done.notify_one();
    }
  }

  void Publish() {
    call.fetch_add(1, std::memory_order_release);
    call.notify_all();
  }
};

StatusOr<std::unique_ptr<LanePool>> LanePool::Create(const LaneOptions& options) {
  TUTTI_RETURN_IF_ERROR(Validate(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->threads.resize(static_cast<size_t>(options.lanes));
  for (int lane = 0; lane < options.lanes; ++lane)
    impl->threads[static_cast<size_t>(lane)] = std::thread([state = impl.get(), lane] { state->Work(lane); });
  return std::unique_ptr<LanePool>(new LanePool(std::move(impl)));
}

LanePool::LanePool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LanePool::~LanePool() {
  impl_->stopping = true;
  impl_->Publish();
  for (std::thread& thread : impl_->threads) thread.join();
}

int LanePool::lanes() const { return impl_->options.lanes; }
int LanePool::threads() const { return impl_->options.threads; }

void LanePool::RunAllErased(void (*fn)(void* context, int lane), void* context) {
  impl_->fn = fn;
  impl_->context = context;
  impl_->done.store(0, std::memory_order_relaxed);
  impl_->Publish();
  for (uint32_t seen = 0; seen != impl_->threads.size(); seen = impl_->done.load(std::memory_order_acquire))
    impl_->done.wait(seen, std::memory_order_acquire);
}

}  // namespace tutti
