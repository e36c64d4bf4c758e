// Ranks: their events, how they end. What an older generation says is kept in the series (a later one may have resumed
// above it) but changes nothing else.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "coordinator/core/stepper.h"

namespace tutti::coordinator {
namespace {

constexpr int kVictimExitCode = 75;
constexpr int kLastLines = 20;
constexpr size_t kLineBytes = 500;
constexpr size_t kMessageBytes = 4096;

// At most `limit` bytes, cut between characters.
void Clip(std::string* text, size_t limit) {
  if (text->size() <= limit) return;
  while (limit > 0 && (static_cast<unsigned char>((*text)[limit]) & 0xC0) == 0x80) --limit;
  text->resize(limit);
}

// Failure records are kept and shown by the hundred.
void Bound(v1::RankStatus* rank) {
  Clip(rank->mutable_message(), kMessageBytes);
  auto* lines = rank->mutable_last_lines();
  if (lines->size() > kLastLines) lines->DeleteSubrange(0, lines->size() - kLastLines);
  for (std::string& line : *lines) Clip(&line, kLineBytes);
}

// A rank other than 0 may leave as it likes when it leaves with code 0; rank 0 says first that it is done (RankResult).
bool EndedBadly(const JobEntry& entry, const v1::RankStatus& rank) {
  if (rank.signal() != 0 || rank.exit_code() != 0) return true;
  return rank.rank() == 0 && !entry.status().has_result();
}

}  // namespace

void Stepper::OnRankEvent(NodeEntry& node, const v1::RankEventReport& report) {
  const auto it = state_.jobs.find(report.job_id());
  if (it == state_.jobs.end()) return;
  JobEntry& entry = it->second;
  v1::Share* share = FindShare(entry, report.event().generation(), node.node.name());
  if (share == nullptr || !Accept(entry, share, report.sequence())) return;
  RecordSeries(entry, report.event());
  const bool current = IsActive(entry) && report.event().generation() == entry.status().generation();
  if (current || state_.options.mutations.reopen_terminal) ApplyRankEvent(entry, report.event());
}

void Stepper::RecordSeries(const JobEntry& entry, const v1::RankEvent& event) {
  v1::SeriesRecord record;
  record.set_generation(event.generation());
  switch (event.event_case()) {
    case v1::RankEvent::kStep:
      *record.mutable_step() = event.step();
      break;
    case v1::RankEvent::kEvaluation:
      *record.mutable_evaluation() = event.evaluation();
      break;
    case v1::RankEvent::kCheckpoint:
      *record.mutable_checkpoint() = event.checkpoint();
      break;
    case v1::RankEvent::kNotice:
      *record.mutable_notice() = event.notice();
      break;
    default:
      return;
  }
  Do(Record{entry.job().id(), std::move(record)});
}

void Stepper::ApplyRankEvent(JobEntry& entry, const v1::RankEvent& event) {
  v1::RankStatus* rank = FindRank(entry, event.rank());
  if (rank == nullptr) return;
  if (rank->state() == v1::RANK_STATE_ASSIGNED) {
    rank->set_state(v1::RANK_STATE_RUNNING);
    MarkJob(entry);
  }
  switch (event.event_case()) {
    case v1::RankEvent::kReady:
      entry.peers[event.rank()] = event.ready().peer_blob();
      Progressed(entry);
      return SharePeers(entry);
    case v1::RankEvent::kStarted:
      return ApplyStarted(entry, event.rank(), event.started());
    case v1::RankEvent::kStep:
      return ApplyStep(entry, event.step());
    case v1::RankEvent::kEvaluation:
      *StatusOf(entry)->mutable_evaluation() = event.evaluation();
      Progressed(entry);
      return MarkJob(entry);
    case v1::RankEvent::kCheckpoint:
      return ApplyCheckpoint(entry, event.checkpoint());
    case v1::RankEvent::kResult:
      if (event.rank() != 0) return;
      *StatusOf(entry)->mutable_result() = event.result();
      if (event.result().reason() == v1::FINISH_REASON_COMPLETED) {
        entry.row.set_final_complete(true);
        StatusOf(entry)->set_weights_sha256(event.result().weights_sha256());
        if (!event.result().final_checkpoint().empty())
          StatusOf(entry)->set_latest_checkpoint(event.result().final_checkpoint());
        entry.stop_deadline = state_.now + Millis(entry.job().spec().restart().grace_ms());
      }
      return MarkJob(entry);
    case v1::RankEvent::kFailure:
      return ApplyFailure(entry, event.rank(), event.failure());
    case v1::RankEvent::kHeartbeat: {
      RankProgress& progress = entry.progress[event.rank()];
      if (progress.phase == event.heartbeat().phase() && progress.step == event.heartbeat().step()) return;
      progress = {event.heartbeat().phase(), event.heartbeat().step(), state_.now};
      return Progressed(entry);
    }
    default:
      return;
  }
}

void Stepper::Progressed(JobEntry& entry) { entry.progressed = state_.now; }

void Stepper::ApplyStarted(JobEntry& entry, int32_t rank, const v1::RankStarted& started) {
  Progressed(entry);
  if (rank != 0) return;
  v1::JobStatus* status = StatusOf(entry);
  v1::GenerationBase* base = nullptr;
  for (v1::GenerationBase& known : *status->mutable_bases()) {
    if (known.generation() == status->generation()) base = &known;
  }
  if (base == nullptr) base = status->add_bases();
  base->set_generation(status->generation());
  base->set_base_step(started.resumed_step());
  // The steps above were made by a generation that is over, and will be made again.
  status->set_completed_step(started.resumed_step());
  status->set_durable_step(std::max(status->durable_step(), started.resumed_step()));
  if (started.has_plan()) *status->mutable_plan() = started.plan();
  SetCondition(entry, "Started",
               started.resumed_step() > 0
                   ? fmt::format("from step {} of {}", WithCommas(started.resumed_step()), started.resumed_from())
                   : "from scratch");
}

void Stepper::ApplyStep(JobEntry& entry, const v1::StepRecord& step) {
  v1::JobStatus* status = StatusOf(entry);
  // The gap before the first step is start-up, not a step.
  if (status->has_last_step() && entry.progress[0].phase == v1::PHASE_TRAINING) {
    entry.longest_step = std::max(entry.longest_step, state_.now - entry.progressed);
  }
  entry.longest_step = std::max(entry.longest_step, Nanos(static_cast<int64_t>(std::max(0.0, step.step_ms()) * 1e6)));
  entry.progress[0] = {v1::PHASE_TRAINING, step.step(), state_.now};
  Progressed(entry);
  const bool replay = state_.options.mutations.replay_steps;
  status->set_completed_step(replay ? step.step() : std::max(status->completed_step(), step.step()));
  entry.row.set_best_step(std::max(entry.row.best_step(), step.step()));
  *status->mutable_last_step() = step;
  if (status->first_step_unix_ms() == 0) {
    status->set_first_step_unix_ms(unix_ms_);
    MarkJob(entry);
  }
  if (status->state() == v1::JOB_STATE_STARTING || state_.options.mutations.reopen_terminal) {
    status->set_reason("Training");
    status->set_message("");
    SetState(entry, v1::JOB_STATE_RUNNING);
  }
}

void Stepper::ApplyCheckpoint(JobEntry& entry, const v1::CheckpointRecord& checkpoint) {
  v1::JobStatus* status = StatusOf(entry);
  Progressed(entry);
  if (checkpoint.step() >= status->durable_step()) {
    status->set_durable_step(checkpoint.step());
    status->set_latest_checkpoint(checkpoint.path());
  }
  // The last checkpoint of a cancelled run is final too, but does not hold the last step.
  if (checkpoint.is_final() && status->plan().steps() > 0 && checkpoint.step() >= status->plan().steps()) {
    entry.row.set_final_complete(true);
    status->set_weights_sha256(checkpoint.weights_sha256());
  }
  SetCondition(entry, "Durable", fmt::format("step {} in {}", WithCommas(checkpoint.step()), checkpoint.path()));
}

void Stepper::ApplyFailure(JobEntry& entry, int32_t rank, const v1::RankFailure& failure) {
  v1::RankStatus* status = FindRank(entry, rank);
  status->set_message(failure.message());
  Bound(status);
  status->set_victim(failure.victim());
  status->set_where(failure.where());
  status->set_retryable(failure.retryable());
  if (failure.victim()) {
    if (entry.row.blamed_rank() == 0 && failure.blamed_rank() >= 0 && failure.blamed_rank() != rank) {
      entry.row.set_blamed_rank(failure.blamed_rank() + 1);
    }
  } else if (!failure.retryable()) {
    entry.row.set_no_retry(true);
  }
  BadEnd(entry, rank);
}

void Stepper::OnExited(NodeEntry& node, const v1::RankExited& exited) {
  const auto it = state_.jobs.find(exited.job_id());
  if (it == state_.jobs.end()) return;
  JobEntry& entry = it->second;
  const v1::RankStatus& ended = exited.status();
  v1::Share* share = FindShare(entry, ended.generation(), node.node.name());
  if (share == nullptr || !Accept(entry, share, exited.sequence())) return;
  if (!IsActive(entry) || ended.generation() != entry.status().generation()) return;
  v1::RankStatus* rank = FindRank(entry, ended.rank());
  if (rank == nullptr || rank->state() == v1::RANK_STATE_EXITED) return;

  const v1::RankStatus before = *rank;
  *rank = ended;
  rank->set_node(node.node.name());
  rank->set_state(v1::RANK_STATE_EXITED);
  if (rank->cores().empty()) *rank->mutable_cores() = before.cores();
  rank->set_victim(ended.victim() || before.victim() || ended.exit_code() == kVictimExitCode);
  if (!before.message().empty()) rank->set_message(before.message());
  if (!before.where().empty()) rank->set_where(before.where());
  Bound(rank);
  if (rank->end_unix_ms() == 0) rank->set_end_unix_ms(unix_ms_);
  MarkJob(entry);
  if (EndedBadly(entry, *rank)) BadEnd(entry, rank->rank());
}

void Stepper::OnEnded(NodeEntry& node, const std::string& job_id, int64_t generation) {
  const auto it = state_.jobs.find(job_id);
  if (it == state_.jobs.end()) return;
  JobEntry& entry = it->second;
  v1::Share* share = FindShare(entry, generation, node.node.name());
  if (share == nullptr) return SendRevoke(node.node.name(), entry, generation, v1::INTENT_UNSPECIFIED, 0, true);
  share->set_ended(true);
  share->set_lost(false);
  MarkJob(entry);
  state_.schedule_due = true;
  if (generation <= entry.row.concluded_generation()) return Forget(entry);
  if (generation != entry.status().generation()) return;
  bool unknown = false;
  for (v1::RankStatus& rank : *StatusOf(entry)->mutable_ranks()) {
    if (rank.node() != node.node.name() || rank.state() == v1::RANK_STATE_EXITED) continue;
    // Stopped before it began, or its shim is gone with the knowledge of how it ended.
    unknown |= rank.state() == v1::RANK_STATE_RUNNING && !entry.stopping;
    rank.set_state(entry.stopping ? v1::RANK_STATE_EXITED : v1::RANK_STATE_LOST);
    rank.set_stopped_by_us(entry.stopping);
  }
  if (unknown) {
    v1::Failure failure;
    failure.set_rank(-1);
    failure.set_node(node.node.name());
    failure.set_kind(v1::FAILURE_KIND_NODE);
    failure.set_cause(
        fmt::format("the ranks on node {} ended and nobody there knows how: it was restarted, or their shim was killed",
                    node.node.name()));
    OutsideFailure(entry, std::move(failure));
  }
  Settle(entry);
}

void Stepper::OnStartFailed(NodeEntry& node, const v1::StartFailed& failed) {
  const auto it = state_.jobs.find(failed.job_id());
  if (it == state_.jobs.end()) return;
  JobEntry& entry = it->second;
  if (IsActive(entry) && failed.generation() == entry.status().generation()) {
    v1::Failure failure;
    failure.set_rank(-1);
    failure.set_node(node.node.name());
    failure.set_kind(v1::FAILURE_KIND_NODE);
    failure.set_cause(fmt::format("node {} could not start the ranks: {}", node.node.name(), failed.message()));
    OutsideFailure(entry, std::move(failure));
  }
  OnEnded(node, failed.job_id(), failed.generation());
}

// Ranks of several nodes (or of a backend that wants it) learn how to reach each other once all are there.
void Stepper::SharePeers(JobEntry& entry) {
  const v1::JobStatus& status = entry.status();
  if (entry.peers_sent || entry.peers.empty() || static_cast<int>(entry.peers.size()) < status.ranks_size()) return;
  entry.peers_sent = true;
  v1::ConnectResponse message;
  v1::PeersKnown* known = message.mutable_peers();
  known->set_job_id(entry.job().id());
  known->set_generation(status.generation());
  for (const auto& [rank, blob] : entry.peers) known->mutable_peers()->add_blobs(blob);
  for (const v1::NodeShare& node : status.assignment().nodes()) SendToNode(node.node(), message);
}

}  // namespace tutti::coordinator
