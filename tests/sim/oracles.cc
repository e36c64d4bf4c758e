// The laws. Each looks at what is durable, at what agents were told and at what really runs; none looks into the core.
#include <fmt/core.h>

#include <map>
#include <tuple>

#include "tests/sim/world.h"

namespace tutti::coordinator::sim {
namespace {

const v1::JobStatus& StatusOf(const v1::JobRow& row) { return row.job().status(); }

// A generation number names one assignment for ever, and each new one is higher.
class GenerationsRise : public Oracle {
 public:
  std::string name() const override { return "GenerationsRise"; }
  std::optional<std::string> Check(const World& world) override {
    for (; at_ < world.starts().size(); ++at_) {
      const v1::Assignment& assignment = world.starts()[at_].assignment();
      const std::string content = Places(assignment);
      auto& known = seen_[assignment.job_id()];
      const auto [it, fresh] = known.try_emplace(assignment.generation(), content);
      if (!fresh && it->second != content) {
        return fmt::format("{} g{} names two assignments: {} and {}", assignment.job_id(), assignment.generation(),
                           it->second, content);
      }
    }
    for (const v1::JobRow& row : world.durable().jobs) {
      auto& [attempts, generation] = last_[row.job().id()];
      const v1::JobStatus& status = StatusOf(row);
      if (status.attempts() > attempts && status.generation() <= generation) {
        return fmt::format("{}: attempt {} has generation {}, the one before had {}", row.job().id(), status.attempts(),
                           status.generation(), generation);
      }
      std::tie(attempts, generation) = std::tuple(status.attempts(), status.generation());
    }
    return std::nullopt;
  }

 private:
  static std::string Places(const v1::Assignment& assignment) {
    std::string text;
    for (const v1::NodeShare& share : assignment.nodes()) {
      text += share.node() + ":";
      for (const std::string& slot : share.slots()) text += slot + ",";
    }
    return text;
  }
  size_t at_ = 0;
  std::map<std::string, std::map<int64_t, std::string>> seen_;
  std::map<std::string, std::pair<int64_t, int64_t>> last_;
};

class NoSlotTwice : public Oracle {
 public:
  std::string name() const override { return "NoSlotTwice"; }
  std::optional<std::string> Check(const World& world) override {
    if (world.slot_clashes().empty()) return std::nullopt;
    return world.slot_clashes().front();
  }
};

class GangsAreWhole : public Oracle {
 public:
  std::string name() const override { return "GangsAreWhole"; }
  std::optional<std::string> Check(const World& world) override {
    for (; at_ < world.starts().size(); ++at_) {
      const v1::StartJob& start = world.starts()[at_];
      int64_t ranks = 0;
      for (const v1::NodeShare& share : start.assignment().nodes()) ranks += share.slots_size();
      if (ranks != start.spec().resources().ranks()) {
        return fmt::format("{} got {} of {} ranks", start.assignment().job_id(), ranks,
                           start.spec().resources().ranks());
      }
    }
    return std::nullopt;
  }

 private:
  size_t at_ = 0;
};

class TerminalIsFinal : public Oracle {
 public:
  std::string name() const override { return "TerminalIsFinal"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      const v1::JobState state = StatusOf(row).state();
      const auto [it, fresh] =
          ended_.try_emplace(row.job().id(), IsTerminal(state) ? state : v1::JOB_STATE_UNSPECIFIED);
      if (!fresh && it->second != v1::JOB_STATE_UNSPECIFIED && it->second != state) {
        return fmt::format("{} went from {} to {}", row.job().id(), v1::JobState_Name(it->second),
                           v1::JobState_Name(state));
      }
      if (IsTerminal(state)) it->second = state;
    }
    return std::nullopt;
  }

