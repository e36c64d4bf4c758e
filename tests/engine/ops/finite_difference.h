// Checks an op's gradient rule and its kernels against central differences of its own forward kernel.
//
//   GradientCheck check{.op = "tanh", .inputs = {{.type = {DType::kF32, {3, 5}}}}};
//   ExpectGradientsMatch(check, StandardOps(), StandardCpuKernels());
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "engine/ops/builder.h"
#include "tests/engine/ops/graph_runner.h"

namespace tutti {

struct GradientCheckInput {
  TensorType type;
  std::vector<double> values = {};  // empty: uniform in [-1, 1), never closer than 0.05 to zero (kinks)
  bool differentiable = true;       // false, or another dtype than f32: held fixed
  ValueClass value_class = ValueClass::kParameter;
};

struct GradientCheck {
  std::string op;
  Attributes attributes = {};
  std::vector<GradientCheckInput> inputs = {};
  std::vector<int> outputs = {0};  // those that get a random output gradient; the others get none
  // f32 differences: truncation grows with step^2, rounding with 2^-24 * |y| * sqrt(outputs) / step.
  double step = 1.0 / 128;
  double tolerance = 4e-3;  // relative to max(1, |gradient|)
  size_t samples = 48;      // elements of each input that are checked, evenly spread
  int threads = 1;
};

namespace internal {

inline std::vector<double> RandomValues(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.05, 1.0);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    value = uniform(random);
    if (random() & 1) value = -value;
    value = static_cast<float>(value);
  }
  return values;
}

inline std::string InputName(size_t i) { return "in" + std::to_string(i); }

struct BuiltCheck {
  Graph graph;
  PlainValues values;
};

// Forward outputs "out<k>"; with `backward` also "grad<i>" per differentiable input, from cotangents "ct<k>".
inline StatusOr<BuiltCheck> BuildCheck(const GradientCheck& check, const OpRegistry& ops, bool backward) {
  GraphBuilder builder(Graph(check.op), ops);
  BuiltCheck built;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < check.inputs.size(); ++i) {
    const GradientCheckInput& input = check.inputs[i];
    inputs.push_back(builder.AddInput(InputName(i), input.value_class, input.type));
    built.values[InputName(i)] = input.values.empty() ? RandomValues(input.type.elements(), 17 + i) : input.values;
  }
  TUTTI_ASSIGN_OR_RETURN(std::vector<ValueId> outputs, builder.Add(check.op, "op", inputs, check.attributes));
  for (int k : check.outputs) builder.AddOutput("out" + std::to_string(k), outputs[static_cast<size_t>(k)]);
  if (backward) {
    std::vector<ValueId> cotangents(outputs.size(), kNoValue);
    for (int k : check.outputs) {
      const std::string name = "ct" + std::to_string(k);
      const TensorType type = builder.type(outputs[static_cast<size_t>(k)]);
      cotangents[static_cast<size_t>(k)] = builder.AddInput(name, ValueClass::kBatch, type);
      built.values[name] = RandomValues(type.elements(), 91 + static_cast<uint64_t>(k));
    }
    TUTTI_ASSIGN_OR_RETURN(const OpDef* def, ops.Find(check.op));
    const Node node =
        builder.graph().node(builder.graph().value(outputs[0]).producer);  // a copy: adding nodes moves the original
    TUTTI_ASSIGN_OR_RETURN(std::vector<ValueId> gradients, def->gradient({&builder, &node, cotangents}));
    for (size_t i = 0; i < gradients.size(); ++i)
      if (check.inputs[i].differentiable && check.inputs[i].type.dtype == DType::kF32) {
        if (gradients[i] == kNoValue) return Internal("{}: no gradient for input {}", check.op, i);
        if (builder.type(gradients[i]) != check.inputs[i].type)
          return Internal("{}: gradient of input {} is {}", check.op, i, ToString(builder.type(gradients[i])));
        // A copy: rules may give an output gradient back as it is, or the same value twice.
        TUTTI_ASSIGN_OR_RETURN(const ValueId copy,
                               builder.Add1("reshape", "op", {gradients[i]}, {{"dims", check.inputs[i].type.dims}}));
        builder.AddOutput("grad" + std::to_string(i), copy);
      }
  }
  built.graph = builder.Take();
  return built;
}

}  // namespace internal

inline void ExpectGradientsMatch(const GradientCheck& check, const OpRegistry& ops, const KernelRegistry& kernels) {
  auto joint = internal::BuildCheck(check, ops, true);
  ASSERT_TRUE(joint.ok()) << joint.status();
  auto forward = internal::BuildCheck(check, ops, false);
  ASSERT_TRUE(forward.ok()) << forward.status();
  auto analytic = RunGraph(joint->graph, kernels, joint->values, check.threads);
  ASSERT_TRUE(analytic.ok()) << analytic.status();

  // sum over outputs of cotangent * output, in double.
  auto objective = [&](const PlainValues& values) {
    auto outputs = RunGraph(forward->graph, kernels, values, check.threads);
    TUTTI_CHECK_OK(outputs.status());
    double sum = 0;
    for (int k : check.outputs) {
      const auto& y = outputs->at("out" + std::to_string(k));
      const auto& c = joint->values.at("ct" + std::to_string(k));
      for (size_t i = 0; i < y.size(); ++i) sum += c[i] * y[i];
    }
    return sum;
  };
  size_t checked = 0;
  for (size_t i = 0; i < check.inputs.size(); ++i) {
    const auto gradient = analytic->find("grad" + std::to_string(i));
    if (gradient == analytic->end()) continue;
    const size_t count = gradient->second.size();
    const size_t stride = std::max<size_t>(1, count / check.samples);
    for (size_t e = 0; e < count; e += stride, ++checked) {
      PlainValues values = forward->values;
      double& element = values[internal::InputName(i)][e];
      const double original = element;
      // The step as f32 makes it.
      const double high = static_cast<float>(original + check.step), low = static_cast<float>(original - check.step);
      element = high;
      const double above = objective(values);
      values[internal::InputName(i)][e] = low;
      const double below = objective(values);
      const double expected = (above - below) / (high - low);
      EXPECT_NEAR(gradient->second[e], expected, check.tolerance * std::max(1.0, std::abs(expected)))
          << check.op << " input " << i << " element " << e;
    }
  }
  EXPECT_GT(checked, 0u) << "nothing differentiable in " << check.op;
}

}  // namespace tutti
