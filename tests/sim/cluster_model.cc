// Agents, their shims and ranks, and the network between them and the coordinator.
#include <fmt/core.h>

#include <algorithm>

#include "tests/sim/world.h"

namespace tutti::coordinator::sim {
namespace {

constexpr Nanos kStep = std::chrono::milliseconds(200);

bool HoldsSlot(const SimRun& run, const std::string& node, const v1::Assignment& wanted) {
  if (run.ended) return false;
  for (const v1::NodeShare& held : run.start.assignment().nodes()) {
    for (const v1::NodeShare& asked : wanted.nodes()) {
      if (held.node() != node || asked.node() != node) continue;
      for (const std::string& slot : held.slots()) {
        if (std::find(asked.slots().begin(), asked.slots().end(), slot) != asked.slots().end()) return true;
      }
    }
  }
  return false;
}

}  // namespace

// ---- Network

void World::Connect(const std::string& name) {
  SimAgent& agent = AgentOf(name);
  if (!agent.up || agent.cut || !state_ || agent.stream != 0) return;
  agent.stream = ++next_stream_;
  agent.welcomed = false;
  streams_[agent.stream] = name;
  arrival_[agent.stream] = {now_, now_};
  v1::AgentReport report;
  *report.mutable_node() = agent.node;
  report.set_seen_term(agent.seen_term);
  for (auto& [key, run] : agent.runs) {
    v1::RunningJob* running = report.add_running();
    running->set_job_id(key.first);
    running->set_generation(key.second);
    *running->mutable_assignment() = run.start.assignment();
    *running->mutable_spec() = run.start.spec();
    running->set_uid(run.start.uid());
    running->set_ended(run.ended);
    run.relayed = static_cast<int64_t>(run.events.size());  // nothing before the welcome
    run.ended_told = false;
    for (const auto& [rank, blob] : run.ready) {
      v1::RankReadyBlob* ready = running->add_ready();
      ready->set_rank(rank);
      ready->set_blob(blob);
    }
  }
  Trace(fmt::format("{}: connects, {} runs", name, agent.runs.size()));
  const uint64_t stream = agent.stream;
  arrival_[stream].first = now_ + Delay(1, 40);
  At(arrival_[stream].first - now_, [this, stream, report] {
    if (streams_.contains(stream)) Feed(AgentConnected{stream, report});
  });
}

void World::Disconnect(const std::string& name) {
  SimAgent& agent = AgentOf(name);
  if (agent.stream == 0) return;
  const uint64_t stream = agent.stream;
  streams_.erase(stream);
  agent.stream = 0;
  agent.welcomed = false;
  At(Delay(0, 300), [this, stream] { Feed(AgentGone{stream}); });
}

// A cut node's packets wait in a stream that is dead: they never arrive.
void World::ToCoordinator(const std::string& name, v1::ConnectRequest message) {
  const SimAgent& agent = AgentOf(name);
  if (agent.stream == 0 || agent.cut) return;
  const uint64_t stream = agent.stream;
  Nanos& last = arrival_[stream].first;
  last = std::max(last, now_ + Delay(1, 60));
  At(last - now_, [this, stream, message = std::move(message)] {
    if (streams_.contains(stream)) Feed(AgentSaid{stream, message});
  });
}

void World::ToAgent(uint64_t stream, v1::ConnectResponse message) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  if (AgentOf(it->second).cut) {
    if (message.has_start()) ++faults_[message.start().assignment().job_id()];
    return;
  }
  Nanos& last = arrival_[stream].second;
  last = std::max(last, now_ + Delay(1, 60));
  At(last - now_, [this, stream, message = std::move(message)] {
    if (const auto open = streams_.find(stream); open != streams_.end()) OnMessage(std::string(open->second), message);
  });
}

void World::Heartbeat(const std::string& name) {
  At(Millis(1000), [this, name] { Heartbeat(name); });
  v1::ConnectRequest message;
  message.mutable_heartbeat();
  if (AgentOf(name).welcomed) ToCoordinator(name, std::move(message));
  if (AgentOf(name).stream == 0) Connect(name);
}

// ---- Agent

