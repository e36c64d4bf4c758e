// Agents: reports, the desired set, what to do with what they run.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/core/stepper.h"

namespace tutti::coordinator {
namespace {

constexpr size_t kMaxSlots = 4096;
constexpr int kAckEvery = 256;

bool IsPlainName(const std::string& name, size_t max_size) {
  if (name.empty() || name.size() > max_size || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

Status CheckNode(const v1::Node& node) {
  if (!IsPlainName(node.name(), 253)) {
    return InvalidArgument("node name '{}': 1 to 253 characters of [A-Za-z0-9._-], not starting with a dot",
                           node.name().substr(0, 64));
  }
  if (static_cast<size_t>(node.slots_size()) > kMaxSlots) {
    return InvalidArgument("node {}: {} slots; at most {}", node.name(), node.slots_size(), kMaxSlots);
  }
  std::set<std::string> ids;
  for (const v1::Slot& slot : node.slots()) {
    if (!IsPlainName(slot.id(), 64) || !ids.insert(slot.id()).second) {
      return InvalidArgument("node {}: slot id '{}' is empty, malformed or twice there", node.name(),
                             slot.id().substr(0, 64));
    }
  }
  return OkStatus();
}

}  // namespace

void Stepper::Handle(const AgentConnected& event) {
  const v1::AgentReport& report = event.report;
  if (Status status = CheckNode(report.node()); !status.ok()) return Do(CloseStream{event.stream, status});
  if (report.seen_term() >= state_.meta.term()) {
    Do(Tell{fmt::format("node {} has seen term {}: this journal is older than the cluster; going on with term {}",
                        report.node().name(), report.seen_term(), report.seen_term() + 1)});
    state_.meta.set_term(report.seen_term() + 1);
    MarkMeta();
  }
  NodeEntry& node = state_.nodes[report.node().name()];
  if (node.stream != 0) {
    state_.node_of_stream.erase(node.stream);
    Do(CloseStream{node.stream, Aborted("a newer connection of node {} took over", report.node().name())});
  }
  node.node = report.node();
  node.node.set_state(v1::NODE_STATE_READY);
  node.node.clear_message();
  node.node.set_last_seen_unix_ms(unix_ms_);
  for (v1::Slot& slot : *node.node.mutable_slots()) slot.clear_job_id();
  node.stream = event.stream;
  node.silent_since = state_.now;
  node.reported = true;
  state_.node_of_stream[event.stream] = node.node.name();
  MarkNode(node);
  state_.schedule_due = true;
  Reconcile(node, report);
}

void Stepper::Reconcile(NodeEntry& node, const v1::AgentReport& report) {
  // The welcome goes first, though what it says is known last.
  const size_t welcome_at = actions_.size();
  std::set<std::pair<std::string, int64_t>> reported;
  for (const v1::RunningJob& running : report.running()) {
    reported.insert({running.job_id(), running.generation()});
    AdoptReported(node, running);
  }
  ResolveAbsent(node, reported);

  v1::ConnectResponse message;
  v1::Welcome* welcome = message.mutable_welcome();
  welcome->set_term(state_.meta.term());
  welcome->set_lease_ms(std::chrono::duration_cast<Millis>(state_.options.lease).count());
  for (const std::string& id : state_.live) {
    JobEntry& entry = state_.jobs.at(id);
    const v1::Share* share = FindShare(entry, entry.status().generation(), node.node.name());
    const bool wanted = IsActive(entry) && share != nullptr && !share->ended() && !share->lost();
    if (wanted && (!entry.stopping || share->seen())) *welcome->add_desired() = MakeStart(entry);
  }
  for (auto& [id, entry] : state_.jobs) {
    for (const v1::Share& share : entry.row.shares()) {
      if (share.node() != node.node.name()) continue;
      v1::AckEvents* ack = welcome->add_acks();
      ack->set_job_id(id);
      ack->set_generation(share.generation());
      ack->set_sequence(state_.options.mutations.replay_steps ? 0 : share.acked_sequence());
      entry.acks_sent[{share.generation(), share.node()}] = share.acked_sequence();
    }
  }
  actions_.insert(actions_.begin() + static_cast<int64_t>(welcome_at),
                  Action(SendToAgent{node.stream, std::move(message)}));
}

void Stepper::AdoptReported(NodeEntry& node, const v1::RunningJob& running) {
  const std::string& name = node.node.name();
  auto it = state_.jobs.find(running.job_id());
  if (it == state_.jobs.end()) {
    if (!IsPlainName(running.job_id(), 64) || !running.has_spec() || running.generation() < 1) {
      return Do(Tell{fmt::format("node {} reports a job that cannot be adopted: it is left alone", name)});
    }
    it = state_.jobs.emplace(running.job_id(), JobEntry{}).first;
    v1::Job* job = it->second.row.mutable_job();
    job->set_id(running.job_id());
    job->set_uid(running.uid());
    *job->mutable_spec() = running.spec();
    job->set_create_unix_ms(unix_ms_);
    job->mutable_status()->set_state(v1::JOB_STATE_RUNNING);
    state_.job_of_uid.emplace(running.uid(), running.job_id());
    state_.live.insert(running.job_id());
    Do(Tell{fmt::format("adopted job {} generation {} from node {}", running.job_id(), running.generation(), name)});
  }
  JobEntry& entry = it->second;
  if (running.generation() > entry.status().generation() && !IsTerminal(entry.status().state())) {
    AdoptGeneration(entry, running);
  }
  v1::Share* share = FindShare(entry, running.generation(), name);
  if (share == nullptr) {  // of an older generation, or of a job that is over: fenced, but it does take slots
    if (running.ended()) return SendRevoke(name, entry, running.generation(), v1::INTENT_UNSPECIFIED, 0, true);
    share = entry.row.add_shares();
    share->set_generation(running.generation());
    share->set_node(name);
    for (const v1::NodeShare& assigned : running.assignment().nodes()) {
      if (assigned.node() == name) *share->mutable_slots() = assigned.slots();
    }
    MarkJob(entry);
  }
  TakeReported(entry, share, running);
}

void Stepper::AdoptGeneration(JobEntry& entry, const v1::RunningJob& running) {
  v1::JobStatus* status = StatusOf(entry);
  if (IsActive(entry)) {  // what an older journal believed: fenced by the higher generation
    entry.row.set_concluded_generation(status->generation());
    for (const v1::Share& share : entry.row.shares()) {
      SendRevoke(share.node(), entry, running.generation() - 1, v1::INTENT_UNSPECIFIED, 0, false);
    }
  }
  status->set_generation(running.generation());
  status->set_attempts(std::max(status->attempts(), running.generation()));
  *status->mutable_assignment() = running.assignment();
  status->clear_ranks();
  *status->mutable_bases() = running.assignment().bases();
  status->set_durable_step(std::max(status->durable_step(), running.assignment().base_step()));
  for (const v1::NodeShare& assigned : running.assignment().nodes()) {
    v1::Share* share = entry.row.add_shares();
    share->set_generation(running.generation());
    share->set_node(assigned.node());
    *share->mutable_slots() = assigned.slots();
    for (int i = 0; i < assigned.slots_size(); ++i) {
      v1::RankStatus* rank = status->add_ranks();
      rank->set_rank(assigned.first_rank() + i);
      rank->set_node(assigned.node());
      rank->set_generation(running.generation());
      rank->set_state(v1::RANK_STATE_ASSIGNED);
    }
  }
  RememberPlace(entry);
  entry.progressed = state_.now;
  SetState(entry, status->cancel_requested() ? v1::JOB_STATE_CANCELLING : v1::JOB_STATE_RUNNING);
  MarkJob(entry);
}

void Stepper::TakeReported(JobEntry& entry, v1::Share* share, const v1::RunningJob& running) {
  const bool decided = share->generation() <= entry.row.concluded_generation();
  if (!share->seen() || share->lost()) {
    share->set_seen(true);
    share->set_lost(false);
    MarkJob(entry);
  }
  if (decided) {
    share->set_ended(running.ended());
    if (running.ended()) return Forget(entry);
    const int64_t grace_ms = entry.job().spec().restart().grace_ms();
    return SendRevoke(share->node(), entry, share->generation(), v1::INTENT_UNSPECIFIED, grace_ms, false);
  }
  entry.progressed = state_.now;
  for (const v1::RankReadyBlob& ready : running.ready()) entry.peers[ready.rank()] = ready.blob();
  for (const v1::RankStatus& reported : running.ranks()) {
    v1::RankStatus* rank = FindRank(entry, reported.rank());
    if (rank == nullptr || rank->state() == v1::RANK_STATE_EXITED) continue;
    if (reported.state() == v1::RANK_STATE_RUNNING) {
      rank->set_state(v1::RANK_STATE_RUNNING);
      rank->set_pid(reported.pid());
      *rank->mutable_cores() = reported.cores();
    }
    // How it ended comes as an event behind the acknowledged ones, in its order.
  }
  entry.peers_sent = false;
  SharePeers(entry);
  if (entry.stopping) {
    const int64_t grace_ms = entry.job().spec().restart().grace_ms();
    SendRevoke(share->node(), entry, share->generation(), entry.stop_intent, grace_ms, false);
  } else if (entry.status().cancel_requested()) {
    StopGeneration(entry, v1::INTENT_CANCEL, entry.job().spec().restart().grace_ms());
    entry.stop_deadline = state_.now + Millis(entry.job().spec().restart().grace_ms());
  } else if (entry.row.has_outside() || entry.row.bad_ends_size() > 0) {
    StopGeneration(entry, v1::INTENT_UNSPECIFIED, entry.job().spec().restart().grace_ms());
  }
}

// Shares that this node should have and does not report. Nothing is ended here: there is nothing to end.
void Stepper::ResolveAbsent(NodeEntry& node, const std::set<std::pair<std::string, int64_t>>& reported) {
  const std::string& name = node.node.name();
  for (auto& [id, entry] : state_.jobs) {
    const int64_t newest = entry.status().generation();
    for (v1::Share& share : *entry.row.mutable_shares()) {
      if (share.node() != name || share.ended() || reported.contains({id, share.generation()})) continue;
      const bool active = IsActive(entry) && share.generation() == newest;
      if (active && !share.seen() && !entry.stopping && !entry.status().cancel_requested()) continue;  // is sent again
      share.set_ended(true);
      share.set_lost(false);
      state_.schedule_due = true;
      MarkJob(entry);
      if (!active || !share.seen()) continue;
      for (v1::RankStatus& rank : *StatusOf(entry)->mutable_ranks()) {
        if (rank.node() == name && rank.state() != v1::RANK_STATE_EXITED) rank.set_state(v1::RANK_STATE_LOST);
      }
      v1::Failure failure;
      failure.set_rank(-1);
      failure.set_node(name);
      failure.set_kind(v1::FAILURE_KIND_NODE);
      failure.set_cause(
          fmt::format("node {} came back without the ranks of generation {}: it was restarted, or its state "
                      "directory was emptied",
                      name, newest));
      OutsideFailure(entry, std::move(failure));
    }
    Forget(entry);
    if (IsActive(entry)) Settle(entry);
  }
}

void Stepper::Handle(const AgentGone& event) {
  const auto it = state_.node_of_stream.find(event.stream);
  if (it == state_.node_of_stream.end()) return;  // refused, or replaced by a newer connection
  NodeEntry& node = state_.nodes.at(it->second);
  state_.node_of_stream.erase(it);
  node.stream = 0;
  node.silent_since = state_.now;
  node.node.set_state(v1::NODE_STATE_SUSPECTED);
  node.node.set_message("its connection is gone; its ranks go on");
  MarkNode(node);
  if (!state_.options.mutations.count_control_plane_death) return;
  for (auto& [id, entry] : state_.jobs) {
    if (!IsActive(entry) || FindShare(entry, entry.status().generation(), node.node.name()) == nullptr) continue;
    v1::Failure failure;
    failure.set_rank(-1);
    failure.set_kind(v1::FAILURE_KIND_NODE);
    OutsideFailure(entry, std::move(failure));
  }
}

void Stepper::Handle(const AgentSaid& event) {
  const auto it = state_.node_of_stream.find(event.stream);
  if (it == state_.node_of_stream.end()) return;
  NodeEntry& node = state_.nodes.at(it->second);
  node.silent_since = state_.now;
  node.node.set_last_seen_unix_ms(unix_ms_);
  if (node.node.state() != v1::NODE_STATE_READY) {
    node.node.set_state(v1::NODE_STATE_READY);
    node.node.clear_message();
    MarkNode(node);
    state_.schedule_due = true;
  }
  switch (event.message.message_case()) {
    case v1::ConnectRequest::kEvent:
      return OnRankEvent(node, event.message.event());
    case v1::ConnectRequest::kExited:
      return OnExited(node, event.message.exited());
    case v1::ConnectRequest::kEnded:
      return OnEnded(node, event.message.ended().job_id(), event.message.ended().generation());
    case v1::ConnectRequest::kStartFailed:
      return OnStartFailed(node, event.message.start_failed());
    case v1::ConnectRequest::kHeartbeat:
      break;
    default:
      return;
  }
  for (const v1::Slot& reported : event.message.heartbeat().slots()) {
    for (v1::Slot& slot : *node.node.mutable_slots()) {
      if (slot.id() != reported.id() || slot.locked_elsewhere() == reported.locked_elsewhere()) continue;
      slot.set_locked_elsewhere(reported.locked_elsewhere());
      state_.schedule_due = true;
      MarkNode(node);
    }
  }
}

void Stepper::SendRevoke(const std::string& node, const JobEntry& entry, int64_t up_to, v1::Intent intent,
                         int64_t grace_ms, bool forget) {
  v1::ConnectResponse message;
  v1::Revoke* revoke = message.mutable_revoke();
  revoke->set_job_id(entry.job().id());
  revoke->set_up_to_generation(up_to);
  revoke->set_intent(intent);
  revoke->set_grace_ms(grace_ms);
  revoke->set_forget(forget);
  SendToNode(node, std::move(message));
}

// Tells agents what is kept, where at least `at_least` events are not acknowledged yet.
void Stepper::SendAcks(size_t at_least) {
  for (auto& [id, entry] : state_.jobs) {
    for (const v1::Share& share : entry.row.shares()) {
      int64_t& sent = entry.acks_sent[{share.generation(), share.node()}];
      if (share.acked_sequence() < sent + static_cast<int64_t>(at_least)) continue;
      sent = share.acked_sequence();
      v1::ConnectResponse message;
      v1::AckEvents* ack = message.mutable_ack();
      ack->set_job_id(id);
      ack->set_generation(share.generation());
      ack->set_sequence(sent);
      SendToNode(share.node(), std::move(message));
    }
  }
}

bool Stepper::Accept(JobEntry& entry, v1::Share* share, int64_t sequence) {
  if (!share->seen()) {
    share->set_seen(true);
    MarkJob(entry);
  }
  if (sequence == 0) return true;  // not kept by the shim either
  if (sequence <= share->acked_sequence() && !state_.options.mutations.replay_steps) return false;
  share->set_acked_sequence(std::max(sequence, share->acked_sequence()));
  int64_t& sent = entry.acks_sent[{share->generation(), share->node()}];
  if (share->acked_sequence() - sent >= kAckEvery) {
    sent = share->acked_sequence();
    v1::ConnectResponse message;
    v1::AckEvents* ack = message.mutable_ack();
    ack->set_job_id(entry.job().id());
    ack->set_generation(share->generation());
    ack->set_sequence(sent);
    SendToNode(share->node(), std::move(message));
  }
  return true;
}

}  // namespace tutti::coordinator
