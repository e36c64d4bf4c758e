// The body of tutti-shim: parent and subreaper of one run's ranks. Single-threaded; needs no agent once it is started.
//
// An agent may come and go; the newest connection wins. Every fact is in the run's folder before an agent hears of it
// (worker/launch/layout.h). It returns once no process of the run is alive and the attached agent, if any, was told all
// (or said Release): what is on disk then tells the rest.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/shim.pb.h"
#include "worker/shim/agent_connection.h"
#include "worker/shim/event_log.h"
#include "worker/shim/rank_process.h"

namespace tutti::worker {

class Shim {
 public:
  // `listener`: on the run's shim.sock. `signals`: a signalfd of SIGCHLD and SIGTERM, which are blocked. The process is
  // a subreaper.
  Shim(v1::ShimConfig config, UniqueFd listener, UniqueFd signals);

  // Starts the ranks and serves until the end of the run. An error: nothing was started.
  Status Run();

 private:
  struct Poll;
  Status Open();
  void StartRanks();
  void Turn();
  int TimeoutMs(Nanos now) const;
  void OnSignals(Nanos now);
  void Reap(Nanos now);
  void FinishRank(RankProcess& rank, const ExitStatus& exit, Nanos now);
  void Accept(Nanos now);
  void OnAgent(Nanos now);
  void OnRequest(const v1::ShimRequest& request, Nanos now);
  void DropAgent(Nanos now);
  void OnRankEvents(std::vector<v1::RankEvent> events);
  void Command(const v1::RankCommand& command);
  void BeginStop(int64_t grace_ms, Nanos now);
  void OnTime(Nanos now);
  void EndDescendants(Nanos now);
  void NoteToAll(v1::NoticeLevel level, const std::string& message);
  v1::ShimState State() const;
  bool AnyAlive() const;
  bool Done() const;

  const v1::ShimConfig config_;
  UniqueFd listener_;
  UniqueFd signals_;
  UniqueFd memory_;
  std::optional<EventLog> events_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<v1::RankReadyReport> ready_;
  std::optional<AgentConnection> agent_;
  v1::Intent intent_ = v1::INTENT_RUN;
  std::optional<Nanos> orphan_at_;  // no agent: when the ranks are ended
  std::optional<Nanos> kill_at_;    // stopping: when SIGKILL follows
  bool stopping_ = false;
  int64_t grace_ms_ = 0;
  std::optional<Nanos> give_up_at_;  // descendants that do not die
  bool all_exited_ = false;
  bool released_ = false;
};

}  // namespace tutti::worker
