// One Step of the agent: the handlers of events and what they share. Internal to worker/agent.
#pragma once

#include <string>
#include <vector>

#include "worker/agent/agent.h"

namespace tutti::worker {

inline constexpr int64_t kOnlyNew = -1;  // cursor of an attachment that replays nothing

// Slots of the assignment's share for `node`; empty when it has none.
std::vector<std::string> SlotsOf(const v1::Assignment& assignment, const std::string& node);
inline bool HoldsSlots(const Run& run) { return run.phase == RunPhase::kStarted || run.phase == RunPhase::kRunning; }

class Transition {
 public:
  Transition(AgentState& state, Nanos now) : state_(state), now_(now) {}

  void OnStreamOpened();
  void OnStreamClosed();
  void OnMessage(const v1::ConnectResponse& message);
  void OnShimAttached(const ShimAttached& event);
  void OnShimReported(const ShimReported& event);
  void OnShimClosed(const ShimClosed& event);
  void OnLaunchFailed(const LaunchFailed& event);
  void OnLeave(v1::Intent intent);

  // After each event: what time and the new state call for.
  void Settle();

  void Attach(const RunKey& key, Run& run, int64_t after_sequence);
  std::vector<AgentAction> TakeActions() { return std::move(actions_); }

 private:
  void OnWelcome(const v1::Welcome& welcome);
  void OnStart(const v1::StartJob& start);
  void OnRevoke(const v1::Revoke& revoke);
  void OnAck(const v1::AckEvents& ack);
  void Control(const RunKey& key, Run& run, v1::Intent intent, bool checkpoint_now);
  void Stop(const RunKey& key, Run& run, int64_t grace_ms);
  void MarkEnded(const RunKey& key, Run& run);
  void RefuseStart(const RunKey& key, const std::string& message);
  void LaunchWaiting();
  void ReportIfKnown();
  void ForgetEnded();
  std::string SlotHolder(const RunKey& key, const Run& run, bool* same_job) const;
  Run* Find(const RunKey& key);

  void Send(v1::ConnectRequest message) { actions_.push_back(SendToCoordinator{std::move(message)}); }
  void SendShim(const RunKey& key, v1::ShimRequest request) { actions_.push_back(SendToShim{key, std::move(request)}); }

  AgentState& state_;
  const Nanos now_;
  std::vector<AgentAction> actions_;
};

}  // namespace tutti::worker
