#include "tests/sim/world.h"

#include <fmt/core.h>

#include "base/digest.h"

namespace tutti::coordinator::sim {
namespace {

constexpr int kNodes = 4;
constexpr int kSlots = 2;
constexpr int kJobs = 6;
constexpr Nanos kFaultsEnd = std::chrono::seconds(40);
constexpr Nanos kEnd = std::chrono::seconds(400);
constexpr size_t kTraceKept = 400;

}  // namespace

World::World(const SimOptions& options)
    : options_(options),
      random_(options.seed * 0x9E3779B97F4A7C15u + 1),
      journal_(NewMemoryJournal()),
      oracles_(AllOracles()) {
  for (int i = 0; i < kNodes; ++i) {
    SimAgent agent;
    agent.node.set_name(fmt::format("node-{}", static_cast<char>('a' + i)));
    for (int s = 0; s < kSlots; ++s) {
      v1::Slot* slot = agent.node.add_slots();
      slot->set_id(fmt::format("cpu{}", s));
      slot->set_device(v1::DEVICE_KIND_CPU);
      slot->add_cores(s);
    }
    const std::string name = agent.node.name();
    agents_.emplace(name, std::move(agent));
  }
}

void World::At(Nanos delay, std::function<void()> what) {
  timeline_.push({now_ + delay, next_event_++, std::move(what)});
}

int64_t World::Random(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random_);
}

void World::Trace(std::string line) {
  digest_ = Xxh3(line, digest_);
  trace_.push_back(fmt::format("{:9.3f} {}", std::chrono::duration<double>(now_).count(), line));
  if (trace_.size() > 2 * kTraceKept) trace_.erase(trace_.begin(), trace_.begin() + kTraceKept);
}

int64_t World::faults_of(const std::string& job) const {
  const auto it = faults_.find(job);
  return it == faults_.end() ? 0 : it->second;
}

bool World::IsLost(const std::string& node) const {
  for (const v1::NodeRow& row : durable_.nodes) {
    if (row.node().name() == node) return row.node().state() == v1::NODE_STATE_LOST;
  }
  return false;
}

void World::Observe() {
  for (const auto& oracle : oracles_) {
    if (std::optional<std::string> broken = oracle->Check(*this)) violations_.push_back({oracle->name(), *broken});
  }
}

void World::Run() {
  StartCoordinator();
  for (const auto& [name, agent] : agents_) {
    At(Delay(0, 500), [this, name = name] { Connect(name); });
    At(Millis(1000), [this, name = name] { Heartbeat(name); });
  }
  for (int i = 0; i < kJobs; ++i) At(Delay(0, 15000), [this, i] { Submit(i); });
  At(Millis(100), [this] { Tick(); });
  At(Delay(500, 3000), [this] { Fault(); });
  while (!timeline_.empty() && violations_.empty()) {
    const Timed next = timeline_.top();
    timeline_.pop();
    if (next.at > kEnd) break;
    now_ = next.at;
    if (faults_on_ && now_ > kFaultsEnd) {
      faults_on_ = false;
      Trace("faults end");
      for (auto& [name, agent] : agents_) {
        agent.cut = false;
        agent.up = true;
      }
    }
    ++stats_.events;
    next.what();
    Observe();
  }
  if (!violations_.empty()) return;
  for (const auto& oracle : oracles_) {
    if (std::optional<std::string> broken = oracle->CheckEnd(*this)) violations_.push_back({oracle->name(), *broken});
  }
}

void World::Hit(const std::string& node) {
  std::set<std::string> jobs;
  for (const auto& [key, run] : AgentOf(node).runs) jobs.insert(key.first);
  for (const v1::JobRow& row : durable_.jobs) {
    for (const v1::Share& share : row.shares()) {
      if (share.node() == node) jobs.insert(row.job().id());
    }
  }
  for (const std::string& job : jobs) ++faults_[job];
}

void World::Fault() {
  if (!faults_on_) return;
  At(Delay(300, 4000), [this] { Fault(); });
  const std::string name = fmt::format("node-{}", static_cast<char>('a' + Random(0, kNodes - 1)));
  SimAgent& agent = AgentOf(name);
  const int64_t kind = Random(0, options_.control_plane_only ? 2 : 6);
  if (kind == 0) return CrashCoordinator();
  if (kind == 1) {  // the agent dies and comes back; its shims go on
    Trace(fmt::format("{}: agent killed", name));
    Disconnect(name);
    agent.up = false;
    At(Delay(50, 2500), [this, name] {
      AgentOf(name).up = true;
      Connect(name);
    });
    return;
  }
  if (kind == 2) return CancelSome();
  if (kind == 3) {  // its packets are lost for a while
    Trace(fmt::format("{}: cut off", name));
    agent.cut = true;
    Hit(name);
    At(Delay(500, 12000), [this, name] {
      AgentOf(name).cut = false;
      Disconnect(name);
      Connect(name);
    });
    return;
  }
  if (kind == 4) return Reboot(name);
  for (auto& [key, run] : agent.runs) {
    for (auto& [rank, alive] : run.alive) {
      if (!alive || !Chance(0.6)) continue;
      ++faults_[key.first];
      hurt_.insert({key.first, key.second, rank});
      if (kind == 5) {
        ++stats_.kills;
        Trace(fmt::format("{}: rank {} of {} g{} killed", name, rank, key.first, key.second));
        return EndRank(name, key, rank, 0, 9, false);
      }
      Trace(fmt::format("{}: rank {} of {} g{} frozen", name, rank, key.first, key.second));
      run.frozen.insert(rank);
      return;
    }
  }
}

v1::JobSpec World::MakeSpec(int number) {
  v1::JobSpec spec;
  spec.mutable_metadata()->set_name(fmt::format("job-{}", number));
  spec.mutable_resources()->set_ranks(Chance(0.05) ? kNodes * kSlots + 1 : Random(1, 5));
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  spec.mutable_train()->set_steps(Random(10, 40));
  spec.mutable_checkpoint()->set_every_steps(Random(3, 9));
  spec.mutable_restart()->set_max_user_failures(static_cast<int32_t>(Random(0, 5)));
  spec.mutable_restart()->set_max_node_failures(static_cast<int32_t>(Random(0, 6)));
  spec.mutable_restart()->set_backoff_ms(200);
  spec.mutable_restart()->set_grace_ms(1000);
  return spec;
}

// A client that asks again, with the same uid, until it is answered; and sometimes once more.
void World::Submit(int number) {
  if (answered_.contains(number) && !Chance(0.3)) return;
  if (!uids_.contains(number)) {
    uids_[number] = fmt::format("uid-{}", number);
    specs_[number] = MakeSpec(number);
  }
  At(Millis(1500), [this, number] { Submit(number); });
  if (!state_) return;
  CreateJob event;
  event.request = ++next_request_;
  event.id = fmt::format("JOB-{:04}", event.request);
  event.uid = uids_[number];
  event.digest = event.uid;
  event.spec = specs_[number];
  event.has_plan = true;
  event.plan.set_steps(event.spec.train().steps());
  submits_[event.request] = number;
  Feed(std::move(event));
}

void World::CancelSome() {
  if (!state_ || acknowledged_.empty() || !Chance(0.25)) return;
  auto it = acknowledged_.begin();
  std::advance(it, Random(0, static_cast<int64_t>(acknowledged_.size()) - 1));
  Feed(tutti::coordinator::CancelJob{.request = ++next_request_, .id = *it, .force = Chance(0.3)});
}

}  // namespace tutti::coordinator::sim
