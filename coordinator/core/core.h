// The coordinator's decisions, pure: no I/O, no clock, no thread. The shell commits the rows of Persist in one
// transaction before it performs any other action of the same call; the simulator runs the same function.
//
// Rules that people rely on:
// - A job is terminal only when no rank process of it is alive (ranks of an evicted node are fenced by the generation
// instead), and its
//   slots are freed once, by its agents' JobEnded. After rank 0 ended well the others have `restart.grace_ms`, then
//   they are stopped.
// - A complete final manifest makes the job SUCCEEDED, whatever ends badly or is asked for later.
// - The cause of a failure is the earliest bad end that is neither a victim's nor one that we forced; a victim's end
// waits
//   `victim_window` for it.
// - Loss of a coordinator or of an agent's connection never ends a rank and never costs an attempt.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "coordinator/core/state.h"
#include "tutti/v1/plan.pb.h"

namespace tutti::coordinator {

// ---- Events. `request` numbers are the shell's; each gets exactly one Reply.
struct CreateJob {
  uint64_t request = 0;
  std::string id;  // for the case that the job is new: a ULID, greater than all before
  std::string uid;
  std::string digest;  // SHA-256 of the deterministic serialisation of spec
  v1::JobSpec spec;    // valid
  v1::TrainPlan plan;  // made outside the core
  bool has_plan = false;
};
struct CancelJob {
  uint64_t request = 0;
  std::string id;  // exact
  bool force = false;
};
// The commit of a CreateJob failed and its Reply was not sent: forgets the job, which has no other trace yet.
struct UndoCreate {
  std::string id;
};
struct AgentConnected {
  uint64_t stream = 0;  // never reused
  v1::AgentReport report;
};
struct AgentSaid {
  uint64_t stream = 0;
  v1::ConnectRequest message;  // event, exited, ended, heartbeat, start_failed
};
struct AgentGone {
  uint64_t stream = 0;
};
struct Tick {};

struct Event {
  int64_t unix_ms = 0;  // for display only
  std::variant<Tick, CreateJob, CancelJob, UndoCreate, AgentConnected, AgentSaid, AgentGone> what;
};

// ---- Actions, in the order in which they are to be performed.
struct Persist {
  std::vector<v1::JobRow> jobs;
  std::vector<v1::NodeRow> nodes;
  v1::MetaRow meta;
};
struct SendToAgent {
  uint64_t stream = 0;
  v1::ConnectResponse message;
};
struct CloseStream {
  uint64_t stream = 0;
  Status status;
};
struct Reply {
  uint64_t request = 0;
  Status status;
  v1::Job job{};         // with OK
  bool created = false;  // by this request: undone when its commit fails
};
// Appended to the job's series and shown to those who watch it.
struct Record {
  std::string job_id;
  v1::SeriesRecord record;
};
// For the log of the coordinator.
struct Tell {
  std::string line;
};
using Action = std::variant<Persist, SendToAgent, CloseStream, Reply, Record, Tell>;

// `now` is a monotonic clock's. At most one Persist, which is then the first action.
std::vector<Action> Step(State& state, const Event& event, Nanos now);

// First call after LoadState: takes the next term and persists it.
std::vector<Action> BeginTerm(State& state);

// The words for how a rank ended: "killed by signal 9, cause unknown, possibly memory", "exit code 137".
std::string DescribeEnd(const v1::RankStatus& rank);

}  // namespace tutti::coordinator