 private:
  std::map<std::string, v1::JobState> ended_;
};

// Ranks of a node that was given up are fenced by the generation; all others count.
class NoRankOutlivesItsJob : public Oracle {
 public:
  std::string name() const override { return "NoRankOutlivesItsJob"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      if (!IsTerminal(StatusOf(row).state()) || !checked_.insert(row.job().id()).second) continue;
      for (const auto& [name, agent] : world.agents()) {
        if (world.IsLost(name) || WasLost(row, name)) continue;
        for (const auto& [key, run] : agent.runs) {
          if (key.first != row.job().id() || key.second != StatusOf(row).generation()) continue;
          for (const auto& [rank, alive] : run.alive) {
            if (alive) return fmt::format("{} is over while rank {} runs on {}", row.job().id(), rank, name);
          }
        }
      }
    }
    return std::nullopt;
  }
  static bool WasLost(const v1::JobRow& row, const std::string& node) {
    for (const v1::Share& share : row.shares()) {
      if (share.node() == node && share.lost()) return true;
    }
    for (const v1::RankStatus& rank : StatusOf(row).ranks()) {
      if (rank.node() == node && rank.state() == v1::RANK_STATE_LOST) return true;
    }
    return false;
  }

 private:
  std::set<std::string> checked_;
};

// When a generation is assigned, no rank of an older one is alive where the coordinator can see it: only one can
// commit.
class OneCommitter : public Oracle {
 public:
  std::string name() const override { return "OneCommitter"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      for (const v1::Share& share : row.shares()) {
        if (share.lost()) fenced_.insert({row.job().id(), share.generation(), share.node()});
      }
      int64_t& newest = newest_[row.job().id()];
      const int64_t generation = StatusOf(row).generation();
      if (generation <= newest) continue;
      const int64_t before = std::exchange(newest, generation);
      for (const auto& [name, agent] : world.agents()) {
        const auto it = agent.runs.find({row.job().id(), before});
        if (it == agent.runs.end() || world.IsLost(name) || fenced_.contains({row.job().id(), before, name})) continue;
        for (const auto& [rank, alive] : it->second.alive) {
          if (alive)
            return fmt::format("{} g{} is assigned while rank {} of g{} runs on {}", row.job().id(), generation, rank,
                               before, name);
        }
      }
    }
    return std::nullopt;
  }

 private:
  std::map<std::string, int64_t> newest_;
  std::set<std::tuple<std::string, int64_t, std::string>> fenced_;
};

class AcknowledgedIsDurable : public Oracle {
 public:
  std::string name() const override { return "AcknowledgedIsDurable"; }
  std::optional<std::string> Check(const World& world) override {
    if (world.acknowledged().size() == checked_) return std::nullopt;
    checked_ = world.acknowledged().size();
    return Missing(world);
  }
  std::optional<std::string> CheckEnd(const World& world) override { return Missing(world); }

 private:
  static std::optional<std::string> Missing(const World& world) {
    std::set<std::string> durable, uids;
    for (const v1::JobRow& row : world.durable().jobs) {
      durable.insert(row.job().id());
      if (!uids.insert(row.job().uid()).second) return fmt::format("two jobs have {}", row.job().uid());
    }
    for (const std::string& id : world.acknowledged()) {
      if (!durable.contains(id)) return fmt::format("{} was acknowledged and is not on disk", id);
    }
    return std::nullopt;
  }
  size_t checked_ = 0;
};

// Deaths of coordinators and agents and lost connections cost nothing: every failure has a real fault of that job
// behind it.
class FailuresHaveFaults : public Oracle {
 public:
  std::string name() const override { return "FailuresHaveFaults"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      if (StatusOf(row).failures_size() <= world.faults_of(row.job().id())) continue;
      return fmt::format("{} has {} failures, {} faults hit it; the last: {}", row.job().id(),
                         StatusOf(row).failures_size(), world.faults_of(row.job().id()),
                         StatusOf(row).failures(StatusOf(row).failures_size() - 1).cause());
    }
    return std::nullopt;
  }
};

