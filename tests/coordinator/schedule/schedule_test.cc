#include "coordinator/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

NodeView Node(const std::string& name, int slots, int taken = 0) {
  NodeView node{.name = name, .usable = true, .slots = {}};
  for (int i = 0; i < slots; ++i) {
    node.slots.push_back({.id = "cpu" + std::to_string(i),
                          .device = v1::DEVICE_KIND_CPU,
                          .cores = 2,
                          .holder = i < taken ? "other" : "",
                          .locked_elsewhere = false});
  }
  return node;
}

PlacementRequest Job(const std::string& id, int64_t ranks, int32_t cores = 0) {
  return {.job_id = id, .ranks = ranks, .device = v1::DEVICE_KIND_CPU, .cores_per_rank = cores};
}

std::vector<std::string> NodesOf(const Decision& decision) {
  std::vector<std::string> names;
  for (const v1::NodeShare& share : decision.nodes)
    names.push_back(share.node() + "x" + std::to_string(share.slots_size()));
  return names;
}

// SCH-02
TEST(Schedule, ImpossibleIsToldApartFromBusy) {
  const auto never = Schedule({{Node("a", 2)}}, {Job("j", 5)});
  EXPECT_FALSE(never[0].can_ever_run);
  EXPECT_EQ(never[0].message, "can never run: needs 5, total 2");
  EXPECT_EQ(never[0].reason, "NeverFits");
  const auto busy = Schedule({{Node("a", 2, 1)}}, {Job("j", 2)});
  EXPECT_TRUE(busy[0].can_ever_run);
  EXPECT_EQ(busy[0].message, "waiting: needs 2, free 1");
}

// A rank never goes where its plan does not fit: that would be found out by crashing.
TEST(Schedule, SlotsWithTooLittleMemoryAreNotTaken) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  NodeView small = Node("a", 2), large = Node("b", 2), unknown = Node("c", 1);
  for (SlotView& slot : small.slots) slot.memory_bytes = 4 * kGiB;
  for (SlotView& slot : large.slots) slot.memory_bytes = 16 * kGiB;
  PlacementRequest job = Job("j", 2);
  job.memory_bytes = 5 * kGiB;
  EXPECT_THAT(NodesOf(Schedule({{small, large}}, {job})[0]), ElementsAre("bx2"));
  EXPECT_THAT(NodesOf(Schedule({{small, unknown}}, {Job("j", 3)})[0]), ElementsAre("ax2", "cx1"));  // nothing planned
  job.ranks = 1;
  EXPECT_THAT(NodesOf(Schedule({{small, unknown}}, {job})[0]), ElementsAre("cx1"));  // nothing known
  job.ranks = 3;
  const auto never = Schedule({{small, large}}, {job});
  EXPECT_FALSE(never[0].can_ever_run);
  EXPECT_EQ(never[0].reason, "NeverFits");
  EXPECT_EQ(
      never[0].message,
      "can never run: needs 3, each with 5.0 GiB of memory; 2 have it, 2 do not (the largest of them has 4.0 GiB)");
}

TEST(Schedule, NothingIsImpossibleBeforeANodeRegisters) {
  const auto decisions = Schedule({}, {Job("j", 5)});
  EXPECT_TRUE(decisions[0].can_ever_run);
  EXPECT_EQ(decisions[0].reason, "NoNodes");
}

// SCH-01
TEST(Schedule, TwoGangsNeverHoldHalfEach) {
  const auto decisions = Schedule({{Node("a", 1), Node("b", 1)}}, {Job("first", 2), Job("second", 2)});
  EXPECT_THAT(NodesOf(decisions[0]), ElementsAre("ax1", "bx1"));
  EXPECT_THAT(decisions[1].nodes, IsEmpty());
  EXPECT_TRUE(decisions[1].can_ever_run);
}

// SCH-03
TEST(Schedule, SmallJobsDoNotStarveAGangThatWaits) {
  const auto decisions = Schedule({{Node("a", 2, 1)}}, {Job("large", 2), Job("small", 1)});
  EXPECT_THAT(decisions[0].nodes, IsEmpty());
  EXPECT_THAT(decisions[1].nodes, IsEmpty());
  EXPECT_EQ(decisions[1].reason, "BehindOthers");
  EXPECT_THAT(decisions[1].message, HasSubstr("earlier jobs wait for"));
}

// SCH-04
TEST(Schedule, SmallJobsThatFitRunTogether) {
  const auto decisions = Schedule({{Node("a", 2)}}, {Job("one", 1), Job("two", 1)});
  EXPECT_THAT(NodesOf(decisions[0]), ElementsAre("ax1"));
  EXPECT_THAT(NodesOf(decisions[1]), ElementsAre("ax1"));
  EXPECT_NE(decisions[0].nodes[0].slots(0), decisions[1].nodes[0].slots(0));
}

// SCH-07: what can never run reserves nothing.
TEST(Schedule, ImpossibleJobBlocksNobody) {
  const auto decisions = Schedule({{Node("a", 2), Node("b", 2)}}, {Job("huge", 5), Job("wide", 1, 3), Job("ok", 2)});
  EXPECT_FALSE(decisions[0].can_ever_run);
  EXPECT_FALSE(decisions[1].can_ever_run);
  EXPECT_EQ(decisions[1].message, "can never run: needs 1 (slots of 3 cores), total 0");
  EXPECT_THAT(NodesOf(decisions[2]), ElementsAre("ax2"));
}

TEST(Schedule, FewestNodesThenTightestFit) {
  const ClusterView cluster{{Node("a", 4), Node("b", 2), Node("c", 3)}};
  EXPECT_THAT(NodesOf(Schedule(cluster, {Job("j", 2)})[0]), ElementsAre("bx2"));
  EXPECT_THAT(NodesOf(Schedule(cluster, {Job("j", 3)})[0]), ElementsAre("cx3"));
  EXPECT_THAT(NodesOf(Schedule(cluster, {Job("j", 6)})[0]), ElementsAre("ax4", "bx2"));
  EXPECT_THAT(NodesOf(Schedule(cluster, {Job("j", 9)})[0]), ElementsAre("ax4", "cx3", "bx2"));
}

TEST(Schedule, RanksAreNumberedThroughTheNodes) {
  const auto decision = Schedule({{Node("a", 2), Node("b", 2)}}, {Job("j", 3)})[0];
  ASSERT_EQ(decision.nodes.size(), 2u);
  EXPECT_EQ(decision.nodes[0].first_rank(), 0);
  EXPECT_EQ(decision.nodes[1].first_rank(), 2);
  EXPECT_THAT(decision.reasons, ElementsAre("fewest nodes: 2", "packed: 1 slots stay free there"));
}

TEST(Schedule, SlotsThatOthersLockedOrNodesThatAreSilentAreNotFree) {
  ClusterView cluster{{Node("a", 2), Node("b", 2)}};
  cluster.nodes[0].slots[0].locked_elsewhere = true;
  cluster.nodes[1].usable = false;
  const auto decision = Schedule(cluster, {Job("j", 2)})[0];
  EXPECT_TRUE(decision.can_ever_run);
  EXPECT_EQ(decision.message, "waiting: needs 2, free 1; 1 held on a by processes outside this cluster");
}

}  // namespace
}  // namespace tutti::coordinator
