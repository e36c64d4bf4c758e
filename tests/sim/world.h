// A seeded simulation of a cluster around the real core: agents, ranks, network, disk, clock and clients are models;
// Step is the coordinator's. One seed replays a run event for event.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/store/journal.h"

namespace tutti::coordinator::sim {

using RunKey = std::pair<std::string, int64_t>;  // job, generation

struct SimRun {  // on one node; survives its agent
  v1::StartJob start;
  std::map<int32_t, bool> alive;           // rank -> its process lives
  std::set<int32_t> frozen;                // stopped by SIGSTOP
  std::vector<v1::ConnectRequest> events;  // sequence i + 1
  int64_t relayed = 0;
  bool spawned = false;
  bool peers_known = false;
  bool ended = false;
  bool ended_told = false;
  bool stopping = false;
  bool forget = false;
  v1::Intent intent = v1::INTENT_RUN;
  std::map<int32_t, std::string> ready;
};

struct SimAgent {
  v1::Node node;
  bool up = true;    // the agent's process
  bool cut = false;  // no packet passes between it and the coordinator
  uint64_t stream = 0;
  bool welcomed = false;
  int64_t seen_term = 0;
  uint64_t life = 0;  // of the node: a reboot starts another
  std::map<RunKey, SimRun> runs;
};

struct SimGroup {  // the ranks of one generation, as they train together
  int64_t step = 0;
  int64_t base = 0;
  bool started = false;
  bool broken = false;
};

struct SimStats {
  int64_t events = 0, restarts = 0, kills = 0, evictions = 0, succeeded = 0, failed = 0, cancelled = 0, generations = 0;
};

struct SimOptions {
  uint64_t seed = 0;
  bool control_plane_only = false;  // only coordinator and agents die: no attempt may be counted
  Mutations mutations;
};

struct Violation {
  std::string oracle;
  std::string what;
};

class World;

// One law. Looks at the world after every event; says what is broken, once.
class Oracle {
 public:
  virtual ~Oracle() = default;
  virtual std::string name() const = 0;
  virtual std::optional<std::string> Check(const World& world) = 0;
  virtual std::optional<std::string> CheckEnd(const World&) { return std::nullopt; }
};
std::vector<std::unique_ptr<Oracle>> AllOracles();

class World {
 public:
  explicit World(const SimOptions& options);
  void Run();

  // What oracles look at.
  const SimOptions& options() const { return options_; }
  const State* coordinator() const { return state_ ? &*state_ : nullptr; }
  const Rows& durable() const { return durable_; }
  const std::map<std::string, SimAgent>& agents() const { return agents_; }
  const std::set<std::string>& acknowledged() const { return acknowledged_; }
  const std::vector<v1::StartJob>& starts() const { return starts_; }  // as sent, in order
  const std::vector<std::string>& slot_clashes() const { return slot_clashes_; }
  const std::map<std::string, std::vector<v1::SeriesRecord>>& series() const { return series_; }
  int64_t faults_of(const std::string& job) const;
  bool was_hurt(const std::string& job, int64_t generation, int32_t rank) const {
    return hurt_.contains({job, generation, rank});
  }
  bool has_final(const std::string& job) const { return final_.contains(job); }
  bool IsLost(const std::string& node) const;  // as the disk says

  const std::vector<Violation>& violations() const { return violations_; }
  const std::vector<std::string>& trace() const { return trace_; }
  uint64_t digest() const { return digest_; }
  const SimStats& stats() const { return stats_; }

 private:
  // world.cc: clock, faults, clients
  void At(Nanos delay, std::function<void()> what);
  int64_t Random(int64_t least, int64_t most);
  bool Chance(double probability) { return std::uniform_real_distribution<double>(0, 1)(random_) < probability; }
  Nanos Delay(int64_t least_ms, int64_t most_ms) { return Millis(Random(least_ms, most_ms)); }
  void Trace(std::string line);
  void Observe();
  void Fault();
  void Hit(const std::string& node);  // a fault that every job with ranks there, or on their way, may feel
  void Submit(int number);
  void CancelSome();
  v1::JobSpec MakeSpec(int number);

  // coordinator_model.cc
  void StartCoordinator();
  void CrashCoordinator();
  void Feed(decltype(Event::what) what);
  void Perform(const std::vector<Action>& actions);
  void Tick();

  // cluster_model.cc
  SimAgent& AgentOf(const std::string& name) { return agents_.at(name); }
  void Connect(const std::string& name);
  void Disconnect(const std::string& name);
  void ToCoordinator(const std::string& name, v1::ConnectRequest message);
  void ToAgent(uint64_t stream, v1::ConnectResponse message);
  void OnMessage(const std::string& name, const v1::ConnectResponse& message);
  void OnStart(const std::string& name, const v1::StartJob& start);
  void OnRevoke(const std::string& name, const v1::Revoke& revoke);
  void Spawn(const std::string& name, const RunKey& key);
  void Emit(const std::string& name, const RunKey& key, v1::RankEvent event);
  void EndRank(const std::string& name, const RunKey& key, int32_t rank, int exit_code, int signal, bool by_us);
  void StopRanks(const std::string& name, const RunKey& key);
  void Relay(const std::string& name);
  void Heartbeat(const std::string& name);
  void Meet(const RunKey& key);
  void Advance(const RunKey& key);
  void Break(const RunKey& key, int32_t culprit);
  void Leave(const RunKey& key, v1::FinishReason reason);
  std::vector<std::pair<std::string, SimRun*>> Members(const RunKey& key);
  v1::RankEvent NewEvent(const RunKey& key, int32_t rank) const;
  int64_t NewestCheckpoint(const RunKey& key, const v1::Assignment& assignment) const;
  void Reboot(const std::string& name);

  const SimOptions options_;
  std::mt19937_64 random_;
  Nanos now_{0};
  uint64_t next_event_ = 0;
  struct Timed {
    Nanos at;
    uint64_t order;
    std::function<void()> what;
    bool operator>(const Timed& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
  };
  std::priority_queue<Timed, std::vector<Timed>, std::greater<>> timeline_;
  bool faults_on_ = true;

  std::optional<State> state_;
  uint64_t incarnation_ = 0;
  std::unique_ptr<Journal> journal_;
  Rows durable_;
  std::map<std::string, std::vector<v1::SeriesRecord>> series_;
  std::map<uint64_t, std::string> streams_;              // open ones -> node
  std::map<uint64_t, std::pair<Nanos, Nanos>> arrival_;  // of the last message, to the coordinator and to the agent
  uint64_t next_stream_ = 0;
  uint64_t next_request_ = 0;
  std::map<uint64_t, int> submits_;  // request -> number of the client's job
  std::map<int, std::string> uids_;
  std::map<int, v1::JobSpec> specs_;
  std::set<int> answered_;

  std::map<std::string, SimAgent> agents_;
  std::map<RunKey, SimGroup> groups_;
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>>
      store_;  // job -> (generation, step) of committed manifests

  std::set<std::string> acknowledged_;
  std::vector<v1::StartJob> starts_;
  std::vector<std::string> slot_clashes_;
  std::map<std::string, int64_t> faults_;
  std::set<std::tuple<std::string, int64_t, int32_t>> hurt_;
  std::set<std::string> final_;
  std::vector<std::unique_ptr<Oracle>> oracles_;
  std::vector<Violation> violations_;
  std::vector<std::string> trace_;
  uint64_t digest_ = 0;
  SimStats stats_;
};

}  // namespace tutti::coordinator::sim