// Who is blamed was hurt.
class CausesAreTrue : public Oracle {
 public:
  std::string name() const override { return "CausesAreTrue"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      for (const v1::Failure& failure : StatusOf(row).failures()) {
        if (failure.kind() != v1::FAILURE_KIND_USER || failure.rank() < 0) continue;
        if (!checked_.insert({row.job().id(), failure.generation()}).second) continue;
        if (world.was_hurt(row.job().id(), failure.generation(), failure.rank())) continue;
        return fmt::format("{} g{}: rank {} is blamed ({}) and nothing was done to it", row.job().id(),
                           failure.generation(), failure.rank(), failure.cause());
      }
    }
    return std::nullopt;
  }

 private:
  std::set<std::pair<std::string, int64_t>> checked_;
};

// Durable history: within a generation completed steps never go back; durable ones never at all.
class StepsAreMonotone : public Oracle {
 public:
  std::string name() const override { return "StepsAreMonotone"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      auto& [generation, completed, durable] = last_[row.job().id()];
      const v1::JobStatus& status = StatusOf(row);
      if (status.generation() == generation && status.completed_step() < completed) {
        return fmt::format("{} g{}: completed {} after {}", row.job().id(), generation, status.completed_step(),
                           completed);
      }
      if (status.durable_step() < durable) {
        return fmt::format("{}: durable {} after {}", row.job().id(), status.durable_step(), durable);
      }
      std::tie(generation, completed, durable) =
          std::tuple(status.generation(), status.completed_step(), status.durable_step());
    }
    return std::nullopt;
  }

 private:
  std::map<std::string, std::tuple<int64_t, int64_t, int64_t>> last_;
};

// SUCCEEDED means that the final manifest exists; and once the faults end every job comes to an end with nothing left
// behind.
class EndsWell : public Oracle {
 public:
  std::string name() const override { return "EndsWell"; }
  std::optional<std::string> Check(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      const bool succeeded = StatusOf(row).state() == v1::JOB_STATE_SUCCEEDED;
      if (succeeded && !world.has_final(row.job().id()))
        return fmt::format("{} SUCCEEDED without a final manifest", row.job().id());
    }
    return std::nullopt;
  }
  std::optional<std::string> CheckEnd(const World& world) override {
    for (const v1::JobRow& row : world.durable().jobs) {
      const v1::JobStatus& status = StatusOf(row);
      if (!IsTerminal(status.state()) && status.reason() != "NeverFits") {
        return fmt::format("{} is still {}: {} {}", row.job().id(), v1::JobState_Name(status.state()), status.message(),
                           status.wait_reason());
      }
      for (const v1::Share& share : row.shares()) {
        return fmt::format("{} still holds slots of {} (g{})", row.job().id(), share.node(), share.generation());
      }
    }
    for (const auto& [name, agent] : world.agents()) {
      if (!agent.runs.empty())
        return fmt::format("{} still keeps {} g{}", name, agent.runs.begin()->first.first,
                           agent.runs.begin()->first.second);
    }
    return std::nullopt;
  }
};

}  // namespace

std::vector<std::unique_ptr<Oracle>> AllOracles() {
  std::vector<std::unique_ptr<Oracle>> oracles;
  oracles.push_back(std::make_unique<GenerationsRise>());
  oracles.push_back(std::make_unique<NoSlotTwice>());
  oracles.push_back(std::make_unique<GangsAreWhole>());
  oracles.push_back(std::make_unique<TerminalIsFinal>());
  oracles.push_back(std::make_unique<NoRankOutlivesItsJob>());
  oracles.push_back(std::make_unique<OneCommitter>());
  oracles.push_back(std::make_unique<AcknowledgedIsDurable>());
  oracles.push_back(std::make_unique<FailuresHaveFaults>());
  oracles.push_back(std::make_unique<CausesAreTrue>());
  oracles.push_back(std::make_unique<StepsAreMonotone>());
  oracles.push_back(std::make_unique<EndsWell>());
  return oracles;
}

}  // namespace tutti::coordinator::sim
