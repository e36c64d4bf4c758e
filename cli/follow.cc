#include "cli/follow.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace tutti::cli {
namespace {

constexpr size_t kMaxQueued = 10'000;  // a reader that is so far behind loses step records, never changes of the job
constexpr auto kReconnectPause = std::chrono::milliseconds(50);

bool MayReconnect(absl::StatusCode code) {
  return code == absl::StatusCode::kOk || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kCancelled ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kOutOfRange;
}

}  // namespace

StatusOr<std::unique_ptr<Follower>> Follower::Start(Client* client, const std::string& job_id, Nanos patience) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "make an eventfd");
  return std::unique_ptr<Follower>(new Follower(client, job_id, patience, std::move(wake)));
}

Follower::Follower(Client* client, std::string job_id, Nanos patience, UniqueFd wake)
    : client_(client), job_id_(std::move(job_id)), patience_(patience), wake_(std::move(wake)), thread_([this] {
        Loop();
      }) {}

Follower::~Follower() { Stop(); }

void Follower::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pause_.notify_all();
  stopper_.Stop();
  if (thread_.joinable()) thread_.join();
}

void Follower::Notify() {
  const uint64_t one = 1;
  // A full counter already wakes the reader.
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<v1::WatchJobsResponse> Follower::Take() {
  uint64_t count = 0;
  while (::read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

Status Follower::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void Follower::Loop() {
  v1::WatchJobsRequest request;
  request.set_id(job_id_);
  Nanos last_contact = SystemClock().Monotonic();
  for (;;) {
    const Status status = client_->WatchJobs(request, &stopper_, [&](const v1::WatchJobsResponse& event) {
      last_contact = SystemClock().Monotonic();
      if (!event.resume_token().empty()) request.set_resume_token(event.resume_token());
      const std::lock_guard lock(mutex_);
      if (event.has_step() && events_.size() >= kMaxQueued) return true;
      events_.push_back(event);
      Notify();
      return true;
    });
    if (status.code() == absl::StatusCode::kOutOfRange) request.clear_resume_token();  // too old: begin with a snapshot
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    const bool patient = patience_.count() == 0 || SystemClock().Monotonic() - last_contact < patience_;
    if (!MayReconnect(status.code()) || !patient) {
      status_ =
          status.ok() ? Unavailable("the coordinator at {} ends the watch each time", client_->address()) : status;
      Notify();
      return;
    }
    pause_.wait_for(lock, kReconnectPause, [this] { return stopping_; });
    if (stopping_) return;
  }
}

}  // namespace tutti::cli
