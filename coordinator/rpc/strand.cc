#include "coordinator/rpc/strand.h"

#include <utility>

namespace tutti::coordinator {

Strand::Strand(Nanos tick, size_t capacity, std::function<void(size_t)> after_batch)
    : tick_(tick), capacity_(capacity), after_batch_(std::move(after_batch)), thread_([this] { Run(); }) {}

Strand::~Strand() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool Strand::TryPost(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= capacity_) return false;
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void Strand::Post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Strand::Run() {
  while (true) {
    std::vector<Task> batch;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, tick_, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_ && queue_.empty()) return;
      batch.swap(queue_);
    }
    for (Task& task : batch) task();
    const size_t count = batch.size();
    batch.clear();
    after_batch_(count);
  }
}

}  // namespace tutti::coordinator