void World::OnMessage(const std::string& name, const v1::ConnectResponse& message) {
  SimAgent& agent = AgentOf(name);
  if (message.has_welcome()) {
    if (message.welcome().term() < agent.seen_term) return Disconnect(name);
    agent.seen_term = message.welcome().term();
    agent.welcomed = true;
    for (auto& [key, run] : agent.runs) run.relayed = 0;
    for (const v1::AckEvents& ack : message.welcome().acks()) {
      const auto it = agent.runs.find({ack.job_id(), ack.generation()});
      if (it != agent.runs.end()) it->second.relayed = std::min<int64_t>(ack.sequence(), it->second.events.size());
    }
    for (const v1::StartJob& start : message.welcome().desired()) OnStart(name, start);
    Relay(name);
  } else if (message.has_start()) {
    OnStart(name, message.start());
  } else if (message.has_revoke()) {
    OnRevoke(name, message.revoke());
  } else if (message.has_peers()) {
    const RunKey key{message.peers().job_id(), message.peers().generation()};
    if (const auto it = agent.runs.find(key); it != agent.runs.end()) it->second.peers_known = true;
    Meet(key);
  }
}

void World::OnStart(const std::string& name, const v1::StartJob& start) {
  SimAgent& agent = AgentOf(name);
  const RunKey key{start.assignment().job_id(), start.assignment().generation()};
  if (agent.runs.contains(key)) return;
  for (const auto& [other, run] : agent.runs) {
    if (HoldsSlot(run, name, start.assignment())) {
      slot_clashes_.push_back(
          fmt::format("{}: {} g{} is given slots of {} g{}", name, key.first, key.second, other.first, other.second));
    }
  }
  if (faults_on_ && !options_.control_plane_only && Chance(0.02)) {
    ++faults_[key.first];
    v1::ConnectRequest message;
    message.mutable_start_failed()->set_job_id(key.first);
    message.mutable_start_failed()->set_generation(key.second);
    message.mutable_start_failed()->set_message("no room for another process");
    return ToCoordinator(name, std::move(message));
  }
  ++stats_.generations;
  agent.runs[key].start = start;
  const uint64_t life = agent.life;
  At(Delay(20, 300), [this, name, key, life] {
    if (AgentOf(name).life == life) Spawn(name, key);
  });
}

void World::Spawn(const std::string& name, const RunKey& key) {
  SimAgent& agent = AgentOf(name);
  const auto it = agent.runs.find(key);
  if (it == agent.runs.end() || it->second.spawned || it->second.ended) return;
  SimRun& run = it->second;
  run.spawned = true;
  for (const v1::NodeShare& share : run.start.assignment().nodes()) {
    if (share.node() != name) continue;
    for (int i = 0; i < share.slots_size(); ++i) run.alive[share.first_rank() + i] = true;
  }
  for (const auto& [rank, alive] : run.alive) {
    v1::RankEvent event = NewEvent(key, rank);
    run.ready[rank] = fmt::format("{}/{}", name, rank);
    event.mutable_ready()->set_peer_blob(run.ready[rank]);
    Emit(name, key, std::move(event));
  }
  Trace(fmt::format("{}: {} g{} runs {} ranks", name, key.first, key.second, run.alive.size()));
  Meet(key);
}

void World::OnRevoke(const std::string& name, const v1::Revoke& revoke) {
  SimAgent& agent = AgentOf(name);
  bool known = false;
  for (auto it = agent.runs.begin(); it != agent.runs.end();) {
    SimRun& run = it->second;
    const RunKey key = it->first;
    const bool meant = key.first == revoke.job_id() && key.second <= revoke.up_to_generation();
    known |= meant;
    if (meant && run.ended && revoke.forget()) {
      it = agent.runs.erase(it);
      continue;
    }
    ++it;
    if (!meant || run.ended) continue;
    run.forget |= revoke.forget();
    if (!run.spawned) {
      run.spawned = run.ended = true;
    } else if (revoke.intent() > v1::INTENT_RUN) {
      run.intent = revoke.intent();
    } else if (!run.stopping) {
      run.stopping = true;
      At(Delay(10, 400), [this, name, key] { StopRanks(name, key); });
    }
  }
  if (!known && !revoke.forget()) {
    v1::ConnectRequest message;
    message.mutable_ended()->set_job_id(revoke.job_id());
    message.mutable_ended()->set_generation(revoke.up_to_generation());
    ToCoordinator(name, std::move(message));
  }
  Relay(name);
}

// Sends what was not sent on this stream, then that the run has ended.
void World::Relay(const std::string& name) {
  SimAgent& agent = AgentOf(name);
  if (!agent.welcomed) return;
  for (auto& [key, run] : agent.runs) {
    while (run.relayed < static_cast<int64_t>(run.events.size())) ToCoordinator(name, run.events[run.relayed++]);
    if (!run.ended || run.ended_told) continue;
    run.ended_told = true;
    v1::ConnectRequest message;
    message.mutable_ended()->set_job_id(key.first);
    message.mutable_ended()->set_generation(key.second);
    ToCoordinator(name, std::move(message));
  }
}

