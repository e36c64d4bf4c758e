#include <algorithm>
#include <deque>

#include "coordinator/rpc/job_streams.h"
#include "coordinator/rpc/stream_call.h"

namespace tutti::coordinator {
namespace {

constexpr int64_t kChunkBytes = 256 << 10;
constexpr Nanos kPollEvery = std::chrono::milliseconds(200);
constexpr Nanos kAnswerWithin = std::chrono::seconds(10);

// Asks the agent for one chunk at a time; what was sent is the cursor.
class LogsCall : public StreamCall<v1::ReadLogsResponse> {
 public:
  LogsCall(Shell* shell, const v1::ReadLogsRequest& request) : StreamCall(shell), request_(request) {}

  void OnLog(const v1::LogChunk& chunk) override {
    if (asked_.empty() || chunk.request_id() != asked_) return;
    asked_.clear();
    if (!chunk.error().empty()) return Retry(NotFound("{}", chunk.error()));
    offset_ = chunk.offset() + static_cast<int64_t>(chunk.data().size());
    at_end_ = offset_ >= chunk.size();
    rank_ended_ = chunk.ended();
    next_ask_ = at_end_ ? shell()->clock().Monotonic() + kPollEvery : Nanos(0);
    if (!chunk.data().empty()) {
      v1::ReadLogsResponse response;
      response.set_data(chunk.data());
      response.set_generation(generation_);
      response.set_rank(request_.rank());
      response.set_next_offset(offset_);
      ready_ = std::move(response);
    }
    Pump();
  }

 private:
  void Begin() override {
    offset_ = request_.offset();
    generation_ = request_.generation();
    const StatusOr<const JobEntry*> job = FindJob(shell()->state(), request_.id());
    if (!job.ok()) return End(ToGrpc(job.status()));
    job_id_ = (*job)->job().id();
    const int64_t newest = (*job)->status().generation();
    if (request_.rank() < 0 || request_.rank() >= std::max<int64_t>(1, (*job)->job().spec().resources().ranks())) {
      return End(
          BadRequest({{"rank", fmt::format("{}: job {} has ranks 0 to {}", request_.rank(), job_id_,
                                           std::max<int64_t>(1, (*job)->job().spec().resources().ranks()) - 1)}}));
    }
    if (generation_ < 0 || generation_ > newest) {
      return End(
          BadRequest({{"generation", fmt::format("{}: the newest of job {} is {}", generation_, job_id_, newest)}}));
    }
    if (newest == 0 && !request_.follow()) {
      End(ToGrpc(FailedPrecondition("job {} has not started: {}", job_id_, (*job)->status().wait_reason())));
    }
  }

  std::optional<v1::ReadLogsResponse> Next() override {
    if (ready_) return std::exchange(ready_, std::nullopt);
    const auto it = shell()->state().jobs.find(job_id_);
    if (it == shell()->state().jobs.end()) {
      End(ToGrpc(NotFound("job {} is gone", job_id_)));
      return std::nullopt;
    }
    const JobEntry& entry = it->second;
    if (generation_ == 0) generation_ = entry.status().generation();
    const bool over = rank_ended_ || IsTerminal(entry.status().state()) ||
                      (generation_ > 0 && generation_ <= entry.row.concluded_generation());
    if (at_end_ && (!request_.follow() || over)) {
      End(grpc::Status::OK);
      return std::nullopt;
    }
    Ask(entry, over);
    return std::nullopt;
  }

  void Ask(const JobEntry& entry, bool over) {
    const Nanos now = shell()->clock().Monotonic();
    if (!asked_.empty()) {
      if (now - asked_at_ > kAnswerWithin) {
        asked_.clear();
        Retry(Unavailable("node {} does not answer", node_));
      }
      return;
    }
    if (now < next_ask_) return;
    if (generation_ == 0) {
      if (over) End(ToGrpc(FailedPrecondition("job {} ended before it started", job_id_)));
      return;
    }
    if (!Locate(entry))
      return Retry(NotFound("where generation {} of job {} ran is not known any more", generation_, job_id_));
    const auto node = shell()->state().nodes.find(node_);
    AgentSink* agent = node == shell()->state().nodes.end() ? nullptr : shell()->FindAgent(node->second.stream);
    if (agent == nullptr) return Retry(Unavailable("node {}, which has the log, is not connected", node_));
    asked_ = shell()->NewRequestId();
    asked_at_ = now;
    at_end_ = false;
    v1::ConnectResponse message;
    v1::ReadLog* read = message.mutable_read_log();
    read->set_request_id(asked_);
    read->set_job_id(job_id_);
    read->set_generation(generation_);
    read->set_rank(request_.rank());
    read->set_offset(offset_);
    read->set_max_bytes(kChunkBytes);
    agent->Send(std::move(message));
  }

