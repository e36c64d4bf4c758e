// The one thread that owns the coordinator's state. Tasks run in the order of posting; after each batch of them, and at
// least every `tick`, the batch function runs (commit, perform, notify).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace tutti::coordinator {

class Strand {
 public:
  using Task = std::function<void()>;

  // `after_batch` is called with the number of tasks that ran before it (0: only time has passed).
  Strand(Nanos tick, size_t capacity, std::function<void(size_t)> after_batch);
  ~Strand();  // runs what is queued, then ends

  // Clients' work: false when the queue is full or the strand ends, and the task was not taken.
  bool TryPost(Task task);
  // Work that must not be lost and that its source bounds (one message per stream).
  void Post(Task task);

 private:
  void Run();

  const Nanos tick_;
  const size_t capacity_;
  const std::function<void(size_t)> after_batch_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Task> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::coordinator