void World::Reboot(const std::string& name) {
  SimAgent& agent = AgentOf(name);
  const bool empties = Chance(0.5);
  Trace(fmt::format("{}: power lost{}", name, empties ? ", with its state directory" : ""));
  Disconnect(name);
  Hit(name);
  agent.up = false;
  ++agent.life;
  for (auto& [key, run] : agent.runs) {
    for (auto& [rank, alive] : run.alive) alive = false;
    // What its shims could not write is lost: how the ranks ended.
    run.spawned = run.ended = true;
    run.events.resize(std::min<size_t>(run.events.size(), Random(0, static_cast<int64_t>(run.events.size()))));
  }
  std::vector<RunKey> keys;
  for (const auto& [key, run] : agent.runs) keys.push_back(key);
  if (empties) agent.runs.clear();
  for (const RunKey& key : keys) Break(key, -1);
  At(Delay(500, 9000), [this, name] {
    AgentOf(name).up = true;
    Connect(name);
  });
}

// ---- Ranks

v1::RankEvent World::NewEvent(const RunKey& key, int32_t rank) const {
  v1::RankEvent event;
  event.set_generation(key.second);
  event.set_rank(rank);
  return event;
}

void World::Emit(const std::string& name, const RunKey& key, v1::RankEvent event) {
  SimAgent& agent = AgentOf(name);
  SimRun& run = agent.runs.at(key);
  v1::ConnectRequest message;
  message.mutable_event()->set_job_id(key.first);
  message.mutable_event()->set_sequence(static_cast<int64_t>(run.events.size()) + 1);
  *message.mutable_event()->mutable_event() = std::move(event);
  run.events.push_back(std::move(message));
  Relay(name);
}

void World::EndRank(const std::string& name, const RunKey& key, int32_t rank, int exit_code, int signal, bool by_us) {
  SimAgent& agent = AgentOf(name);
  const auto it = agent.runs.find(key);
  if (it == agent.runs.end() || !it->second.alive[rank]) return;
  SimRun& run = it->second;
  run.alive[rank] = false;
  v1::ConnectRequest message;
  message.mutable_exited()->set_job_id(key.first);
  message.mutable_exited()->set_sequence(static_cast<int64_t>(run.events.size()) + 1);
  v1::RankStatus* status = message.mutable_exited()->mutable_status();
  status->set_rank(rank);
  status->set_node(name);
  status->set_generation(key.second);
  status->set_state(v1::RANK_STATE_EXITED);
  status->set_exit_code(exit_code);
  status->set_signal(signal);
  status->set_stopped_by_us(by_us);
  run.events.push_back(std::move(message));
  run.ended = std::none_of(run.alive.begin(), run.alive.end(), [](const auto& entry) { return entry.second; });
  Relay(name);
  if (exit_code != 0 || signal != 0) Break(key, rank);
}

void World::StopRanks(const std::string& name, const RunKey& key) {
  SimAgent& agent = AgentOf(name);
  const auto it = agent.runs.find(key);
  if (it == agent.runs.end()) return;
  const std::map<int32_t, bool> alive = it->second.alive;
  for (const auto& [rank, lives] : alive) {
    if (lives) EndRank(name, key, rank, 0, it->second.frozen.contains(rank) ? 9 : 15, true);
  }
}

std::vector<std::pair<std::string, SimRun*>> World::Members(const RunKey& key) {
  std::vector<std::pair<std::string, SimRun*>> members;
  for (auto& [name, agent] : agents_) {
    if (const auto it = agent.runs.find(key); it != agent.runs.end() && it->second.spawned)
      members.emplace_back(name, &it->second);
  }
  return members;
}

// The survivors of a generation notice that a peer is gone, and leave as victims.
void World::Break(const RunKey& key, int32_t culprit) {
  SimGroup& group = groups_[key];
  if (group.broken) return;
  group.broken = true;
  for (const auto& [name, run] : Members(key)) {
    for (const auto& [rank, alive] : run->alive) {
      if (!alive || run->frozen.contains(rank)) continue;
      At(Delay(1, 300), [this, name = name, key, rank = rank, culprit] {
        const auto it = AgentOf(name).runs.find(key);
        if (it == AgentOf(name).runs.end() || !it->second.alive[rank] || it->second.frozen.contains(rank)) return;
        v1::RankEvent event = NewEvent(key, rank);
        event.mutable_failure()->set_victim(true);
        event.mutable_failure()->set_message("a peer is gone");
        event.mutable_failure()->set_blamed_rank(culprit);
        Emit(name, key, std::move(event));
        EndRank(name, key, rank, 75, 0, it->second.stopping);
      });
    }
  }
}

