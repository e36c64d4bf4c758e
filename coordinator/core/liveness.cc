// What only the passing of time shows: backoffs, deadlines, stalls, nodes that are gone.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "coordinator/core/stepper.h"

namespace tutti::coordinator {
namespace {

double Seconds(Nanos nanos) { return std::chrono::duration<double>(nanos).count(); }

}  // namespace

void Stepper::CheckDeadlines(JobEntry& entry) {
  if (!IsActive(entry)) {
    if (entry.not_before.count() > 0 && entry.not_before <= state_.now) {
      entry.not_before = Nanos(0);
      state_.schedule_due = true;
    }
    return;
  }
  if (entry.victim_deadline.count() > 0 && entry.victim_deadline <= state_.now) {
    StopGeneration(entry, v1::INTENT_UNSPECIFIED, 0);
  }
  if (entry.stop_deadline.count() > 0 && entry.stop_deadline <= state_.now) {
    StopGeneration(entry, v1::INTENT_UNSPECIFIED, entry.job().spec().restart().grace_ms());
  }
  CheckStall(entry);
}

void Stepper::CheckStall(JobEntry& entry) {
  const v1::JobState state = entry.status().state();
  if (state != v1::JOB_STATE_STARTING && state != v1::JOB_STATE_RUNNING) return;
  if (entry.row.final_complete()) return;
  for (const v1::NodeShare& share : entry.status().assignment().nodes()) {
    const auto node = state_.nodes.find(share.node());
    const bool heard = node != state_.nodes.end() && node->second.stream != 0 &&
                       state_.now - node->second.silent_since < state_.options.lease / 2;
    if (heard) continue;
    entry.progressed =
        std::max(entry.progressed, state_.now - state_.options.stall_floor / 2);  // we are the ones who do not hear
    return;
  }
  bool training = entry.longest_step.count() > 0;
  for (const auto& [rank, progress] : entry.progress) training &= progress.phase == v1::PHASE_TRAINING;
  // Ranks end a start that takes too long themselves, and say who is missing: never before restart.startTimeoutMs.
  const Nanos start = Millis(entry.job().spec().restart().start_timeout_ms()) + state_.options.stall_floor;
  const Nanos limit = training ? std::max(state_.options.stall_floor, 10 * entry.longest_step)
                               : std::max(state_.options.phase_limit, start);
  const Nanos silent = state_.now - entry.progressed;
  if (silent <= limit) return;

  // The rank that is furthest behind, of those the one that has moved least recently; before training, the first that
  // is missing.
  int32_t culprit = 0;
  const auto key = [&](int32_t rank) {
    const auto it = entry.progress.find(rank);
    return it == entry.progress.end() ? std::pair<int64_t, Nanos>(-1, Nanos(0))
                                      : std::pair(it->second.step, it->second.changed);
  };
  for (int32_t rank = 1; rank < entry.status().ranks_size(); ++rank) {
    if (key(rank) < key(culprit)) culprit = rank;
  }
  v1::Failure failure;
  failure.set_rank(culprit);
  failure.set_node(entry.status().ranks(culprit).node());
  failure.set_kind(v1::FAILURE_KIND_STALL);
  failure.set_cause(fmt::format("no progress for {:.1f} s ({}); this rank is furthest behind", Seconds(silent),
                                training ? fmt::format("in step {}", WithCommas(entry.status().completed_step() + 1))
                                         : fmt::format("{} of {} ranks have said where they are", entry.progress.size(),
                                                       entry.status().ranks_size())));
  OutsideFailure(entry, std::move(failure));
  Settle(entry);
}

// A node goes when its lease is over and none of its jobs shows progress: an all-reduce that completes proves that all
// ranks live. When more than half vanish together it is we who are cut off, and none goes.
void Stepper::CheckNodes() {
  std::vector<std::string> silent;
  size_t total = 0;
  for (auto& [name, node] : state_.nodes) {
    if (node.node.state() == v1::NODE_STATE_LOST) continue;
    ++total;
    const Nanos quiet = state_.now - node.silent_since;
    if (quiet > state_.options.lease) silent.push_back(name);
    if (node.node.state() == v1::NODE_STATE_READY && quiet > state_.options.lease / 2) {
      node.node.set_state(v1::NODE_STATE_SUSPECTED);
      node.node.set_message("its agent is silent; its ranks go on");
      MarkNode(node);
    }
  }
  if (2 * silent.size() > total) return;
  for (const std::string& name : silent) {
    NodeEntry& node = state_.nodes.at(name);
    if (MayEvict(node)) Evict(node);
  }
}

bool Stepper::MayEvict(const NodeEntry& node) const {
  const Nanos quiet = state_.now - node.silent_since;
  for (const std::string& id : state_.live) {
    const JobEntry& entry = state_.jobs.at(id);
    if (!IsActive(entry)) continue;
    bool here = false, reachable = false;
    for (const v1::Share& share : entry.row.shares()) {
      if (share.generation() != entry.status().generation() || share.ended()) continue;
      here |= share.node() == node.node.name();
      const auto other = state_.nodes.find(share.node());
      reachable |= other != state_.nodes.end() && other->second.stream != 0;
    }
    if (!here) continue;
    if (!reachable && quiet <= state_.options.unreachable_after) return false;
    // Before the first step nothing says how long progress takes; peers that lost their connections say enough.
    Nanos patience = 3 * std::max(state_.options.lease, entry.longest_step);
    if (entry.longest_step.count() > 0) patience = std::max(state_.options.lease, 3 * entry.longest_step);
    if (entry.row.bad_ends_size() > 0) patience = state_.options.lease;
    if (state_.now - entry.progressed <= patience) return false;
  }
  return true;
}

void Stepper::Evict(NodeEntry& node) {
  const std::string name = node.node.name();
  const Nanos quiet = state_.now - node.silent_since;
  node.node.set_state(v1::NODE_STATE_LOST);
  node.node.set_message(fmt::format("no contact for {:.1f} s", Seconds(quiet)));
  MarkNode(node);
  if (node.stream != 0) {
    state_.node_of_stream.erase(node.stream);
    Do(CloseStream{node.stream, Unavailable("no message for {:.1f} s: connect and report again", Seconds(quiet))});
    node.stream = 0;
  }
  state_.schedule_due = true;
  const std::vector<std::string> live(state_.live.begin(), state_.live.end());
  for (const std::string& id : live) {
    JobEntry& entry = state_.jobs.at(id);
    v1::Share* share = FindShare(entry, entry.status().generation(), name);
    if (!IsActive(entry) || share == nullptr || share->ended()) continue;
    share->set_lost(true);
    for (v1::RankStatus& rank : *StatusOf(entry)->mutable_ranks()) {
      if (rank.node() == name && rank.state() != v1::RANK_STATE_EXITED) rank.set_state(v1::RANK_STATE_LOST);
    }
    v1::Failure failure;
    failure.set_rank(-1);
    failure.set_node(name);
    failure.set_kind(v1::FAILURE_KIND_NODE);
    failure.set_cause(fmt::format("node {} is lost: no contact for {:.1f} s and no progress", name, Seconds(quiet)));
    OutsideFailure(entry, std::move(failure));
    Settle(entry);
  }
}

}  // namespace tutti::coordinator
