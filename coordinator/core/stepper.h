// One call of Step: the state, what became dirty, and the actions so far. Internal to coordinator/core.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"

namespace tutti::coordinator {

class Stepper {
 public:
  Stepper(State& state, int64_t unix_ms) : state_(state), unix_ms_(unix_ms) {}

  void Handle(const Tick&);
  void Handle(const CreateJob& event);
  void Handle(const CancelJob& event);
  void Handle(const UndoCreate& event);
  void Handle(const AgentConnected& event);
  void Handle(const AgentSaid& event);
  void Handle(const AgentGone& event);

  void PlaceWaiting();  // jobs.cc: assigns whatever fits
  void MarkMeta() { meta_dirty_ = true; }
  std::vector<Action> Flush();  // gives revisions to what changed; Persist first

 private:
  // core.cc
  void MarkJob(const JobEntry& entry) { dirty_jobs_.insert(entry.job().id()); }
  void MarkNode(const NodeEntry& entry) { dirty_nodes_.insert(entry.node.name()); }
  v1::JobStatus* StatusOf(JobEntry& entry) { return entry.row.mutable_job()->mutable_status(); }
  void SetState(JobEntry& entry, v1::JobState state);
  void SetCondition(JobEntry& entry, std::string_view type, std::string message);
  void Do(Action action) { actions_.push_back(std::move(action)); }
  void Send(uint64_t stream, v1::ConnectResponse message);
  void SendToNode(const std::string& node, v1::ConnectResponse message);  // nothing when it is not connected
  void Answer(uint64_t request, const JobEntry& entry, bool created);

  // jobs.cc
  void Assign(JobEntry& entry, std::vector<v1::NodeShare> nodes, std::vector<std::string> reasons);
  v1::StartJob MakeStart(const JobEntry& entry) const;
  void Finish(JobEntry& entry, v1::JobState state, std::string reason, std::string message);
  void Forget(JobEntry& entry);  // decided shares that ended: tells agents, drops them

  // agents.cc
  void Reconcile(NodeEntry& node, const v1::AgentReport& report);
  void AdoptReported(NodeEntry& node, const v1::RunningJob& running);
  void AdoptGeneration(JobEntry& entry, const v1::RunningJob& running);
  void TakeReported(JobEntry& entry, v1::Share* share, const v1::RunningJob& running);
  void ResolveAbsent(NodeEntry& node, const std::set<std::pair<std::string, int64_t>>& reported);
  void SendRevoke(const std::string& node, const JobEntry& entry, int64_t up_to, v1::Intent intent, int64_t grace_ms,
                  bool forget);
  void SendAcks(size_t at_least);

  // ranks.cc
  void OnRankEvent(NodeEntry& node, const v1::RankEventReport& report);
  void OnExited(NodeEntry& node, const v1::RankExited& exited);
  void OnEnded(NodeEntry& node, const std::string& job_id, int64_t generation);
  void OnStartFailed(NodeEntry& node, const v1::StartFailed& failed);
  bool Accept(JobEntry& entry, v1::Share* share, int64_t sequence);  // false: kept already
  void ApplyRankEvent(JobEntry& entry, const v1::RankEvent& event);
  void ApplyStarted(JobEntry& entry, int32_t rank, const v1::RankStarted& started);
  void ApplyStep(JobEntry& entry, const v1::StepRecord& step);
  void ApplyCheckpoint(JobEntry& entry, const v1::CheckpointRecord& checkpoint);
  void ApplyFailure(JobEntry& entry, int32_t rank, const v1::RankFailure& failure);
  void RecordSeries(const JobEntry& entry, const v1::RankEvent& event);
  void SharePeers(JobEntry& entry);
  void Progressed(JobEntry& entry);

  // failure.cc
  void BadEnd(JobEntry& entry, int32_t rank);
  void OutsideFailure(JobEntry& entry, v1::Failure failure);
  void StopGeneration(JobEntry& entry, v1::Intent intent, int64_t grace_ms);
  void Settle(JobEntry& entry);  // decides the outcome once no rank of the newest generation is alive
  void Fail(JobEntry& entry);
  static std::vector<int32_t> NeverReady(const JobEntry& entry);
  v1::Failure ChooseCause(const JobEntry& entry) const;

  // liveness.cc
  void CheckDeadlines(JobEntry& entry);
  void CheckStall(JobEntry& entry);
  void CheckNodes();
  bool MayEvict(const NodeEntry& node) const;
  void Evict(NodeEntry& node);

  State& state_;
  const int64_t unix_ms_;
  std::set<std::string> dirty_jobs_;
  std::set<std::string> dirty_nodes_;
  bool meta_dirty_ = false;
  std::vector<Action> actions_;
};

// The newest generation is assigned and its outcome not decided.
bool IsActive(const JobEntry& entry);
void RememberPlace(JobEntry& entry);  // of the newest assignment, for reading logs later
v1::Share* FindShare(JobEntry& entry, int64_t generation, const std::string& node);
v1::RankStatus* FindRank(JobEntry& entry, int32_t rank);  // of the newest generation; nullptr

}  // namespace tutti::coordinator
