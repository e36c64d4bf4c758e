#include "coordinator/rpc/shell.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tutti::coordinator {
namespace {

constexpr Nanos kTick = std::chrono::milliseconds(100);
constexpr size_t kQueueCapacity = 4096;

// Whether `action` tells anyone of the job `id`.
bool Mentions(const Action& action, const std::string& id) {
  const SendToAgent* send = std::get_if<SendToAgent>(&action);
  return send != nullptr && send->message.has_start() && send->message.start().assignment().job_id() == id;
}

}  // namespace

StatusOr<std::unique_ptr<Shell>> Shell::Create(const Options& options, Journal* journal, SeriesStore* series,
                                               const Clock* clock) {
  TUTTI_ASSIGN_OR_RETURN(Rows rows, journal->Load());
  State state = LoadState(options, rows.meta, std::move(rows.jobs), std::move(rows.nodes));
  for (Action& action : BeginTerm(state)) {
    Persist* persist = std::get_if<Persist>(&action);
    TUTTI_CHECK(persist != nullptr, "a new term has nothing to do but to be kept");
    TUTTI_RETURN_IF_ERROR(Annotate(journal->Commit({persist->meta, {}, {}}), "begin a term"));
  }
  return std::unique_ptr<Shell>(new Shell(std::move(state), journal, series, clock));
}

Shell::Shell(State state, Journal* journal, SeriesStore* series, const Clock* clock)
    : state_(std::move(state)), journal_(journal), series_(series), clock_(clock) {
  strand_ = std::make_unique<Strand>(kTick, kQueueCapacity, [this](size_t tasks) { AfterBatch(tasks); });
}

Shell::~Shell() { strand_.reset(); }

void Shell::Apply(decltype(Event::what) what) {
  Take(Step(state_, Event{.unix_ms = clock_->UnixMillis(), .what = std::move(what)}, clock_->Monotonic()));
}

void Shell::Take(std::vector<Action> actions) {
  for (Action& action : actions) {
    if (Persist* persist = std::get_if<Persist>(&action); persist != nullptr) {
      for (v1::JobRow& row : persist->jobs) job_rows_[row.job().id()] = std::move(row);
      for (v1::NodeRow& row : persist->nodes) node_rows_[row.node().name()] = std::move(row);
      uncommitted_ = true;
    } else {
      actions_.push_back(std::move(action));
    }
  }
}

void Shell::Create(CreateJob event, std::function<void(const Reply&)> done) {
  event.request = ++next_request_;
  waiting_.emplace(event.request, std::move(done));
  Apply(std::move(event));
}

void Shell::Cancel(CancelJob event, std::function<void(const Reply&)> done) {
  event.request = ++next_request_;
  waiting_.emplace(event.request, std::move(done));
  Apply(std::move(event));
}

void Shell::AfterBatch(size_t tasks) {
  const Nanos now = clock_->Monotonic();
  const bool tick = tasks == 0 || now - last_tick_ >= kTick;
  if (tick) {
    last_tick_ = now;
    Apply(Tick{});
  }
  Commit();
  if (!uncommitted_) Perform();
  if (uncommitted_) return;  // nobody sees what is not durable
  const std::set<Follower*> followers = followers_;
  for (Follower* follower : followers) {
    if (followers_.contains(follower)) follower->OnBatch(state_);
  }
}

void Shell::Commit() {
  if (!uncommitted_) return;
  Rows rows{.meta = state_.meta, .jobs = {}, .nodes = {}};
  for (const auto& [id, row] : job_rows_) rows.jobs.push_back(row);
  for (const auto& [name, row] : node_rows_) rows.nodes.push_back(row);
  const Status status = journal_->Commit(rows);
  if (status.ok()) {
    if (disk_full_) LogInfo("there is room again: the journal is up to date");
    disk_full_ = uncommitted_ = false;
    job_rows_.clear();
    node_rows_.clear();
    return;
  }
  TUTTI_CHECK(absl::IsResourceExhausted(status), "{}; a restart continues from what is on disk, ranks go on",
              status.ToString());
  if (!disk_full_) LogError("{}: submits are refused until there is room, ranks go on", Message(status));
  disk_full_ = true;
  RefuseWaiting(status);
}

// Every reply that waits for the failed commit becomes a refusal; jobs that it would have acknowledged never were.
void Shell::RefuseWaiting(const Status& status) {
  std::vector<Reply> refused;
  std::erase_if(actions_, [&](Action& action) {
    Reply* reply = std::get_if<Reply>(&action);
    if (reply == nullptr) return false;
    refused.push_back(std::move(*reply));
    return true;
  });
  for (Reply& reply : refused) {
    if (reply.created) {
      const std::string id = reply.job.id();
      Apply(UndoCreate{id});
      job_rows_.erase(id);
      std::erase_if(actions_, [&](const Action& action) { return Mentions(action, id); });
    }
    if (reply.status.ok())
      reply.status = ResourceExhausted("the coordinator cannot write its journal: {}", Message(status));
    actions_.push_front(std::move(reply));
    PerformOne(actions_.front());
    actions_.pop_front();
  }
}

void Shell::Perform() {
  while (!actions_.empty() && PerformOne(actions_.front())) actions_.pop_front();
}

bool Shell::PerformOne(Action& action) {
  if (SendToAgent* send = std::get_if<SendToAgent>(&action); send != nullptr) {
    if (AgentSink* sink = FindAgent(send->stream); sink != nullptr) sink->Send(std::move(send->message));
  } else if (CloseStream* close = std::get_if<CloseStream>(&action); close != nullptr) {
    if (AgentSink* sink = FindAgent(close->stream); sink != nullptr) sink->Close(close->status);
  } else if (Reply* reply = std::get_if<Reply>(&action); reply != nullptr) {
    const auto it = waiting_.find(reply->request);
    TUTTI_CHECK(it != waiting_.end(), "request {} is answered twice", reply->request);
    const auto done = std::move(it->second);
    waiting_.erase(it);
    done(*reply);
  } else if (Record* record = std::get_if<Record>(&action); record != nullptr) {
    if (IsUlid(record->job_id)) {
      const Status status = series_->Append(record->job_id, record->record);
      if (absl::IsResourceExhausted(status)) return false;
      if (!status.ok()) LogError("step series: {}", Message(status));
    }
    for (Follower* follower : followers_) follower->OnRecord(record->job_id, record->record);
  } else if (Tell* tell = std::get_if<Tell>(&action); tell != nullptr) {
    LogInfo("{}", tell->line);
  }
  return true;
}

uint64_t Shell::AddAgent(AgentSink* sink) {
  agents_.emplace(++next_stream_, sink);
  if (closing_) sink->Close(Unavailable("the coordinator is shutting down"));
  return next_stream_;
}

void Shell::RemoveAgent(uint64_t stream) {
  if (agents_.erase(stream) > 0) Apply(AgentGone{stream});
}

AgentSink* Shell::FindAgent(uint64_t stream) const {
  const auto it = agents_.find(stream);
  return it == agents_.end() ? nullptr : it->second;
}

void Shell::RouteLog(const v1::LogChunk& chunk) {
  const std::set<Follower*> followers = followers_;
  for (Follower* follower : followers) {
    if (followers_.contains(follower)) follower->OnLog(chunk);
  }
}

void Shell::CloseAll() {
  closing_ = true;
  const Status status = Unavailable("the coordinator is shutting down");
  for (const auto& [stream, sink] : agents_) sink->Close(status);
  const std::set<Follower*> followers = followers_;
  for (Follower* follower : followers) follower->Close(status);
}

}  // namespace tutti::coordinator
