#include "engine/passes/pointwise_fusion.h"

#include <algorithm>
#include <map>

#include "engine/ops/pointwise/program.h"
#include "engine/passes/rewriter.h"

namespace tutti {
namespace {

// A program whose operands are >= 0: index of an input, < 0: ~k, the result of instruction k. Independent of the input
// count.
struct Draft {
  std::vector<ValueId> inputs;
  std::vector<PointwiseInstruction> code;

  int AddInput(ValueId id) {
    const auto found = std::find(inputs.begin(), inputs.end(), id);
    if (found != inputs.end()) return static_cast<int>(found - inputs.begin());
    inputs.push_back(id);
    return static_cast<int>(inputs.size()) - 1;
  }

  // Appends `other`; returns the operand that holds its result.
  int Append(const Draft& other) {
    const int base = static_cast<int>(code.size());
    const auto moved = [&](int operand) {
      return operand >= 0 ? AddInput(other.inputs[static_cast<size_t>(operand)]) : ~(~operand + base);
    };
    for (PointwiseInstruction instruction : other.code) {
      instruction.a = moved(instruction.a);
      instruction.b = Arity(instruction.op) == 2 ? moved(instruction.b) : 0;
      code.push_back(instruction);
    }
    return ~(static_cast<int>(code.size()) - 1);
  }

  // With room left for what is still to come.
  bool Fits(size_t more_code, size_t more_inputs) const {
    return code.size() + more_code <= kMaxPointwiseInstructions &&
           inputs.size() + more_inputs <= static_cast<size_t>(kMaxPointwiseInputs);
  }

  PointwiseProgram Finish() const {
    PointwiseProgram program{static_cast<int>(inputs.size()), code};
    const auto final_operand = [&](int operand) { return operand >= 0 ? operand : program.inputs + ~operand; };
    for (PointwiseInstruction& instruction : program.code) {
      instruction.a = final_operand(instruction.a);
      instruction.b = Arity(instruction.op) == 2 ? final_operand(instruction.b) : 0;
    }
    return program;
  }
};

class PointwiseFuser {
 public:
  explicit PointwiseFuser(const Graph& graph) : graph_(graph), readers_(CountReaders(graph)) {}

  StatusOr<Graph> Run() {
    for (const Node& node : graph_.nodes()) TUTTI_RETURN_IF_ERROR(Visit(node));
    Rewriter rewriter(graph_);
    for (const Node& node : graph_.nodes()) {
      if (std::find(absorbed_.begin(), absorbed_.end(), &node) != absorbed_.end()) continue;
      const auto draft = drafts_.find(&node);
      if (draft == drafts_.end() || draft->second.code.size() == 1) {
        rewriter.Copy(node);
      } else {
        rewriter.Emit("pointwise", node.path, draft->second.inputs, node.outputs,
                      {{"program", ToText(draft->second.Finish())}});
      }
    }
    return rewriter.Finish();
  }

 private:
  Status Visit(const Node& node) {
    const StatusOr<PointwiseProgram> program = ProgramOf(node);
    if (absl::IsNotFound(program.status())) return OkStatus();
    TUTTI_RETURN_IF_ERROR(program.status());
    Draft draft;
    std::vector<int> operands;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      operands.push_back(TakeIn(node.inputs[i], program->code.size(), node.inputs.size() - i - 1, &draft));
    const int inputs = program->inputs, base = static_cast<int>(draft.code.size());
    const auto resolve = [&](int operand) {
      return operand < inputs ? operands[static_cast<size_t>(operand)] : ~(operand - inputs + base);
    };
    for (PointwiseInstruction instruction : program->code) {
      instruction.a = resolve(instruction.a);
      instruction.b = Arity(instruction.op) == 2 ? resolve(instruction.b) : 0;
      draft.code.push_back(instruction);
    }
    drafts_[&node] = std::move(draft);
    return OkStatus();
  }

  // The operand for `input`: its maker's program where that one is pointwise and only we read it, else the value
  // itself.
  int TakeIn(ValueId input, size_t more_code, size_t more_inputs, Draft* draft) {
    const Node* producer = Producer(graph_, input);
    const auto found = drafts_.find(producer);
    if (found != drafts_.end() && readers_[static_cast<size_t>(input.value())] == 1) {
      Draft joined = *draft;
      const int operand = joined.Append(found->second);
      if (joined.Fits(more_code, more_inputs)) {
        absorbed_.push_back(producer);
        *draft = std::move(joined);
        return operand;
      }
    }
    return draft->AddInput(input);
  }

  const Graph& graph_;
  std::vector<int> readers_;
  std::map<const Node*, Draft> drafts_;
  std::vector<const Node*> absorbed_;
};

}  // namespace

StatusOr<Graph> FusePointwise(const Graph& graph) { return PointwiseFuser(graph).Run(); }

}  // namespace tutti
