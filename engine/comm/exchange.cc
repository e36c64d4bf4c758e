#include "engine/comm/exchange.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/clock.h"

namespace tutti {

std::vector<Bucket> CutBuckets(std::span<const int64_t> boundaries, Bytes target_bytes) {
  const int64_t target = std::max<int64_t>(1, target_bytes.value() / 4);
  std::vector<Bucket> buckets;
  int64_t begin = 0;
  for (const int64_t end : boundaries) {
    if (end - begin < target) continue;
    buckets.push_back({begin, end});
    begin = end;
  }
  const int64_t end = boundaries.empty() ? 0 : boundaries.back();
  if (begin == end) return buckets;
  if (!buckets.empty() && (end - begin) * 2 < target) {
    buckets.back().end = end;
  } else {
    buckets.push_back({begin, end});
  }
  return buckets;
}

struct BucketExchanger::Impl {
  explicit Impl(ExchangeOptions o) : options(std::move(o)), ready(options.buckets.size(), 0) {
    const TreeReducer& tree = *options.tree;
    TUTTI_CHECK(static_cast<int32_t>(options.slots.size()) == tree.slots(), "{} buffers for {} slots",
                options.slots.size(), tree.slots());
    partials.resize(tree.partial_slots().size());
  }

  void Run();
  Status ReduceBucket(const Bucket& bucket);

  const ExchangeOptions options;
  std::vector<const float*> partials;  // of the running bucket
  std::mutex mutex;
  std::condition_variable wake_worker, wake_waiter;
  std::vector<char> ready;           // by bucket: started in this step
  size_t started = 0, finished = 0;  // in this step
  int64_t busy_ns = 0;
  bool stopping = false;
  Status error;
  std::thread thread;
};

Status BucketExchanger::Impl::ReduceBucket(const Bucket& bucket) {
  const TreeReducer& tree = *options.tree;
  const int64_t count = bucket.end - bucket.begin;
  for (const TreeMerge& merge : tree.MergesAfterWave(tree.waves() - 1)) {
    AddInto(options.slots[merge.into] + bucket.begin, options.slots[merge.from] + bucket.begin, count);
  }
  for (size_t i = 0; i < partials.size(); ++i) partials[i] = options.slots[tree.partial_slots()[i]] + bucket.begin;
  float* result = options.result + bucket.begin;
  if (options.mode == ReduceMode::kTree)
    return options.comm->TreeAllReduce(tree, partials, result, ElementCount(count));
  if (result != partials[0]) std::memcpy(result, partials[0], count * sizeof(float));
  for (size_t i = 1; i < partials.size(); ++i) AddInto(result, partials[i], count);
  return options.comm->AllReduce(result, ElementCount(count), CommType::kF32, ReduceOp::kSum);
}

void BucketExchanger::Impl::Run() {
  std::unique_lock lock(mutex);
  for (;;) {
    wake_worker.wait(lock, [&] { return stopping || (finished < ready.size() && ready[finished] != 0); });
    if (stopping) return;
    const int32_t index = static_cast<int32_t>(finished);
    const bool healthy = error.ok();
    lock.unlock();
    const Nanos begin = SystemClock().Monotonic();
    const Status status = healthy ? ReduceBucket(options.buckets[index]) : OkStatus();
    if (healthy && status.ok() && options.on_reduced) options.on_reduced(index);
    const Nanos end = SystemClock().Monotonic();
    lock.lock();
    busy_ns += (end - begin).count();
    if (!status.ok()) error = status;
    if (++finished == ready.size()) wake_waiter.notify_all();
  }
}

BucketExchanger::BucketExchanger(ExchangeOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
  if (impl_->options.cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : impl_->options.cores) CPU_SET(core, &set);
  const int failed = ::pthread_setaffinity_np(impl_->thread.native_handle(), sizeof(set), &set);
  TUTTI_CHECK(failed == 0, "cores of the communication thread: error {}", failed);
}

BucketExchanger::~BucketExchanger() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake_worker.notify_all();
  impl_->thread.join();
}

int32_t BucketExchanger::buckets() const { return static_cast<int32_t>(impl_->options.buckets.size()); }

void BucketExchanger::Start(int32_t bucket) {
  {
    const std::lock_guard lock(impl_->mutex);
    TUTTI_CHECK(impl_->ready.at(bucket) == 0, "bucket {} started twice in a step", bucket);
    impl_->ready[bucket] = 1;
    ++impl_->started;
  }
  impl_->wake_worker.notify_one();
}

StatusOr<BucketExchanger::Timings> BucketExchanger::WaitAll() {
  const Nanos begin = SystemClock().Monotonic();
  std::unique_lock lock(impl_->mutex);
  TUTTI_CHECK(impl_->started == impl_->ready.size(), "{} of {} buckets started", impl_->started, impl_->ready.size());
  impl_->wake_waiter.wait(lock, [&] { return impl_->finished == impl_->ready.size(); });
  const Timings timings{impl_->busy_ns, (SystemClock().Monotonic() - begin).count()};
  std::fill(impl_->ready.begin(), impl_->ready.end(), 0);
  impl_->started = impl_->finished = 0;
  impl_->busy_ns = 0;
  if (!impl_->error.ok()) return impl_->error;
  return timings;
}

}  // namespace tutti
