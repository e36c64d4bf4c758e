#include <algorithm>
#include <charconv>
#include <deque>
#include <vector>

#include "coordinator/rpc/job_streams.h"
#include "coordinator/rpc/stream_call.h"

namespace tutti::coordinator {
namespace {

constexpr Nanos kStepEvery = std::chrono::milliseconds(100);
constexpr Nanos kBookmarkEvery = std::chrono::seconds(10);
constexpr size_t kRecordsKept = 1024;

// Snapshot, SYNCED, changes, bookmarks. A job's changes are merged to its newest state while the client is slow; none
// is missed, for the newest is always sent.
class WatchCall : public StreamCall<v1::WatchJobsResponse> {
 public:
  WatchCall(Shell* shell, const v1::WatchJobsRequest& request) : StreamCall(shell), request_(request) {}

  void OnRecord(const std::string& job_id, const v1::SeriesRecord& record) override {
    if (only_.empty() || job_id != only_) return;
    if (record.has_step()) {
      step_ = record.step();
      return;
    }
    if (step_) records_.push_back(StepResponse());  // keeps its place before what follows it
    v1::WatchJobsResponse response;
    if (record.has_evaluation()) *response.mutable_evaluation() = record.evaluation();
    if (record.has_checkpoint()) *response.mutable_checkpoint() = record.checkpoint();
    if (record.has_notice()) *response.mutable_notice() = record.notice();
    records_.push_back(std::move(response));
    if (records_.size() > kRecordsKept) records_.pop_front();
  }

 private:
  void Begin() override {
    const State& state = shell()->state();
    if (!request_.id().empty()) {
      const StatusOr<const JobEntry*> job = FindJob(state, request_.id());
      if (!job.ok()) return End(ToGrpc(job.status()));
      only_ = (*job)->job().id();
    }
    last_write_ = shell()->clock().Monotonic();
    revision_ = state.meta.revision();
    if (request_.resume_token().empty()) {
      if (!only_.empty()) {
        snapshot_.push_back(only_);
      } else {
        for (const auto& [id, entry] : state.jobs) snapshot_.push_back(id);
      }
      return;
    }
    const std::string& token = request_.resume_token();
    int64_t asked = -1;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), asked);
    if (error != std::errc() || end != token.data() + token.size()) {
      return End(ToGrpc(InvalidArgument("resume_token '{}' is none of ours", token.substr(0, 64))));
    }
    if (asked < state.forgotten_revision || asked > revision_) {
      return End(ToGrpc(OutOfRange("resume_token {} is not in what is kept ({} to {}): begin with a fresh snapshot",
                                   asked, state.forgotten_revision, revision_)));
    }
    revision_ = asked;
  }

  std::optional<v1::WatchJobsResponse> Next() override {
    const Nanos now = shell()->clock().Monotonic();
    std::optional<v1::WatchJobsResponse> response = Choose(now);
    if (!response) return response;
    response->set_resume_token(fmt::format("{}", revision_));
    last_write_ = now;
    return response;
  }

  std::optional<v1::WatchJobsResponse> Choose(Nanos now) {
    const State& state = shell()->state();
    v1::WatchJobsResponse response;
    while (!snapshot_.empty()) {
      const auto it = state.jobs.find(snapshot_.front());
      snapshot_.pop_front();
      if (it == state.jobs.end()) continue;
      *response.mutable_snapshot() = it->second.job();
      return response;
    }
    if (!synced_) {
      synced_ = true;
      response.set_synced(true);
      return response;
    }
    if (!records_.empty()) {
      response = std::move(records_.front());
      records_.pop_front();
      return response;
    }
    const JobEntry* changed = FindChange(state);
    if (ended()) return std::nullopt;
    if (step_ && (now - last_step_ >= kStepEvery || changed != nullptr)) {
      last_step_ = now;
      return StepResponse();
    }
    if (changed != nullptr) {
      revision_ = changed->job().revision();
      *response.mutable_changed() = changed->job();
      return response;
    }
    revision_ = state.meta.revision();
    if (now - last_write_ < kBookmarkEvery) return std::nullopt;
    response.set_bookmark(true);
    return response;
  }

  v1::WatchJobsResponse StepResponse() {
    v1::WatchJobsResponse response;
    *response.mutable_step() = *step_;
    step_.reset();
    return response;
  }

  // The next job that changed since `revision_`, at its newest change.
  const JobEntry* FindChange(const State& state) {
    if (revision_ < state.forgotten_revision) {
      End(ToGrpc(OutOfRange("too slow: changes up to {} are forgotten; begin with a fresh snapshot",
                            state.forgotten_revision)));
      return nullptr;
    }
    auto it = std::upper_bound(state.changes.begin(), state.changes.end(), revision_,
                               [](int64_t revision, const Change& change) { return revision < change.revision; });
    for (; it != state.changes.end(); ++it) {
      if (!only_.empty() && it->job_id != only_) continue;
      const auto job = state.jobs.find(it->job_id);
      if (job != state.jobs.end() && job->second.job().revision() == it->revision) return &job->second;
    }
    return nullptr;
  }

  const v1::WatchJobsRequest request_;
  std::string only_;
  int64_t revision_ = 0;  // everything up to here was sent
  std::deque<std::string> snapshot_;
  bool synced_ = false;
  std::deque<v1::WatchJobsResponse> records_;
  std::optional<v1::StepRecord> step_;
  Nanos last_step_{0};
  Nanos last_write_{0};
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobsResponse>* NewWatchCall(Shell* shell, const v1::WatchJobsRequest& request,
                                                              const grpc::Status& allowed) {
  auto* call = new WatchCall(shell, request);
  call->Start(allowed);
  return call;
}

}  // namespace tutti::coordinator