// DESIGN: a manifest (g, s) counts only if s <= the base step of every later generation.
int64_t World::NewestCheckpoint(const RunKey& key, const v1::Assignment& assignment) const {
  int64_t newest = 0;
  const auto it = store_.find(key.first);
  if (it == store_.end()) return 0;
  for (const auto& [generation, step] : it->second) {
    bool counts = generation < key.second;
    for (const v1::GenerationBase& base : assignment.bases()) {
      counts &= base.generation() <= generation || step <= base.base_step();
    }
    if (counts) newest = std::max(newest, step);
  }
  return newest;
}

// Training begins when every rank of the generation runs and knows its peers.
void World::Meet(const RunKey& key) {
  SimGroup& group = groups_[key];
  const auto members = Members(key);
  if (group.started || group.broken || members.empty()) return;
  const v1::Assignment& assignment = members.front().second->start.assignment();
  size_t ranks = 0, wanted = 0;
  for (const v1::NodeShare& share : assignment.nodes()) wanted += share.slots_size();
  for (const auto& [name, run] : members) {
    if (assignment.nodes_size() > 1 && !run->peers_known) return;
    for (const auto& [rank, alive] : run->alive) ranks += alive ? 1 : 0;
  }
  if (ranks < wanted) return;
  group.started = true;
  group.step = group.base = NewestCheckpoint(key, assignment);
  for (const auto& [name, run] : members) {
    if (!run->alive.contains(0)) continue;
    v1::RankEvent event = NewEvent(key, 0);
    event.mutable_started()->set_resumed_step(group.base);
    Emit(name, key, std::move(event));
  }
  At(kStep, [this, key] { Advance(key); });
}

void World::Advance(const RunKey& key) {
  SimGroup& group = groups_[key];
  const auto members = Members(key);
  if (group.broken || members.empty()) return;
  std::string home;
  v1::Intent intent = v1::INTENT_RUN;
  for (const auto& [name, run] : members) {
    if (!run->frozen.empty()) return;  // hangs in a collective until someone ends it
    for (const auto& [rank, alive] : run->alive) {
      if (!alive) return;
    }
    if (run->alive.contains(0)) home = name;
    intent = std::max(intent, run->intent);
  }
  if (home.empty()) return;
  const v1::JobSpec spec = AgentOf(home).runs.at(key).start.spec();
  const bool complete = group.step >= spec.train().steps();
  if (!complete) ++group.step;
  v1::RankEvent step = NewEvent(key, 0);
  step.mutable_step()->set_step(group.step);
  step.mutable_step()->set_step_ms(200);
  if (!complete) Emit(home, key, std::move(step));
  for (const auto& [name, run] : members) {  // every rank says where it is; shims do not keep that
    if (!AgentOf(name).welcomed) continue;
    v1::ConnectRequest beat;
    beat.mutable_event()->set_job_id(key.first);
    *beat.mutable_event()->mutable_event() = NewEvent(key, run->alive.begin()->first);
    beat.mutable_event()->mutable_event()->mutable_heartbeat()->set_phase(v1::PHASE_TRAINING);
    beat.mutable_event()->mutable_event()->mutable_heartbeat()->set_step(group.step + 1);
    ToCoordinator(name, std::move(beat));
  }
  const bool last = group.step >= spec.train().steps();
  const bool leaves = last || intent > v1::INTENT_RUN;
  if (leaves || group.step % spec.checkpoint().every_steps() == 0) {
    store_[key.first].emplace_back(key.second, group.step);
    if (last) final_.insert(key.first);
    v1::RankEvent event = NewEvent(key, 0);
    event.mutable_checkpoint()->set_step(group.step);
    event.mutable_checkpoint()->set_path(fmt::format("/runs/{}/step-{}.g{}", key.first, group.step, key.second));
    event.mutable_checkpoint()->set_is_final(leaves);
    Emit(home, key, std::move(event));
  }
  if (leaves) return Leave(key, last ? v1::FINISH_REASON_COMPLETED : v1::FINISH_REASON_CANCELLED);
  At(kStep, [this, key] { Advance(key); });
}

void World::Leave(const RunKey& key, v1::FinishReason reason) {
  for (const auto& [name, run] : Members(key)) {
    for (const auto& [rank, alive] : run->alive) {
      At(Delay(1, 200), [this, name = name, key, rank = rank, reason] {
        const auto it = AgentOf(name).runs.find(key);
        if (it == AgentOf(name).runs.end() || !it->second.alive[rank] || it->second.frozen.contains(rank)) return;
        v1::RankEvent event = NewEvent(key, rank);
        event.mutable_result()->set_reason(reason);
        event.mutable_result()->set_last_step(groups_[key].step);
        Emit(name, key, std::move(event));
        EndRank(name, key, rank, 0, 0, false);
      });
    }
  }
}

}  // namespace tutti::coordinator::sim
