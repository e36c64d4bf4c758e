// Rebuilds a graph node by node: what passes are written with. Ids of the old graph go in, the rewriter keeps track of
// the new ones.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"

namespace tutti {

class Rewriter {
 public:
  // Starts with all inputs of `old`, which must outlive the rewriter.
  explicit Rewriter(const Graph& old);

  // The node as it is.
  void Copy(const Node& node);
  // A node whose inputs and outputs are values of the old graph; each output takes the place of that value (its type
  // stays).
  void Emit(const std::string& op, const std::string& path, const std::vector<ValueId>& inputs,
            const std::vector<ValueId>& outputs, const Attributes& attributes);
  // `old` becomes `fresh`, a value of the new graph.
  void Bind(ValueId old, ValueId fresh) { map_[static_cast<size_t>(old.value())] = fresh; }
  // A value of the old graph in the new one.
  ValueId Map(ValueId old) const;
  Graph& fresh() { return fresh_; }
  // The new graph with the old one's outputs.
  Graph Finish();

 private:
  const Graph* old_;
  Graph fresh_;
  std::vector<ValueId> map_;
};

// How often each value is read: by nodes, and once more where it is a graph output.
std::vector<int> CountReaders(const Graph& graph);

// The node that makes a value, or null for inputs of the graph.
const Node* Producer(const Graph& graph, ValueId value);

}  // namespace tutti
