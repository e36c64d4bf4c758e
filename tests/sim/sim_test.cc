// Seeds of the cluster simulation. TUTTI_SIM_SEED=N runs one seed and prints its trace; TUTTI_SIM_SEEDS=N runs so many
// (default 200).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/process.h"
#include "tests/sim/world.h"

namespace tutti::coordinator::sim {
namespace {

SimOptions OptionsOf(uint64_t seed) { return {.seed = seed, .control_plane_only = seed % 5 == 0, .mutations = {}}; }

std::string Report(uint64_t seed, const World& world) {
  std::string text;
  for (const Violation& violation : world.violations()) {
    text += fmt::format("seed {}: {}: {}\n", seed, violation.oracle, violation.what);
  }
  if (text.empty()) return text;
  for (size_t i = world.trace().size() > 60 ? world.trace().size() - 60 : 0; i < world.trace().size(); ++i)
    text += world.trace()[i] + "\n";
  return text + fmt::format("run it again with TUTTI_SIM_SEED={}\n", seed);
}

TEST(Simulation, NoLawIsBrokenAndSeedsReplay) {
  uint64_t first = 1, last = 200;
  if (const auto count = GetEnv("TUTTI_SIM_SEEDS")) last = std::stoull(*count);
  if (const auto seed = GetEnv("TUTTI_SIM_SEED")) first = last = std::stoull(*seed);
  SimStats total;
  int failures = 0;
  for (uint64_t seed = first; seed <= last && failures < 3; ++seed) {
    World once(OptionsOf(seed));
    once.Run();
    if (first == last) {
      for (const std::string& line : once.trace()) fmt::print("{}\n", line);
    }
    if (!once.violations().empty()) {
      ++failures;
      ADD_FAILURE() << Report(seed, once);
      continue;
    }
    World again(OptionsOf(seed));
    again.Run();
    ASSERT_EQ(once.digest(), again.digest()) << "seed " << seed << " does not replay";
    ASSERT_EQ(once.trace(), again.trace()) << "seed " << seed << " does not replay";
    total.events += once.stats().events;
    total.restarts += once.stats().restarts;
    total.kills += once.stats().kills;
    total.generations += once.stats().generations;
    for (const v1::JobRow& row : once.durable().jobs) {
      total.succeeded += row.job().status().state() == v1::JOB_STATE_SUCCEEDED;
      total.failed += row.job().status().state() == v1::JOB_STATE_FAILED;
      total.cancelled += row.job().status().state() == v1::JOB_STATE_CANCELLED;
    }
    for (const v1::NodeRow& row : once.durable().nodes) total.evictions += row.node().state() == v1::NODE_STATE_LOST;
  }
  fmt::print(
      "seeds {}-{}: {} events, {} coordinator restarts, {} rank kills, {} generations on nodes; jobs: {} succeeded, {} "
      "failed, "
      "{} cancelled\n",
      first, last, total.events, total.restarts, total.kills, total.generations, total.succeeded, total.failed,
      total.cancelled);
  if (last - first < 50) return;
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(total.succeeded, static_cast<int64_t>(last - first));
  EXPECT_GT(total.failed, 10);
  EXPECT_GT(total.cancelled, 10);
  EXPECT_GT(total.kills, 100);
  EXPECT_GT(total.restarts, 100);
}

struct Mutant {
  const char* name;
  bool Mutations::*flag;
  std::set<std::string> catchers;  // laws that may notice first
};

class MutantIsCaught : public ::testing::TestWithParam<Mutant> {};

TEST_P(MutantIsCaught, WithinTwoHundredSeeds) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimOptions options = OptionsOf(seed);
    options.mutations.*GetParam().flag = true;
    World world(options);
    world.Run();
    if (!world.violations().empty() && GetParam().catchers.contains(world.violations().front().oracle)) return;
  }
  FAIL() << "no law notices " << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(
    EachLawHasOne, MutantIsCaught,
    ::testing::Values(Mutant{"ReuseGeneration", &Mutations::reuse_generation, {"GenerationsRise"}},
                      Mutant{"ShareSlots", &Mutations::share_slots, {"NoSlotTwice"}},
                      Mutant{"PartialGang", &Mutations::partial_gang, {"GangsAreWhole"}},
                      Mutant{"TerminalWhileAlive", &Mutations::terminal_while_alive, {"NoRankOutlivesItsJob"}},
                      Mutant{"ReopenTerminal", &Mutations::reopen_terminal, {"TerminalIsFinal"}},
                      Mutant{"CountControlPlaneDeath", &Mutations::count_control_plane_death, {"FailuresHaveFaults"}},
                      Mutant{"ForgetCreatedJob", &Mutations::forget_created_job, {"AcknowledgedIsDurable"}},
                      Mutant{"RestartBeforeEnded", &Mutations::restart_before_ended, {"OneCommitter"}},
                      Mutant{"ReplaySteps", &Mutations::replay_steps, {"StepsAreMonotone"}},
                      Mutant{"BlameFirstEnd", &Mutations::blame_first_end, {"CausesAreTrue"}},
                      Mutant{"ForgetFinal", &Mutations::forget_final, {"FailuresHaveFaults", "EndsWell"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tutti::coordinator::sim
