// The coordinator's services for the command line. Every unary call has a deadline; streams can be ended from another
// thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "tutti/v1/api.pb.h"

namespace tutti::cli {

inline constexpr int64_t kCallDeadlineMs = 10'000;

struct Target {
  std::string address;          // "unix:PATH" or "HOST:PORT"
  std::string token;            // empty on a Unix socket
  bool wait_for_start = false;  // calls wait for a coordinator that is not there yet, up to their deadline
};

// Ends a stream that another thread reads. One stream at a time.
class StreamStopper {
 public:
  void Stop();  // from any thread; also what begins later ends at once
  bool stopped() const;

 private:
  friend class Client;
  void Set(std::function<void()> cancel);
  mutable std::mutex mutex_;
  std::function<void()> cancel_;
  bool stopped_ = false;
};

class Client {
 public:
  explicit Client(const Target& target);
  ~Client();

  // UNAVAILABLE and DEADLINE_EXCEEDED name the address; UNAUTHENTICATED says how to give a token.
  StatusOr<v1::CreateJobResponse> CreateJob(const v1::CreateJobRequest& request);
  StatusOr<v1::Job> GetJob(const std::string& id);
  StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  StatusOr<v1::Job> CancelJob(const std::string& id, bool force, int64_t deadline_ms = kCallDeadlineMs);
  StatusOr<v1::PlanJobResponse> PlanJob(const v1::PlanJobRequest& request);
  StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request);
  StatusOr<v1::Node> GetNode(const std::string& name);
  StatusOr<v1::GetVersionResponse> GetVersion();

  // Until the stream ends, `on_event` says false, or it is stopped (then OK).
  Status WatchJobs(const v1::WatchJobsRequest& request, StreamStopper* stopper,
                   const std::function<bool(const v1::WatchJobsResponse&)>& on_event);
  Status ReadLogs(const v1::ReadLogsRequest& request, StreamStopper* stopper,
                  const std::function<bool(const v1::ReadLogsResponse&)>& on_chunk);

  const std::string& address() const { return target_.address; }

 private:
  struct Stubs;
  Target target_;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace tutti::cli
