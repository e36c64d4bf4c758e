#include "coordinator/core/core.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/stepper.h"

namespace tutti::coordinator {

bool IsTerminal(v1::JobState state) { return state >= v1::JOB_STATE_SUCCEEDED; }

bool HoldsSlots(const v1::Share& share) { return !share.ended(); }

bool IsActive(const JobEntry& entry) { return entry.status().generation() > entry.row.concluded_generation(); }

v1::Share* FindShare(JobEntry& entry, int64_t generation, const std::string& node) {
  for (v1::Share& share : *entry.row.mutable_shares()) {
    if (share.generation() == generation && share.node() == node) return &share;
  }
  return nullptr;
}

void RememberPlace(JobEntry& entry) {
  constexpr int kPlacesKept = 128;
  auto* history = entry.row.mutable_history();
  if (history->size() >= kPlacesKept) history->DeleteSubrange(0, 1);
  v1::Assignment* place = history->Add();
  place->set_generation(entry.status().generation());
  *place->mutable_nodes() = entry.status().assignment().nodes();
}

v1::RankStatus* FindRank(JobEntry& entry, int32_t rank) {
  auto* ranks = entry.row.mutable_job()->mutable_status()->mutable_ranks();
  return rank >= 0 && rank < ranks->size() ? ranks->Mutable(rank) : nullptr;
}

State LoadState(const Options& options, v1::MetaRow meta, std::vector<v1::JobRow> jobs,
                std::vector<v1::NodeRow> nodes) {
  State state;
  state.options = options;
  state.now = std::chrono::seconds(1);
  state.meta = std::move(meta);
  state.forgotten_revision = state.meta.revision();
  for (v1::JobRow& row : jobs) {
    const std::string id = row.job().id();
    state.job_of_uid.emplace(row.job().uid(), id);
    if (!IsTerminal(row.job().status().state())) state.live.insert(id);
    JobEntry entry;
    entry.row = std::move(row);
    entry.progressed = state.now;
    state.jobs.emplace(id, std::move(entry));
  }
  for (v1::NodeRow& row : nodes) {
    NodeEntry entry;
    entry.node = std::move(*row.mutable_node());
    if (entry.node.state() != v1::NODE_STATE_LOST) entry.node.set_state(v1::NODE_STATE_SUSPECTED);
    entry.silent_since = state.now;
    state.nodes.emplace(entry.node.name(), std::move(entry));
  }
  state.schedule_due = true;
  return state;
}

std::vector<Action> BeginTerm(State& state) {
  state.meta.set_term(state.meta.term() + 1);
  Stepper stepper(state, 0);
  stepper.MarkMeta();
  return stepper.Flush();
}

std::vector<Action> Step(State& state, const Event& event, Nanos now) {
  if (state.clock.count() < 0) state.clock = now;
  state.now += std::clamp(now - state.clock, Nanos(0), state.options.max_tick);
  state.clock = std::max(state.clock, now);

  Stepper stepper(state, event.unix_ms);
  std::visit([&stepper](const auto& what) { stepper.Handle(what); }, event.what);
  if (state.schedule_due) stepper.PlaceWaiting();
  return stepper.Flush();
}

void Stepper::Handle(const Tick&) {
  const std::vector<std::string> live(state_.live.begin(), state_.live.end());
  for (const std::string& id : live) {
    if (const auto it = state_.jobs.find(id); it != state_.jobs.end()) CheckDeadlines(it->second);
  }
  CheckNodes();
  SendAcks(1);
}

void Stepper::SetState(JobEntry& entry, v1::JobState state) {
  if (entry.status().state() == state) return;
  if (IsTerminal(entry.status().state()) && !state_.options.mutations.reopen_terminal) return;
  StatusOf(entry)->set_state(state);
  MarkJob(entry);
}

void Stepper::SetCondition(JobEntry& entry, std::string_view type, std::string message) {
  v1::Condition* condition = nullptr;
  for (v1::Condition& existing : *StatusOf(entry)->mutable_conditions()) {
    if (existing.type() == type) condition = &existing;
  }
  if (condition == nullptr) condition = StatusOf(entry)->add_conditions();
  condition->set_type(std::string(type));
  condition->set_status(true);
  condition->set_message(std::move(message));
  condition->set_unix_ms(unix_ms_);
  MarkJob(entry);
}

void Stepper::Send(uint64_t stream, v1::ConnectResponse message) {
  if (stream != 0) Do(SendToAgent{stream, std::move(message)});
}

void Stepper::SendToNode(const std::string& node, v1::ConnectResponse message) {
  const auto it = state_.nodes.find(node);
  if (it != state_.nodes.end()) Send(it->second.stream, std::move(message));
}

void Stepper::Answer(uint64_t request, const JobEntry& entry, bool created) {
  Do(Reply{.request = request, .status = OkStatus(), .job = entry.job(), .created = created});
}

std::vector<Action> Stepper::Flush() {
  if (dirty_jobs_.empty() && dirty_nodes_.empty() && !meta_dirty_) return std::move(actions_);
  Persist persist;
  for (const std::string& id : dirty_jobs_) {
    const auto it = state_.jobs.find(id);
    if (it == state_.jobs.end()) continue;
    const bool first = it->second.job().revision() == 0;
    state_.meta.set_revision(state_.meta.revision() + 1);
    it->second.row.mutable_job()->set_revision(state_.meta.revision());
    state_.changes.push_back({state_.meta.revision(), id});
    v1::JobRow row = it->second.row;
    row.mutable_job()->mutable_status()->clear_last_step();
    if (!(first && state_.options.mutations.forget_created_job)) persist.jobs.push_back(std::move(row));
  }
  for (const std::string& name : dirty_nodes_) {
    NodeEntry& entry = state_.nodes.at(name);
    state_.meta.set_revision(state_.meta.revision() + 1);
    entry.node.set_revision(state_.meta.revision());
    *persist.nodes.emplace_back().mutable_node() = entry.node;
  }
  while (state_.changes.size() > state_.options.changes_kept) {
    state_.forgotten_revision = state_.changes.front().revision;
    state_.changes.pop_front();
  }
  persist.meta = state_.meta;
  // A reply carries the revision that its change got.
  for (Action& action : actions_) {
    Reply* reply = std::get_if<Reply>(&action);
    if (reply == nullptr || !reply->status.ok()) continue;
    if (const auto it = state_.jobs.find(reply->job.id()); it != state_.jobs.end()) reply->job = it->second.job();
  }
  actions_.insert(actions_.begin(), Action(std::move(persist)));
  return std::move(actions_);
}

}  // namespace tutti::coordinator
