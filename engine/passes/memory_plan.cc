#include "engine/passes/memory_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/check.h"

namespace tutti {
namespace {

bool Overlap(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

int64_t LowerBound(std::span<const Lifetime> lifetimes) {
  std::map<int, int64_t> changes;  // at a step: bytes that come minus bytes that went
  for (const Lifetime& lifetime : lifetimes) {
    changes[lifetime.first] += AlignUp(lifetime.bytes);
    changes[lifetime.last + 1] -= AlignUp(lifetime.bytes);
  }
  int64_t alive = 0, most = 0;
  for (const auto& [step, change] : changes) most = std::max(most, alive += change);
  return most;
}

struct Placed {
  int64_t offset;
  int64_t end;
};

// The smallest gap between `busy` (sorted by offset) that takes `bytes`; behind all of them where none does.
int64_t BestOffset(const std::vector<Placed>& busy, int64_t bytes) {
  int64_t best = -1, best_gap = std::numeric_limits<int64_t>::max(), end = 0;
  for (const Placed& placed : busy) {
    const int64_t gap = placed.offset - end;
    if (gap >= bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, placed.end);
  }
  return best >= 0 ? best : end;
}

}  // namespace

MemoryPlan PlanMemory(std::span<const Lifetime> lifetimes) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (lifetimes[a].bytes != lifetimes[b].bytes) return lifetimes[a].bytes > lifetimes[b].bytes;
    return lifetimes[a].first < lifetimes[b].first;
  });
  MemoryPlan plan;
  plan.offsets.resize(lifetimes.size(), 0);
  plan.lower_bound_bytes = LowerBound(lifetimes);
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t current = order[i];
    std::vector<Placed> busy;
    for (size_t j = 0; j < i; ++j)
      if (Overlap(lifetimes[order[j]], lifetimes[current]))
        busy.push_back({plan.offsets[order[j]], plan.offsets[order[j]] + AlignUp(lifetimes[order[j]].bytes)});
    std::sort(busy.begin(), busy.end(), [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
    const int64_t bytes = AlignUp(lifetimes[current].bytes);
    plan.offsets[current] = BestOffset(busy, bytes);
    plan.total_bytes = std::max(plan.total_bytes, plan.offsets[current] + bytes);
  }
  return plan;
}

int BufferTable::Add(int64_t bytes) {
  const int buffer = static_cast<int>(storages_.size());
  storages_.push_back({{bytes, std::numeric_limits<int>::max(), -1}, -1});
  parents_.push_back(buffer);
  return buffer;
}

void BufferTable::Use(int buffer, int step) {
  Lifetime& lifetime = storages_[static_cast<size_t>(buffer)].lifetime;
  lifetime.first = std::min(lifetime.first, step);
  lifetime.last = std::max(lifetime.last, step);
}

int BufferTable::Root(int buffer) const {
  while (parents_[static_cast<size_t>(buffer)] != buffer) buffer = parents_[static_cast<size_t>(buffer)];
  return buffer;
}

void BufferTable::Join(int output, int input) {
  const int from = Root(output), to = Root(input);
  TUTTI_CHECK(from != to, "buffers {} and {} are one already", output, input);
  const Storage& gone = storages_[static_cast<size_t>(from)];
  Storage& stays = storages_[static_cast<size_t>(to)];
  stays.lifetime.bytes = std::max(stays.lifetime.bytes, gone.lifetime.bytes);
  stays.lifetime.first = std::min(stays.lifetime.first, gone.lifetime.first);
  stays.lifetime.last = std::max(stays.lifetime.last, gone.lifetime.last);
  stays.taken_at = std::max(stays.taken_at, gone.taken_at);
  parents_[static_cast<size_t>(from)] = to;
}

void BufferTable::ShareView(int output, int input) { Join(output, input); }

bool BufferTable::ShareInPlace(int output, int input, int step, std::span<const int> operands) {
  const int root = Root(input);
  if (Root(output) != output || output == root || storages_[static_cast<size_t>(output)].lifetime.first != step)
    return false;
  Storage& storage = storages_[static_cast<size_t>(root)];
  if (storage.lifetime.last != step || storage.taken_at == step) return false;
  if (std::count_if(operands.begin(), operands.end(),
                    [&](int operand) { return operand >= 0 && Root(operand) == root; }) != 1)
    return false;
  Join(output, input);
  storage.taken_at = step;
  return true;
}

MemoryPlan BufferTable::Plan() const {
  std::vector<Lifetime> roots;
  std::vector<size_t> position(parents_.size(), 0);
  for (size_t buffer = 0; buffer < parents_.size(); ++buffer) {
    if (parents_[buffer] != static_cast<int>(buffer)) continue;
    position[buffer] = roots.size();
    const Lifetime& lifetime = storages_[buffer].lifetime;
    TUTTI_CHECK(lifetime.first <= lifetime.last, "buffer {} is never used", buffer);
    roots.push_back(lifetime);
  }
  const MemoryPlan planned = PlanMemory(roots);
  MemoryPlan plan{{}, planned.total_bytes, planned.lower_bound_bytes};
  for (size_t buffer = 0; buffer < parents_.size(); ++buffer)
    plan.offsets.push_back(planned.offsets[position[static_cast<size_t>(Root(static_cast<int>(buffer)))]]);
  return plan;
}

namespace {

// Bytes in the widest blocked layout that kernels choose: channels (axis 1 of images) in blocks of 16.
int64_t PaddedBytes(const TensorType& type) {
  if (type.dims.size() != 4) return type.bytes();
  return type.bytes() / type.dims[1] * AlignUp(type.dims[1], 16);
}

constexpr int kOutside = -1;  // inputs and outputs of the graph lie elsewhere

}  // namespace

StatusOr<MemoryPlan> PlanGraphMemory(const Graph& graph, const OpRegistry& ops) {
  std::vector<bool> is_output(graph.values().size(), false);
  for (const Output& output : graph.outputs()) is_output[static_cast<size_t>(output.value.value())] = true;
  std::vector<int> buffers(graph.values().size(), kOutside);
  BufferTable table;
  for (size_t id = 0; id < buffers.size(); ++id)
    if (graph.values()[id].producer != kNoNode && !is_output[id])
      buffers[id] = table.Add(PaddedBytes(graph.values()[id].type));
  const auto buffer_of = [&](ValueId id) { return buffers[static_cast<size_t>(id.value())]; };
  const auto each_node = [&](auto&& fn) {
    for (size_t n = 0; n < graph.nodes().size(); ++n) fn(graph.nodes()[n], static_cast<int>(n));
  };
  each_node([&](const Node& node, int step) {
    for (ValueId id : node.inputs)
      if (buffer_of(id) != kOutside) table.Use(buffer_of(id), step);
    for (ValueId id : node.outputs)
      if (buffer_of(id) != kOutside) table.Use(buffer_of(id), step);
  });
  Status status = OkStatus();
  each_node([&](const Node& node, int step) {
    const StatusOr<const OpDef*> def = ops.Find(node.op);
    if (!def.ok()) status = def.status();
    if (!status.ok()) return;
    std::vector<int> operands;
    for (ValueId id : node.inputs) operands.push_back(buffer_of(id));
    for (const auto& [output, input] : (*def)->aliases) {
      if (static_cast<size_t>(input) >= operands.size()) continue;
      const int out = buffer_of(node.outputs[static_cast<size_t>(output)]), in = operands[static_cast<size_t>(input)];
      if (out != kOutside && in != kOutside && table.ShareInPlace(out, in, step, operands)) break;
    }
  });
  TUTTI_RETURN_IF_ERROR(status);
  return table.Plan();
}

}  // namespace tutti
