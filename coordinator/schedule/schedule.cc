#include "coordinator/schedule/schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"

namespace tutti::coordinator {
namespace {

// Slots of one node that a job may use, and those of them that it may use now.
struct Candidate {
  const NodeView* node = nullptr;
  int64_t total = 0;
  std::vector<std::string> free{};
};

using SlotName = std::pair<std::string, std::string>;  // node, slot

bool HasRoom(const SlotView& slot, const PlacementRequest& request) {
  return slot.memory_bytes == 0 || slot.memory_bytes >= request.memory_bytes;
}

bool Eligible(const SlotView& slot, const PlacementRequest& request) {
  return slot.device == request.device && slot.cores >= request.cores_per_rank && HasRoom(slot, request);
}

std::vector<Candidate> Candidates(const ClusterView& cluster, const PlacementRequest& request,
                                  const std::set<SlotName>& taken) {
  std::vector<Candidate> candidates;
  for (const NodeView& node : cluster.nodes) {
    Candidate candidate{.node = &node};
    for (const SlotView& slot : node.slots) {
      if (!Eligible(slot, request)) continue;
      ++candidate.total;
      const bool free = node.usable && slot.holder.empty() && !slot.locked_elsewhere;
      if (free && !taken.contains({node.name, slot.id})) candidate.free.push_back(slot.id);
    }
    if (candidate.total > 0) candidates.push_back(std::move(candidate));
  }
  return candidates;
}

// Fewest nodes, then the tightest fit: whole nodes from the greatest down while none alone holds what is left, then the
// smallest that does. Ties go to the first name, so that equal clusters give equal placements.
std::vector<std::pair<const Candidate*, int64_t>> Pick(const std::vector<Candidate>& candidates, int64_t ranks) {
  std::vector<const Candidate*> order;
  for (const Candidate& candidate : candidates) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(),
                   [](const Candidate* a, const Candidate* b) { return a->free.size() > b->free.size(); });
  std::vector<std::pair<const Candidate*, int64_t>> picked;
  size_t next = 0;
  while (ranks > 0 && next < order.size() && !order[next]->free.empty()) {
    const int64_t room = static_cast<int64_t>(order[next]->free.size());
    if (room < ranks) {
      picked.emplace_back(order[next++], room);
      ranks -= room;
      continue;
    }
    const Candidate* tightest = order[next];
    for (size_t i = next; i < order.size(); ++i) {
      const bool fits = static_cast<int64_t>(order[i]->free.size()) >= ranks;
      if (fits && order[i]->free.size() < tightest->free.size()) tightest = order[i];
    }
    picked.emplace_back(tightest, ranks);
    ranks = 0;
  }
  return picked;
}

std::string Wanted(const PlacementRequest& request) {
  if (request.cores_per_rank > 0) return fmt::format("{} (slots of {} cores)", request.ranks, request.cores_per_rank);
  return fmt::format("{}", request.ranks);
}

// Why no state of the queue will ever let the job run; `total` slots are eligible.
std::string WhyNever(const ClusterView& cluster, const PlacementRequest& request, int64_t total) {
  PlacementRequest of_any_memory = request;
  of_any_memory.memory_bytes = 0;
  int64_t small = 0, largest = 0;
  for (const NodeView& node : cluster.nodes) {
    for (const SlotView& slot : node.slots) {
      if (!Eligible(slot, of_any_memory) || HasRoom(slot, request)) continue;
      ++small;
      largest = std::max(largest, slot.memory_bytes);
    }
  }
  if (small == 0) return fmt::format("can never run: needs {}, total {}", Wanted(request), total);
  return fmt::format(
      "can never run: needs {}, each with {} of memory; {} have it, {} do not (the largest of them has {})",
      Wanted(request), MemoryText(request.memory_bytes), total, small, MemoryText(largest));
}

// Slots that nobody here holds and that are taken all the same.
std::string HeldByStrangers(const ClusterView& cluster, const PlacementRequest& request) {
  std::string text;
  for (const NodeView& node : cluster.nodes) {
    const auto stranger = [&](const SlotView& slot) {
      return Eligible(slot, request) && slot.holder.empty() && slot.locked_elsewhere;
    };
    const auto count = std::count_if(node.slots.begin(), node.slots.end(), stranger);
    if (count > 0 && text.size() < 200)
      text += fmt::format("; {} held on {} by processes outside this cluster", count, node.name);
  }
  return text;
}

void Place(const std::vector<Candidate>& candidates, int64_t ranks, std::set<SlotName>* taken, Decision* decision) {
  int32_t first_rank = 0;
  int64_t left_over = 0;
  for (const auto& [candidate, count] : Pick(candidates, ranks)) {
    v1::NodeShare share;
    share.set_node(candidate->node->name);
    share.set_first_rank(first_rank);
    for (int64_t i = 0; i < count; ++i) {
      share.add_slots(candidate->free[i]);
      taken->insert({candidate->node->name, candidate->free[i]});
    }
    first_rank += static_cast<int32_t>(count);
    left_over += static_cast<int64_t>(candidate->free.size()) - count;
    decision->nodes.push_back(std::move(share));
  }
  decision->reasons.push_back(fmt::format("fewest nodes: {}", decision->nodes.size()));
  decision->reasons.push_back(fmt::format("packed: {} slots stay free there", left_over));
}

}  // namespace

std::vector<Decision> Schedule(const ClusterView& cluster, const std::vector<PlacementRequest>& queue, bool partial) {
  std::vector<Decision> decisions;
  std::set<SlotName> taken;  // by earlier jobs of the queue: placed, or reserved
  for (const PlacementRequest& request : queue) {
    Decision decision{.job_id = request.job_id};
    const std::vector<Candidate> candidates = Candidates(cluster, request, taken);
    int64_t total = 0, free = 0, free_without_queue = 0;
    for (const Candidate& candidate : candidates) {
      total += candidate.total;
      free += static_cast<int64_t>(candidate.free.size());
    }
    for (const Candidate& candidate : Candidates(cluster, request, {})) free_without_queue += candidate.free.size();

    if (cluster.nodes.empty()) {
      decision.reason = "NoNodes";
      decision.message = fmt::format("waiting: needs {}, no node has registered yet", Wanted(request));
    } else if (total < request.ranks && !partial) {
      decision.can_ever_run = false;
      decision.reason = "NeverFits";
      decision.message = WhyNever(cluster, request, total);
    } else if (free >= request.ranks || (partial && free > 0)) {
      Place(candidates, std::min(request.ranks, free), &taken, &decision);
    } else {
      const bool behind = free_without_queue >= request.ranks;
      decision.reason = behind ? "BehindOthers" : "InsufficientSlots";
      decision.message = fmt::format("waiting: needs {}, free {}{}", Wanted(request), free_without_queue,
                                     behind ? ", which earlier jobs wait for" : HeldByStrangers(cluster, request));
      for (const NodeView& node : cluster.nodes) {
        for (const SlotView& slot : node.slots) {
          if (Eligible(slot, request)) taken.insert({node.name, slot.id});
        }
      }
    }
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

}  // namespace tutti::coordinator