  bool Locate(const JobEntry& entry) {
    for (const v1::Assignment& place : entry.row.history()) {
      if (place.generation() != generation_) continue;
      for (const v1::NodeShare& share : place.nodes()) {
        if (request_.rank() < share.first_rank() || request_.rank() >= share.first_rank() + share.slots_size())
          continue;
        node_ = share.node();
        return true;
      }
    }
    return false;
  }

  // Who follows a rank that may still write waits; who only reads is told.
  void Retry(const Status& why) {
    const auto it = shell()->state().jobs.find(job_id_);
    const bool may_come = request_.follow() && it != shell()->state().jobs.end() &&
                          !IsTerminal(it->second.status().state()) &&
                          generation_ > it->second.row.concluded_generation();
    if (!may_come) return End(ToGrpc(why));
    next_ask_ = shell()->clock().Monotonic() + kPollEvery;
  }

  const v1::ReadLogsRequest request_;
  std::string job_id_;
  int64_t generation_ = 0;
  std::string node_;
  int64_t offset_ = 0;
  std::string asked_;  // the request that is under way
  Nanos asked_at_{0};
  Nanos next_ask_{0};
  bool at_end_ = false;
  bool rank_ended_ = false;
  std::optional<v1::ReadLogsResponse> ready_;
};

// Steps and evaluations, read on the background thread, sent in pieces.
class MetricsCall : public StreamCall<v1::ReadMetricsResponse> {
 public:
  MetricsCall(Shell* shell, Strand* background, const v1::ReadMetricsRequest& request)
      : StreamCall(shell), background_(background), request_(request) {}

  // Fails the call when the background thread is too busy.
  void Begin() override {
    const StatusOr<const JobEntry*> job = FindJob(shell()->state(), request_.id());
    if (!job.ok()) return End(ToGrpc(job.status()));
    // The client may leave meanwhile, and this object with it.
    auto guard = guard_;
    const bool taken =
        background_->TryPost([this, guard, shell = shell(), id = (*job)->job().id(), after = request_.after_step()] {
          auto series = std::make_shared<StatusOr<Series>>(shell->series().Read(id, after));
          shell->Post([this, guard, series] {
            if (*guard) Deliver(*series);
          });
        });
    if (!taken) End(ToGrpc(Unavailable("busy: try again")));
  }

  ~MetricsCall() override { *guard_ = false; }

 private:
  static constexpr size_t kPerMessage = 1024;

  void Deliver(const StatusOr<Series>& series) {
    if (!series.ok()) return End(ToGrpc(series.status()));
    series_ = *series;
    ready_ = true;
    Pump();
  }

  std::optional<v1::ReadMetricsResponse> Next() override {
    if (!ready_) return std::nullopt;
    if (at_ >= series_.steps.size() && evaluations_sent_) {
      End(grpc::Status::OK);
      return std::nullopt;
    }
    v1::ReadMetricsResponse response;
    for (size_t i = 0; i < kPerMessage && at_ < series_.steps.size(); ++i) *response.add_steps() = series_.steps[at_++];
    if (at_ >= series_.steps.size()) {
      for (const v1::EvalRecord& evaluation : series_.evaluations) *response.add_evaluations() = evaluation;
      evaluations_sent_ = true;
    }
    return response;
  }

  Strand* const background_;
  const v1::ReadMetricsRequest request_;
  std::shared_ptr<bool> guard_ = std::make_shared<bool>(true);  // only looked at on the shell's strand
  Series series_;
  bool ready_ = false;
  bool evaluations_sent_ = false;
  size_t at_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadLogsResponse>* NewLogsCall(Shell* shell, const v1::ReadLogsRequest& request,
                                                            const grpc::Status& allowed) {
  auto* call = new LogsCall(shell, request);
  call->Start(allowed);
  return call;
}

grpc::ServerWriteReactor<v1::ReadMetricsResponse>* NewMetricsCall(Shell* shell, Strand* background,
                                                                  const v1::ReadMetricsRequest& request,
                                                                  const grpc::Status& allowed) {
  auto* call = new MetricsCall(shell, background, request);
  call->Start(allowed);
  return call;
}

}  // namespace tutti::coordinator
