// What an agent decides: a pure state machine. Step takes what happened and gives back what to do; the shell
// (worker/rpc) does it.
//
// Level-triggered: on each new stream the agent reports every run (one generation of a job on this node) that lives or
// whose outcome is not acknowledged, and starts what the coordinator desires and is not there. Ranks are stopped only
// by Revoke, never because something is absent from a list, and when the agent itself is told to leave (LeaveNode).
//
// Events of ranks are not buffered here: they lie in the shim's event file. After each Welcome the agent attaches to
// every shim again at the coordinator's cursor, so that the coordinator gets each sequence number once, in order, with
// no gap.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tutti/v1/agent.pb.h"
#include "tutti/v1/shim.pb.h"
#include "worker/agent/run_key.h"

namespace tutti::worker {

enum class RunPhase {
  kWaiting,  // its slots are still held by an older generation of the same job
  kStarted,  // launched or found on disk; its shim has not answered yet
  kRunning,  // attached: ranks may be alive
  kEnded,    // no rank is alive; kept until the coordinator says forget
};

struct Run {
  v1::StartJob start;
  RunPhase phase = RunPhase::kWaiting;
  std::map<int32_t, v1::RankStatus> ranks;
  std::map<int32_t, std::string> ready;  // peer blobs
  v1::Intent intent = v1::INTENT_RUN;    // highest asked for
  int64_t epoch = 0;                     // of the newest AttachShim; replies of older ones are ignored
  bool known = false;                    // the state of its ranks is known (the shim, or the disk, has told)
  bool relaying = false;                 // attached since the last Welcome
  bool end_told = false;                 // JobEnded was sent, behind all events, since the last Welcome
  int64_t relayed = 0;                   // last sequence sent on this stream
  int64_t acked = 0;                     // kept by the coordinator
  std::optional<Nanos> attach_at;        // when to attach again
  std::optional<int64_t> stop_grace_ms;  // a stop was asked for
  std::optional<Nanos> kill_at;          // end of the time to checkpoint and leave
  bool forget = false;                   // as soon as it ended
};

struct AgentOptions {
  Nanos heartbeat_every = std::chrono::seconds(1);
  Nanos attach_retry = std::chrono::milliseconds(100);
};

struct AgentState {
  AgentOptions options;
  v1::Node node;  // slots without holder; filled in when sent
  int64_t seen_term = 0;
  bool open = false;      // a stream is open
  bool reported = false;  // AgentReport was sent on it
  bool welcomed = false;  // Welcome was accepted
  std::map<RunKey, Run> runs;
  std::set<std::string> locked_elsewhere;  // slot ids
  Nanos next_heartbeat{0};
  int64_t next_epoch = 1;
  bool leaving = false;
  bool exited = false;
};

// Events.
struct StreamOpened {};
struct StreamClosed {};
struct FromCoordinator {
  v1::ConnectResponse message;
};
struct ShimAttached {
  RunKey key;
  int64_t epoch;
  v1::ShimState state;
};
struct ShimReported {
  RunKey key;
  int64_t epoch;
  v1::ShimEvent event;
};
struct ShimClosed {
  RunKey key;
  int64_t epoch;
};  // the connection ended; all kept events were reported if the shim is gone
struct LaunchFailed {
  RunKey key;
  std::string message;
};
struct SlotsProbed {
  std::set<std::string> locked_elsewhere;
};
struct LeaveNode {
  v1::Intent intent;
};  // end all ranks in order, then Exit; a second one kills
struct Tick {};
using AgentEvent = std::variant<StreamOpened, StreamClosed, FromCoordinator, ShimAttached, ShimReported, ShimClosed,
                                LaunchFailed, SlotsProbed, LeaveNode, Tick>;

// Actions, performed in order.
struct SendToCoordinator {
  v1::ConnectRequest message;
};
struct CloseStream {
  std::string reason;
};  // and connect again with backoff
struct PersistTerm {
  int64_t term;
};
struct LaunchRun {
  v1::StartJob start;
};  // persist, lock slots, start the shim; answer LaunchFailed when that fails
struct AttachShim {
  RunKey key;
  int64_t epoch;
  int64_t after_sequence;
};  // connect (or read the disk) and report
struct SendToShim {
  RunKey key;
  v1::ShimRequest request;
};
struct ForgetRun {
  RunKey key;
};
struct ReadRankLog {
  v1::ReadLog request;
};  // answer with a LogChunk
struct Exit {};
using AgentAction = std::variant<SendToCoordinator, CloseStream, PersistTerm, LaunchRun, AttachShim, SendToShim,
                                 ForgetRun, ReadRankLog, Exit>;

// `node` has name, address, slots and what was probed. `restored` are the runs found on disk; `*actions` attach to
// them.
AgentState MakeAgentState(v1::Node node, int64_t seen_term, std::vector<v1::StartJob> restored,
                          std::vector<AgentAction>* actions);

std::vector<AgentAction> Step(AgentState& state, const AgentEvent& event, Nanos now);

// When a Tick is due at the latest.
Nanos NextTick(const AgentState& state, Nanos now);

// The node's slots with their holders as of now.
std::vector<v1::Slot> CurrentSlots(const AgentState& state);

}  // namespace tutti::worker
