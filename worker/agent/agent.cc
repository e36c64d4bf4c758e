#include "worker/agent/agent.h"

#include <algorithm>

#include "base/check.h"
#include "worker/agent/transition.h"

namespace tutti::worker {
namespace {

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

AgentState MakeAgentState(v1::Node node, int64_t seen_term, std::vector<v1::StartJob> restored,
                          std::vector<AgentAction>* actions) {
  AgentState state;
  state.node = std::move(node);
  state.seen_term = seen_term;
  for (v1::StartJob& start : restored) {
    const RunKey key = KeyOf(start.assignment());
    Run& run = state.runs[key];
    run.start = std::move(start);
    run.phase = RunPhase::kStarted;
  }
  Transition transition(state, Nanos(0));
  for (auto& [key, run] : state.runs) transition.Attach(key, run, kOnlyNew);
  *actions = transition.TakeActions();
  return state;
}

std::vector<AgentAction> Step(AgentState& state, const AgentEvent& event, Nanos now) {
  Transition transition(state, now);
  std::visit(Overloaded{
                 [&](const StreamOpened&) { transition.OnStreamOpened(); },
                 [&](const StreamClosed&) { transition.OnStreamClosed(); },
                 [&](const FromCoordinator& e) { transition.OnMessage(e.message); },
                 [&](const ShimAttached& e) { transition.OnShimAttached(e); },
                 [&](const ShimReported& e) { transition.OnShimReported(e); },
                 [&](const ShimClosed& e) { transition.OnShimClosed(e); },
                 [&](const LaunchFailed& e) { transition.OnLaunchFailed(e); },
                 [&](const SlotsProbed& e) { state.locked_elsewhere = e.locked_elsewhere; },
                 [&](const LeaveNode& e) { transition.OnLeave(e.intent); },
                 [&](const Tick&) {},
             },
             event);
  transition.Settle();
  return transition.TakeActions();
}

Nanos NextTick(const AgentState& state, Nanos now) {
  Nanos next = now + state.options.heartbeat_every;
  if (state.welcomed) next = std::min(next, state.next_heartbeat);
  for (const auto& [key, run] : state.runs) {
    if (run.attach_at) next = std::min(next, *run.attach_at);
    if (run.kill_at) next = std::min(next, *run.kill_at);
  }
  return std::max(next, now);
}

std::vector<v1::Slot> CurrentSlots(const AgentState& state) {
  std::vector<v1::Slot> slots(state.node.slots().begin(), state.node.slots().end());
  std::map<std::string, v1::Slot*> by_id;
  for (v1::Slot& slot : slots) by_id[slot.id()] = &slot;
  for (const auto& [key, run] : state.runs) {
    if (!HoldsSlots(run)) continue;
    for (const std::string& id : SlotsOf(run.start.assignment(), state.node.name())) {
      if (const auto slot = by_id.find(id); slot != by_id.end()) slot->second->set_job_id(key.job_id);
    }
  }
  for (v1::Slot& slot : slots) {
    if (slot.job_id().empty()) slot.set_locked_elsewhere(state.locked_elsewhere.contains(slot.id()));
  }
  return slots;
}

}  // namespace tutti::worker
