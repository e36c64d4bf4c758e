// Watches one job from a thread of its own: reconnects and resumes by token, queues what comes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/client.h"

namespace tutti::cli {

class Follower {
 public:
  // `client` must outlive it. `patience`: gives up when the coordinator was away for so long; zero: never.
  static StatusOr<std::unique_ptr<Follower>> Start(Client* client, const std::string& job_id, Nanos patience);
  ~Follower();

  int wake_fd() const { return wake_.get(); }  // readable when there is something to take
  std::vector<v1::WatchJobsResponse> Take();
  Status status() const;  // not OK: it ended for good, with the reason
  void Stop();

 private:
  Follower(Client* client, std::string job_id, Nanos patience, UniqueFd wake);
  void Loop();
  void Notify();

  Client* const client_;
  const std::string job_id_;
  const Nanos patience_;
  UniqueFd wake_;
  StreamStopper stopper_;
  mutable std::mutex mutex_;
  std::condition_variable pause_;
  bool stopping_ = false;
  std::vector<v1::WatchJobsResponse> events_;
  Status status_;
  std::thread thread_;
};

}  // namespace tutti::cli
