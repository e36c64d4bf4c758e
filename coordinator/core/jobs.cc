// Jobs: creation, cancellation, placement, the end.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "coordinator/core/cluster.h"
#include "coordinator/core/stepper.h"

namespace tutti::coordinator {
namespace {

void ClearGeneration(JobEntry& entry) {
  entry.peers.clear();
  entry.peers_sent = false;
  entry.progress.clear();
  entry.longest_step = Nanos(0);
  entry.not_before = entry.victim_deadline = entry.stop_deadline = Nanos(0);
  entry.stopping = false;
  entry.stop_intent = v1::INTENT_UNSPECIFIED;
  entry.row.clear_bad_ends();
  entry.row.clear_outside();
  entry.row.clear_no_retry();
  entry.row.clear_blamed_rank();
}

}  // namespace

void Stepper::Handle(const CreateJob& event) {
  if (const auto known = state_.job_of_uid.find(event.uid); known != state_.job_of_uid.end()) {
    JobEntry& entry = state_.jobs.at(known->second);
    const bool adopted = entry.job().spec_digest().empty();  // its digest was never told
    if (adopted && entry.job().spec().SerializeAsString() == event.spec.SerializeAsString()) {
      entry.row.mutable_job()->set_spec_digest(event.digest);
      MarkJob(entry);
    }
    if (entry.job().spec_digest() == event.digest) return Answer(event.request, entry, false);
    Do(Reply{.request = event.request,
             .status = AlreadyExists("uid {} names job {} with another specification; a new job needs a new uid",
                                     event.uid, known->second)});
    return;
  }
  JobEntry& entry = state_.jobs[event.id];
  state_.job_of_uid.emplace(event.uid, event.id);
  state_.live.insert(event.id);
  v1::Job* job = entry.row.mutable_job();
  job->set_id(event.id);
  job->set_uid(event.uid);
  job->set_spec_digest(event.digest);
  *job->mutable_spec() = event.spec;
  job->set_create_unix_ms(unix_ms_);
  SetState(entry, v1::JOB_STATE_PENDING);
  if (event.has_plan) {
    *StatusOf(entry)->mutable_plan() = event.plan;
    SetCondition(entry, "Planned", fmt::format("{} steps", WithCommas(event.plan.steps())));
  }
  MarkJob(entry);
  state_.schedule_due = true;
  Answer(event.request, entry, true);
}

void Stepper::Handle(const UndoCreate& event) {
  const auto it = state_.jobs.find(event.id);
  if (it == state_.jobs.end()) return;
  state_.job_of_uid.erase(it->second.job().uid());
  state_.live.erase(event.id);
  state_.jobs.erase(it);
  state_.schedule_due = true;
}

void Stepper::Handle(const CancelJob& event) {
  const auto it = state_.jobs.find(event.id);
  if (it == state_.jobs.end()) {
    Do(Reply{.request = event.request, .status = NotFound("there is no job {}", event.id)});
    return;
  }
  JobEntry& entry = it->second;
  if (!IsTerminal(entry.status().state())) {
    StatusOf(entry)->set_cancel_requested(true);
    MarkJob(entry);
    if (!IsActive(entry)) {
      Finish(entry, v1::JOB_STATE_CANCELLED, "Cancelled", "cancelled before its ranks ran again");
    } else {
      SetState(entry, v1::JOB_STATE_CANCELLING);
      const int64_t grace_ms = entry.job().spec().restart().grace_ms();
      // Ranks that are being stopped already have no checkpoint to write.
      const bool force = event.force || entry.stopping;
      StopGeneration(entry, force ? v1::INTENT_UNSPECIFIED : v1::INTENT_CANCEL, grace_ms);
      if (!force) entry.stop_deadline = state_.now + Millis(grace_ms);
      Settle(entry);
    }
  }
  Answer(event.request, entry, false);
}

ClusterView ViewCluster(const State& state) {
  std::map<std::pair<std::string, std::string>, std::string> holders;  // (node, slot) -> job
  for (const auto& [id, entry] : state.jobs) {
    for (const v1::Share& share : entry.row.shares()) {
      if (!HoldsSlots(share) || state.options.mutations.share_slots) continue;
      for (const std::string& slot : share.slots()) holders[{share.node(), slot}] = id;
    }
  }
  ClusterView cluster;
  for (const auto& [name, entry] : state.nodes) {
    if (entry.node.state() == v1::NODE_STATE_LOST) continue;
    NodeView node{.name = name, .usable = entry.stream != 0 && entry.node.state() == v1::NODE_STATE_READY, .slots = {}};
    for (const v1::Slot& slot : entry.node.slots()) {
      const auto holder = holders.find({name, slot.id()});
      node.slots.push_back({.id = slot.id(),
                            .device = slot.device(),
                            .cores = slot.cores_size(),
                            .memory_bytes = slot.memory_bytes(),
                            .holder = holder == holders.end() ? "" : holder->second,
                            .locked_elsewhere = slot.locked_elsewhere()});
    }
    cluster.nodes.push_back(std::move(node));
  }
  return cluster;
}

PlacementRequest RequestOf(const std::string& job_id, const v1::JobSpec& spec, int64_t memory_bytes) {
  const v1::Resources& resources = spec.resources();
  const bool unset = resources.device() == v1::DEVICE_KIND_UNSPECIFIED;
  return {.job_id = job_id,
          .ranks = std::max<int64_t>(1, resources.ranks()),
          .device = unset ? v1::DEVICE_KIND_CPU : resources.device(),
          .cores_per_rank = resources.cores_per_rank(),
          .memory_bytes = memory_bytes};
}

void Stepper::PlaceWaiting() {
  state_.schedule_due = false;
  std::vector<PlacementRequest> queue;
  for (const std::string& id : state_.live) {
    const JobEntry& entry = state_.jobs.at(id);
    if (IsActive(entry) || entry.not_before > state_.now) continue;
    queue.push_back(RequestOf(id, entry.job().spec(), entry.status().plan().memory().resident_bytes()));
  }
  if (queue.empty()) return;
  for (Decision& decision : Schedule(ViewCluster(state_), queue, state_.options.mutations.partial_gang)) {
    JobEntry& entry = state_.jobs.at(decision.job_id);
    if (!decision.nodes.empty()) {
      Assign(entry, std::move(decision.nodes), std::move(decision.reasons));
    } else if (entry.status().wait_reason() != decision.message) {
      StatusOf(entry)->set_wait_reason(decision.message);
      StatusOf(entry)->set_reason(decision.reason);
      StatusOf(entry)->set_message(decision.message);
      MarkJob(entry);
    }
  }
}

void Stepper::Assign(JobEntry& entry, std::vector<v1::NodeShare> nodes, std::vector<std::string> reasons) {
  ClearGeneration(entry);
  v1::JobStatus* status = StatusOf(entry);
  const bool reuse = state_.options.mutations.reuse_generation && status->generation() > 0;
  const int64_t generation = reuse ? status->generation() : status->generation() + 1;
  if (reuse) entry.row.set_concluded_generation(generation - 1);
  status->set_generation(generation);
  status->set_attempts(status->attempts() + 1);
  status->clear_ranks();
  status->clear_result();  // of a generation that yielded
  status->clear_wait_reason();
  status->set_reason("Placed");
  status->set_message(
      fmt::format("generation {} starts on {} node{}", generation, nodes.size(), nodes.size() == 1 ? "" : "s"));
  if (status->start_unix_ms() == 0) status->set_start_unix_ms(unix_ms_);

  v1::Assignment* assignment = status->mutable_assignment();
  assignment->Clear();
  assignment->set_job_id(entry.job().id());
  assignment->set_generation(generation);
  assignment->set_base_step(status->durable_step());
  *assignment->mutable_bases() = status->bases();
  for (std::string& reason : reasons) assignment->add_reasons(std::move(reason));
  for (v1::NodeShare& node : nodes) {
    v1::Share* share = entry.row.add_shares();
    share->set_generation(generation);
    share->set_node(node.node());
    *share->mutable_slots() = node.slots();
    for (int i = 0; i < node.slots_size(); ++i) {
      v1::RankStatus* rank = status->add_ranks();
      rank->set_rank(node.first_rank() + i);
      rank->set_node(node.node());
      rank->set_generation(generation);
      rank->set_state(v1::RANK_STATE_ASSIGNED);
      for (const v1::Slot& slot : state_.nodes.at(node.node()).node.slots()) {
        if (slot.id() == node.slots(i)) *rank->mutable_cores() = slot.cores();
      }
    }
    *assignment->add_nodes() = std::move(node);
  }
  RememberPlace(entry);
  status->set_completed_step(status->durable_step());  // what lies above will be made again
  entry.row.set_start_best_step(entry.row.best_step());
  entry.row.set_start_durable_step(status->durable_step());
  entry.progressed = state_.now;
  SetState(entry, v1::JOB_STATE_STARTING);
  SetCondition(entry, "Placed", fmt::format("{}", fmt::join(assignment->reasons(), "; ")));
  for (const v1::NodeShare& node : assignment->nodes()) {
    v1::ConnectResponse message;
    *message.mutable_start() = MakeStart(entry);
    SendToNode(node.node(), std::move(message));
  }
}

v1::StartJob Stepper::MakeStart(const JobEntry& entry) const {
  v1::StartJob start;
  *start.mutable_assignment() = entry.status().assignment();
  *start.mutable_spec() = entry.job().spec();
  start.set_uid(entry.job().uid());
  start.set_intent(entry.status().cancel_requested() ? v1::INTENT_CANCEL : v1::INTENT_RUN);
  return start;
}

void Stepper::Finish(JobEntry& entry, v1::JobState state, std::string reason, std::string message) {
  v1::JobStatus* status = StatusOf(entry);
  SetState(entry, state);
  status->set_reason(std::move(reason));
  status->set_message(std::move(message));
  status->clear_wait_reason();
  status->set_end_unix_ms(unix_ms_);
  entry.row.set_concluded_generation(status->generation());
  entry.stop_deadline = entry.victim_deadline = Nanos(0);
  MarkJob(entry);
  Forget(entry);
  state_.live.erase(entry.job().id());
  state_.schedule_due = true;
}

void Stepper::Forget(JobEntry& entry) {
  auto* shares = entry.row.mutable_shares();
  for (int i = shares->size() - 1; i >= 0; --i) {
    const v1::Share& share = shares->Get(i);
    if (share.generation() > entry.row.concluded_generation() || !share.ended()) continue;
    SendRevoke(share.node(), entry, share.generation(), v1::INTENT_UNSPECIFIED, 0, true);
    shares->DeleteSubrange(i, 1);
    MarkJob(entry);
  }
}

}  // namespace tutti::coordinator
