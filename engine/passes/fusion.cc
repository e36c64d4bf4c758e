#include "engine/passes/fusion.h"

#include <algorithm>

#include "engine/graph/verify.h"
#include "engine/ops/builder.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/pointwise_fusion.h"
#include "engine/passes/rewriter.h"

namespace tutti {
namespace {

size_t Index(ValueId id) { return static_cast<size_t>(id.value()); }

// dense(flatten(x)) -> dense(x).
Graph AbsorbFlatten(const Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const Node* before = node.op == "dense" ? Producer(graph, node.inputs[0]) : nullptr;
    if (before == nullptr || before->op != "flatten") {
      rewriter.Copy(node);
      continue;
    }
    std::vector<ValueId> inputs = node.inputs;
    inputs[0] = before->inputs[0];
    rewriter.Emit(node.op, node.path, inputs, node.outputs, node.attributes);
  }
  return rewriter.Finish();
}

// The relu that is the only reader of a conv2d or dense without activation.
const Node* ReluBehind(const Graph& graph, const Node& node, const std::vector<int>& readers) {
  if ((node.op != "conv2d" && node.op != "dense") || node.attributes.contains("activation")) return nullptr;
  if (readers[Index(node.outputs[0])] != 1) return nullptr;
  for (const Node& candidate : graph.nodes())
    if (candidate.op == "relu" && candidate.inputs[0] == node.outputs[0]) return &candidate;
  return nullptr;
}

Graph FuseActivations(const Graph& graph) {
  const std::vector<int> readers = CountReaders(graph);
  std::vector<const Node*> fused;
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (std::find(fused.begin(), fused.end(), &node) != fused.end()) continue;
    const Node* relu = ReluBehind(graph, node, readers);
    if (relu == nullptr) {
      rewriter.Copy(node);
      continue;
    }
    Attributes attributes = node.attributes;
    attributes["activation"] = std::string("relu");
    rewriter.Emit(node.op, node.path, node.inputs, relu->outputs, attributes);
    fused.push_back(relu);
  }
  return rewriter.Finish();
}

// In relu_grad(max_pool_grad(d, workspace), y): the pool whose gradient it is, where it reads y.
const Node* PoolBefore(const Graph& graph, const Node& node, const std::vector<int>& readers) {
  if (node.op != "relu_grad") return nullptr;
  const Node* gradient = Producer(graph, node.inputs[0]);
  if (gradient == nullptr || gradient->op != "max_pool_grad" || readers[Index(node.inputs[0])] != 1) return nullptr;
  const Node* pool = Producer(graph, gradient->inputs[1]);
  return pool != nullptr && pool->op == "max_pool" && pool->inputs[0] == node.inputs[1] ? pool : nullptr;
}

Graph MoveReluGradBeforePool(const Graph& graph) {
  const std::vector<int> readers = CountReaders(graph);
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const Node* pool = PoolBefore(graph, node, readers);
    if (pool == nullptr) {
      rewriter.Copy(node);  // a max_pool_grad that nobody reads any more is dead code
      continue;
    }
    const Node& gradient = *Producer(graph, node.inputs[0]);
    const ValueId masked = rewriter.fresh().AddNode("relu_grad", node.path,
                                                    {rewriter.Map(gradient.inputs[0]), rewriter.Map(pool->outputs[0])},
                                                    {}, {graph.value(pool->outputs[0]).type})[0];
    const ValueId moved =
        rewriter.fresh().AddNode(gradient.op, gradient.path, {masked, rewriter.Map(gradient.inputs[1])},
                                 gradient.attributes, {graph.value(node.outputs[0]).type})[0];
    rewriter.Bind(node.outputs[0], moved);
  }
  return rewriter.Finish();
}

Status VerifyAll(const Graph& graph, const OpRegistry& ops) {
  TUTTI_RETURN_IF_ERROR(Verify(graph));
  return VerifyOps(graph, ops);
}

}  // namespace

Graph EliminateDeadCode(const Graph& graph) {
  std::vector<bool> live(graph.values().size(), false);
  for (const Output& output : graph.outputs()) live[Index(output.value)] = true;
  const auto is_live = [&](const Node& node) {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return live[Index(id)]; });
  };
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    if (is_live(node))
      for (ValueId input : node.inputs) live[Index(input)] = true;
  }
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes())
    if (is_live(node)) rewriter.Copy(node);
  return rewriter.Finish();
}

StatusOr<Graph> FuseForward(const Graph& graph, const OpRegistry& ops) {
  TUTTI_RETURN_IF_ERROR(VerifyAll(graph, ops));
  Graph fused = EliminateDeadCode(FuseActivations(AbsorbFlatten(graph)));
  TUTTI_RETURN_IF_ERROR(VerifyAll(fused, ops));
  return fused;
}

StatusOr<Graph> FuseJoint(const Graph& graph, const OpRegistry& ops) {
  TUTTI_RETURN_IF_ERROR(VerifyAll(graph, ops));
  TUTTI_ASSIGN_OR_RETURN(Graph fused, FusePointwise(EliminateDeadCode(MoveReluGradBeforePool(graph))));
  TUTTI_RETURN_IF_ERROR(VerifyAll(fused, ops));
  return fused;
}

StatusOr<Graph> BuildTrainingGraph(const Graph& forward, std::string_view loss_output, const OpRegistry& ops) {
  TUTTI_ASSIGN_OR_RETURN(const Graph fused, FuseForward(forward, ops));
  TUTTI_ASSIGN_OR_RETURN(const Graph joint, Differentiate(fused, loss_output, ops));
  return FuseJoint(joint, ops);
}

StatusOr<Graph> BuildInferenceGraph(const Graph& forward, const OpRegistry& ops) {
  TUTTI_ASSIGN_OR_RETURN(const Graph fused, FuseForward(forward, ops));
  return FuseJoint(fused, ops);
}

}  // namespace tutti
