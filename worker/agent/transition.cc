#include "worker/agent/transition.h"

#include <algorithm>

namespace tutti::worker {
namespace {

constexpr int64_t kDefaultGraceMs = 30'000;

int64_t GraceOf(const Run& run, int64_t asked_ms) {
  if (asked_ms > 0) return asked_ms;
  const int64_t grace = run.start.spec().restart().grace_ms();
  return grace > 0 ? grace : kDefaultGraceMs;
}

v1::RunningJob Describe(const RunKey& key, const Run& run) {
  v1::RunningJob job;
  job.set_job_id(key.job_id);
  job.set_generation(key.generation);
  *job.mutable_assignment() = run.start.assignment();
  *job.mutable_spec() = run.start.spec();
  job.set_uid(run.start.uid());
  for (const auto& [rank, status] : run.ranks) *job.add_ranks() = status;
  job.set_ended(run.phase == RunPhase::kEnded);
  job.set_intent(run.intent);
  for (const auto& [rank, blob] : run.ready) {
    v1::RankReadyBlob* ready = job.add_ready();
    ready->set_rank(rank);
    ready->set_blob(blob);
  }
  return job;
}

}  // namespace

std::vector<std::string> SlotsOf(const v1::Assignment& assignment, const std::string& node) {
  for (const v1::NodeShare& share : assignment.nodes()) {
    if (share.node() == node) return {share.slots().begin(), share.slots().end()};
  }
  return {};
}

Run* Transition::Find(const RunKey& key) {
  const auto it = state_.runs.find(key);
  return it == state_.runs.end() ? nullptr : &it->second;
}

void Transition::Attach(const RunKey& key, Run& run, int64_t after_sequence) {
  run.epoch = state_.next_epoch++;
  run.attach_at.reset();
  actions_.push_back(AttachShim{key, run.epoch, after_sequence});
}

void Transition::OnStreamOpened() {
  state_.open = true;
  state_.reported = state_.welcomed = false;
}

void Transition::OnStreamClosed() {
  state_.open = state_.reported = state_.welcomed = false;
  for (auto& [key, run] : state_.runs) run.relaying = false;
}

void Transition::OnMessage(const v1::ConnectResponse& message) {
  using M = v1::ConnectResponse;
  if (!state_.open) return;  // late, of a stream that is gone
  if (message.message_case() == M::kWelcome) return OnWelcome(message.welcome());
  if (!state_.welcomed) {
    actions_.push_back(CloseStream{"the coordinator did not welcome us first"});
    return;
  }
  switch (message.message_case()) {
    case M::kStart:
      OnStart(message.start());
      break;
    case M::kRevoke:
      OnRevoke(message.revoke());
      break;
    case M::kPeers: {
      const RunKey key{message.peers().job_id(), message.peers().generation()};
      v1::ShimRequest request;
      *request.mutable_peers() = message.peers().peers();
      if (Find(key) != nullptr) SendShim(key, std::move(request));
      break;
    }
    case M::kReadLog:
      actions_.push_back(ReadRankLog{message.read_log()});
      break;
    case M::kAck:
      OnAck(message.ack());
      break;
    case M::kCheckpoint: {
      const RunKey key{message.checkpoint().job_id(), message.checkpoint().generation()};
      if (Run* run = Find(key)) Control(key, *run, run->intent, /*checkpoint_now=*/true);
      break;
    }
    case M::kWelcome:
    case M::MESSAGE_NOT_SET:
      break;
  }
}

void Transition::OnWelcome(const v1::Welcome& welcome) {
  if (welcome.term() < state_.seen_term) {
    actions_.push_back(CloseStream{
        fmt::format("the coordinator has term {}, but {} was seen: it is an older one, or it lost its state "
                    "directory",
                    welcome.term(), state_.seen_term)});
    return;
  }
  if (welcome.term() > state_.seen_term) {
    state_.seen_term = welcome.term();
    actions_.push_back(PersistTerm{welcome.term()});
  }
  state_.welcomed = true;
  state_.next_heartbeat = now_;
  for (const v1::AckEvents& ack : welcome.acks()) OnAck(ack);
  for (auto& [key, run] : state_.runs) {
    if (run.phase == RunPhase::kWaiting) continue;
    run.relaying = true;
    run.end_told = false;
    run.relayed = run.acked;
    Attach(key, run, run.acked);
  }
  for (const v1::StartJob& start : welcome.desired()) OnStart(start);
}

void Transition::OnStart(const v1::StartJob& start) {
  const RunKey key = KeyOf(start.assignment());
  if (Run* run = Find(key)) {
    if (start.intent() > run->intent) Control(key, *run, start.intent(), false);
    return;
  }
  if (const Status status = CheckJobId(key.job_id); !status.ok()) return RefuseStart(key, Message(status));
  if (state_.leaving) return RefuseStart(key, fmt::format("node {} is leaving", state_.node.name()));
  const auto newest = std::find_if(state_.runs.rbegin(), state_.runs.rend(),
                                   [&](const auto& r) { return r.first.job_id == key.job_id; });
  if (newest != state_.runs.rend() && newest->first.generation > key.generation) {
    return RefuseStart(key, fmt::format("generation {} of this job is here already", newest->first.generation));
  }
  Run run;
  run.start = start;
  run.intent = std::max(start.intent(), v1::INTENT_RUN);
  bool same_job = false;
  const std::string holder = SlotHolder(key, run, &same_job);
  if (!holder.empty() && !same_job) return RefuseStart(key, holder);
  state_.runs[key] = std::move(run);  // LaunchWaiting starts it, now or when its slots are free
}

// Why the run's slots are not free; empty when they are.
std::string Transition::SlotHolder(const RunKey& key, const Run& run, bool* same_job) const {
  const std::vector<std::string> wanted = SlotsOf(run.start.assignment(), state_.node.name());
  for (const auto& [other_key, other] : state_.runs) {
    if (other_key == key || !HoldsSlots(other)) continue;
    for (const std::string& id : SlotsOf(other.start.assignment(), state_.node.name())) {
      if (std::find(wanted.begin(), wanted.end(), id) == wanted.end()) continue;
      *same_job = other_key.job_id == key.job_id;
      return fmt::format("slot {} of node {} is held by job {}", id, state_.node.name(), ToString(other_key));
    }
  }
  return "";
}

void Transition::OnRevoke(const v1::Revoke& revoke) {
  bool found = false;
  for (auto& [key, run] : state_.runs) {
    if (key.job_id != revoke.job_id() || key.generation > revoke.up_to_generation()) continue;
    found = true;
    run.forget |= revoke.forget();
    if (run.phase == RunPhase::kEnded) continue;
    if (run.phase == RunPhase::kWaiting) {
      MarkEnded(key, run);
      run.forget = true;  // nothing was started
    } else if (revoke.intent() > v1::INTENT_RUN) {
      Control(key, run, revoke.intent(), false);
      const Nanos deadline = now_ + Millis(GraceOf(run, revoke.grace_ms()));
      run.kill_at = run.kill_at ? std::min(*run.kill_at, deadline) : deadline;
    } else {
      Stop(key, run, GraceOf(run, revoke.grace_ms()));
    }
  }
  if (found || revoke.forget()) return;
  v1::ConnectRequest message;  // it may wait for this node: nothing of that job is here
  message.mutable_ended()->set_job_id(revoke.job_id());
  message.mutable_ended()->set_generation(revoke.up_to_generation());
  Send(std::move(message));
}

void Transition::OnAck(const v1::AckEvents& ack) {
  if (Run* run = Find({ack.job_id(), ack.generation()})) run->acked = std::max(run->acked, ack.sequence());
}

// The intent only rises. A shim that is not attached yet is told when it is.
void Transition::Control(const RunKey& key, Run& run, v1::Intent intent, bool checkpoint_now) {
  run.intent = std::max(run.intent, intent);
  if (run.phase != RunPhase::kRunning) return;
  v1::ShimRequest request;
  request.mutable_control()->set_intent(run.intent);
  request.mutable_control()->set_checkpoint_now(checkpoint_now);
  SendShim(key, std::move(request));
}

void Transition::Stop(const RunKey& key, Run& run, int64_t grace_ms) {
  run.stop_grace_ms = run.stop_grace_ms ? std::min(*run.stop_grace_ms, grace_ms) : grace_ms;
  if (run.phase != RunPhase::kRunning) return;
  v1::ShimRequest request;
  request.mutable_stop()->set_grace_ms(grace_ms);
  SendShim(key, std::move(request));
}

void Transition::OnShimAttached(const ShimAttached& event) {
  Run* run = Find(event.key);
  if (run == nullptr || event.epoch != run->epoch) return;
  run->known = true;
  for (const v1::RankStatus& status : event.state.ranks()) run->ranks[status.rank()] = status;
  for (const v1::RankReadyReport& report : event.state.ready()) run->ready[report.rank()] = report.blob();
  if (event.state.all_exited() && !run->relaying && run->phase != RunPhase::kEnded) MarkEnded(event.key, *run);
  if (run->phase == RunPhase::kStarted) run->phase = RunPhase::kRunning;
  if (run->phase != RunPhase::kRunning) return;
  if (run->intent > event.state.intent() && run->intent > v1::INTENT_RUN) Control(event.key, *run, run->intent, false);
  run->intent = std::max(run->intent, event.state.intent());
  if (run->stop_grace_ms) Stop(event.key, *run, *run->stop_grace_ms);
}

void Transition::OnShimReported(const ShimReported& event) {
  Run* run = Find(event.key);
  if (run == nullptr || event.epoch != run->epoch) return;
  const v1::ShimEvent& shim_event = event.event;
  const int64_t sequence = shim_event.sequence();
  if (shim_event.has_exited()) run->ranks[shim_event.exited().rank()] = shim_event.exited();
  if (shim_event.has_rank_event() && shim_event.rank_event().has_ready()) {
    run->ready[shim_event.rank_event().rank()] = shim_event.rank_event().ready().peer_blob();
  }
  const bool relay = state_.welcomed && run->relaying;
  if (relay && sequence > 0) {
    if (sequence <= run->relayed) return;
    if (sequence != run->relayed + 1) return Attach(event.key, *run, run->relayed);  // a gap: ask again
    run->relayed = sequence;
  }
  if (shim_event.all_exited()) {
    run->end_told = relay;
    return MarkEnded(event.key, *run);
  }
  if (!relay) return;
  v1::ConnectRequest message;
  if (shim_event.has_exited()) {
    message.mutable_exited()->set_job_id(event.key.job_id);
    message.mutable_exited()->set_sequence(sequence);
    *message.mutable_exited()->mutable_status() = shim_event.exited();
  } else if (shim_event.has_rank_event()) {
    message.mutable_event()->set_job_id(event.key.job_id);
    message.mutable_event()->set_sequence(sequence);
    *message.mutable_event()->mutable_event() = shim_event.rank_event();
  } else {
    return;
  }
  Send(std::move(message));
}

void Transition::MarkEnded(const RunKey& key, Run& run) {
  run.phase = RunPhase::kEnded;
  run.known = true;
  run.kill_at.reset();
  run.stop_grace_ms.reset();
  if (!state_.welcomed) return;  // the next report says so
  v1::ConnectRequest message;
  message.mutable_ended()->set_job_id(key.job_id);
  message.mutable_ended()->set_generation(key.generation);
  Send(std::move(message));
}

void Transition::OnShimClosed(const ShimClosed& event) {
  Run* run = Find(event.key);
  if (run == nullptr || event.epoch != run->epoch) return;
  // A run that ended while the stream was away still has events to tell: a shim that was just leaving did not tell
  // them.
  const bool complete = run->phase == RunPhase::kEnded && (!run->relaying || run->end_told);
  if (!complete) run->attach_at = now_ + state_.options.attach_retry;
}

void Transition::OnLaunchFailed(const LaunchFailed& event) {
  Run* run = Find(event.key);
  if (run == nullptr) return;
  RefuseStart(event.key, event.message);
  state_.runs.erase(event.key);
  actions_.push_back(ForgetRun{event.key});
}

void Transition::RefuseStart(const RunKey& key, const std::string& message) {
  if (!state_.welcomed) return;  // the coordinator will desire it again
  v1::ConnectRequest request;
  request.mutable_start_failed()->set_job_id(key.job_id);
  request.mutable_start_failed()->set_generation(key.generation);
  request.mutable_start_failed()->set_message(message);
  Send(std::move(request));
}

void Transition::OnLeave(v1::Intent intent) {
  const bool again = state_.leaving;
  state_.leaving = true;
  for (auto& [key, run] : state_.runs) {
    if (run.phase == RunPhase::kEnded) continue;
    if (run.phase == RunPhase::kWaiting) {
      MarkEnded(key, run);
      run.forget = true;
    } else if (again) {
      Stop(key, run, 0);
    } else {
      Control(key, run, intent, false);
      const Nanos deadline = now_ + Millis(GraceOf(run, 0));
      run.kill_at = run.kill_at ? std::min(*run.kill_at, deadline) : deadline;
    }
  }
}

void Transition::Settle() {
  for (auto& [key, run] : state_.runs) {
    if (run.attach_at && now_ >= *run.attach_at) Attach(key, run, run.relaying ? run.relayed : kOnlyNew);
    if (run.kill_at && now_ >= *run.kill_at && run.phase != RunPhase::kEnded) {
      run.kill_at.reset();
      Stop(key, run, 0);
    }
  }
  ForgetEnded();
  LaunchWaiting();
  ReportIfKnown();
  if (state_.welcomed && now_ >= state_.next_heartbeat) {
    state_.next_heartbeat = now_ + state_.options.heartbeat_every;
    v1::ConnectRequest message;
    for (v1::Slot& slot : CurrentSlots(state_)) *message.mutable_heartbeat()->add_slots() = std::move(slot);
    Send(std::move(message));
  }
  const bool alive = std::any_of(state_.runs.begin(), state_.runs.end(),
                                 [](const auto& r) { return r.second.phase != RunPhase::kEnded; });
  if (state_.leaving && !alive && !state_.exited) {
    state_.exited = true;
    actions_.push_back(Exit{});
  }
}

void Transition::ForgetEnded() {
  for (auto it = state_.runs.begin(); it != state_.runs.end();) {
    if (it->second.forget && it->second.phase == RunPhase::kEnded) {
      actions_.push_back(ForgetRun{it->first});
      it = state_.runs.erase(it);
    } else {
      ++it;
    }
  }
}

void Transition::LaunchWaiting() {
  for (auto& [key, run] : state_.runs) {
    bool same_job = false;
    if (run.phase != RunPhase::kWaiting || !SlotHolder(key, run, &same_job).empty()) continue;
    run.phase = RunPhase::kStarted;
    run.known = true;
    actions_.push_back(LaunchRun{run.start});
    run.relaying = state_.welcomed;
    run.relayed = 0;
    Attach(key, run, 0);
  }
}

// The report waits until every run found on disk has told its state: what is absent from it would be taken for gone.
void Transition::ReportIfKnown() {
  if (!state_.open || state_.reported) return;
  for (const auto& [key, run] : state_.runs) {
    if (run.phase != RunPhase::kWaiting && !run.known) return;
  }
  state_.reported = true;
  v1::ConnectRequest message;
  v1::AgentReport* report = message.mutable_report();
  *report->mutable_node() = state_.node;
  report->mutable_node()->clear_slots();
  for (v1::Slot& slot : CurrentSlots(state_)) *report->mutable_node()->add_slots() = std::move(slot);
  report->set_seen_term(state_.seen_term);
  for (const auto& [key, run] : state_.runs) *report->add_running() = Describe(key, run);
  Send(std::move(message));
}

}  // namespace tutti::worker
