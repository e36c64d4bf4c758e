// The agent's shell: waits for the coordinator, shims, signals and time, feeds the pure core (worker/agent) and does
// what it says. Single-threaded but for the threads of CoordinatorLink.
#pragma once

#include <sys/types.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "worker/agent/agent.h"
#include "worker/probe/slot_lock.h"
#include "worker/rpc/coordinator_link.h"
#include "worker/rpc/shim_link.h"

namespace tutti::worker {

struct AgentLoopOptions {
  std::string state_directory;
  std::string coordinator;
  std::string token;
  v1::Node node;
  std::string shim_program;
  std::string rank_program;
  int64_t orphan_grace_ms = 600'000;
  UniqueFd life;                               // its end of file means: leave. Not valid: none
  v1::Intent leave_intent = v1::INTENT_YIELD;  // what ranks are told when the agent leaves
};

class AgentLoop {
 public:
  // Signals (SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1) must be blocked in every thread before; `signals` is their
  // signalfd.
  AgentLoop(AgentLoopOptions options, SlotLocks locks, UniqueFd signals);
  ~AgentLoop();

  // Until the agent was told to leave and no rank is alive, or to detach (SIGUSR1: ranks go on, the next agent adopts
  // them).
  Status Run();

 private:
  Status Restore();
  void Turn();
  void Feed(const AgentEvent& event);
  void Perform(const AgentAction& action);
  Status Launch(const v1::StartJob& start);
  void Attach(const AttachShim& action);
  void OnSignals();
  void OnLife();
  void OnCoordinator();
  void ReadShims(const std::set<RunKey>& ready);
  void ProbeSlots(Nanos now);

  AgentLoopOptions options_;
  SlotLocks locks_;
  UniqueFd signals_;
  UniqueFd wake_;
  AgentState state_;
  std::unique_ptr<CoordinatorLink> coordinator_;
  int64_t stream_ = 0;
  std::map<RunKey, ShimLink> shims_;
  Nanos next_probe_{0};
  std::string last_close_reason_;
  bool done_ = false;
};

}  // namespace tutti::worker
