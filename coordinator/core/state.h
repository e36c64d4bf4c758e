// What the coordinator knows. Rows are what the journal keeps; everything else is rebuilt from rows and agents'
// reports.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tutti/v1/agent.pb.h"
#include "tutti/v1/cluster.pb.h"
#include "tutti/v1/journal.pb.h"

namespace tutti::coordinator {

// Faults of the core itself, for the simulator only: each one breaks an invariant that an oracle must catch.
struct Mutations {
  bool reuse_generation = false;           // a restart keeps its number
  bool share_slots = false;                // taken slots are offered again
  bool partial_gang = false;               // places what fits and forgets the rest
  bool terminal_while_alive = false;       // ends a job at its first bad exit, ranks still alive
  bool reopen_terminal = false;            // a late event of a finished job starts it again
  bool count_control_plane_death = false;  // a lost agent stream fails the generation
  bool forget_created_job = false;         // acknowledges a job that it does not persist
  bool restart_before_ended = false;       // assigns the next generation while ranks of the last are alive
  bool replay_steps = false;               // asks agents for every event again and believes it anew
  bool blame_first_end = false;            // the first bad end is the cause, a victim's too
  bool forget_final = false;               // restarts a job whose final manifest is committed
};

struct Options {
  Nanos lease = std::chrono::seconds(10);    // silence after which a node may be evicted
  Nanos max_tick = std::chrono::seconds(1);  // a longer gap between two calls counts as this much: it was we who slept
  Nanos victim_window = std::chrono::milliseconds(500);  // a victim's end waits so long for the end that caused it
  // No progress for so long while training is a stall; 10 x the longest step of the generation where that is more. A
  // first step, an evaluation or a checkpoint may take `phase_limit`.
  Nanos stall_floor = std::chrono::seconds(60);
  Nanos phase_limit = std::chrono::minutes(10);
  Nanos unreachable_after = std::chrono::minutes(5);  // a job none of whose nodes can be reached waits so long for them
  Nanos max_backoff = std::chrono::seconds(60);
  int idle_attempts = 3;       // failed generations in a row without progress that end a job
  size_t changes_kept = 8192;  // of the watch ring
  Mutations mutations;
};

// Of one rank of the newest generation, from its events; not journaled.
struct RankProgress {
  v1::Phase phase = v1::PHASE_UNSPECIFIED;
  int64_t step = 0;
  Nanos changed{0};  // core time of the last change of phase or step
};

struct JobEntry {
  v1::JobRow row;

  // Everything below is volatile.
  std::map<int32_t, std::string> peers;  // RankReady blobs of the newest generation
  bool peers_sent = false;
  std::map<int32_t, RankProgress> progress;
  Nanos progressed{0};  // core time of the newest sign of progress of the generation
  Nanos longest_step{0};
  Nanos not_before{0};       // backoff: no assignment earlier (core time)
  Nanos victim_deadline{0};  // 0: no victim's end waits for its cause
  Nanos stop_deadline{0};    // 0: none; when it passes, what still runs is stopped by force
  bool stopping = false;     // a Revoke that ends this generation was sent
  v1::Intent stop_intent = v1::INTENT_UNSPECIFIED;
  std::map<std::pair<int64_t, std::string>, int64_t> acks_sent;  // (generation, node) -> sequence

  const v1::Job& job() const { return row.job(); }
  const v1::JobStatus& status() const { return row.job().status(); }
};

struct NodeEntry {
  v1::Node node;
  uint64_t stream = 0;    // 0: no agent is connected
  Nanos silent_since{0};  // core time of the last sign of life
  bool reported = false;  // since this coordinator started
};

struct Change {
  int64_t revision = 0;
  std::string job_id;
};

struct State {
  Options options;
  v1::MetaRow meta;
  std::map<std::string, JobEntry> jobs;  // by id: oldest first, for ids are ULIDs
  std::map<std::string, std::string> job_of_uid;
  std::set<std::string> live;  // ids of jobs that are not terminal
  std::map<std::string, NodeEntry> nodes;
  std::map<uint64_t, std::string> node_of_stream;
  std::deque<Change> changes;      // ascending revisions, bounded
  int64_t forgotten_revision = 0;  // changes up to here may be missing from `changes`
  Nanos now{0};                    // core time: sum of bounded ticks
  Nanos clock{-1};                 // the caller's `now` at the last call; -1: none yet
  bool schedule_due = false;
};

bool IsTerminal(v1::JobState state);

// A slot is taken by the share that names it until its agent says that no rank is alive there.
bool HoldsSlots(const v1::Share& share);

// Rows as the journal returned them, at the start of a coordinator. The caller persists the new term before it serves.
State LoadState(const Options& options, v1::MetaRow meta, std::vector<v1::JobRow> jobs, std::vector<v1::NodeRow> nodes);

}  // namespace tutti::coordinator
