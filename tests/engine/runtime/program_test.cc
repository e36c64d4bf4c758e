// Compiled programs: whole training cells against reference mathematics, layouts, memory, callbacks.
#include "engine/runtime/cpu/program.h"

#include <dnnl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/ops/builder.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/fusion.h"
#include "engine/runtime/lanes.h"
#include "tests/engine/ops/finite_difference.h"
#include "tests/engine/ops/graph_runner.h"
#include "tests/engine/runtime/allocation_counter.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = std::vector<double>;

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, std::move(dims)}; }

ValueId AddLoss(GraphBuilder& builder, ValueId logits) {
  const int64_t rows = builder.type(logits).dims[0];
  const ValueId labels = builder.AddInput("labels", ValueClass::kBatch, {DType::kI32, {rows}});
  const ValueId weights = builder.AddInput("weights", ValueClass::kBatch, F32({rows}));
  const ValueId inverse = builder.AddInput("inverse_valid", ValueClass::kHostScalar, F32({}));
  const auto loss = builder.Add("softmax_cross_entropy", "loss", {logits, labels, weights, inverse}).value();
  builder.AddOutput("loss", loss[0]);
  builder.AddOutput("correct", loss[1]);
  return loss[0];
}

// ------------------------------------------------------------------------------------------------ reference
// mathematics
struct Matrix {
  size_t rows, cols;
  Values data;
  Matrix(size_t r, size_t c) : rows(r), cols(c), data(r * c, 0) {}
  Matrix(size_t r, size_t c, Values d) : rows(r), cols(c), data(std::move(d)) {}
  double& operator()(size_t i, size_t j) { return data[i * cols + j]; }
  double operator()(size_t i, size_t j) const { return data[i * cols + j]; }
};
Matrix Multiply(const Matrix& a, const Matrix& b, bool transpose_a, bool transpose_b) {
  const size_t n = transpose_a ? a.cols : a.rows, k = transpose_a ? a.rows : a.cols, m = transpose_b ? b.rows : b.cols;
  Matrix c(n, m);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < m; ++j)
      for (size_t l = 0; l < k; ++l) c(i, j) += (transpose_a ? a(l, i) : a(i, l)) * (transpose_b ? b(j, l) : b(l, j));
  return c;
}
Values SumRows(const Matrix& a) {
  Values sum(a.cols, 0);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < a.cols; ++j) sum[j] += a(i, j);
  return sum;
}

constexpr int64_t kRows = 16, kIn = 20, kHidden = 24, kClasses = 5;

// x -> dense -> relu -> dense -> cross-entropy.
Graph Mlp(const OpRegistry& ops) {
  GraphBuilder builder(Graph("mlp"), ops);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({kRows, kIn}));
  const ValueId w0 = builder.AddInput("0.weight", ValueClass::kParameter, F32({kHidden, kIn}));
  const ValueId b0 = builder.AddInput("0.bias", ValueClass::kParameter, F32({kHidden}));
  const ValueId w1 = builder.AddInput("2.weight", ValueClass::kParameter, F32({kClasses, kHidden}));
  const ValueId b1 = builder.AddInput("2.bias", ValueClass::kParameter, F32({kClasses}));
  const ValueId h = builder.Add1("relu", "1", {builder.Add1("dense", "0", {x, w0, b0}).value()}).value();
  AddLoss(builder, builder.Add1("dense", "2", {h, w1, b1}).value());
  return builder.Take();
}

PlainValues MlpInputs() {
  PlainValues in;
  uint64_t seed = 1;
  for (const auto& [name, count] : std::map<std::string, int64_t>{{"x", kRows * kIn},
                                                                  {"0.weight", kHidden * kIn},
                                                                  {"0.bias", kHidden},
                                                                  {"2.weight", kClasses * kHidden},
                                                                  {"2.bias", kClasses}})
    in[name] = internal::RandomValues(count, seed++);
  for (int64_t r = 0; r < kRows; ++r) {
    in["labels"].push_back(static_cast<double>(r % kClasses));
    in["weights"].push_back(r == 3 ? 0 : 1);
  }
  in["inverse_valid"] = {1.0 / 32};
  return in;
}

PlainValues MlpReference(const PlainValues& in) {
  const Matrix x(kRows, kIn, in.at("x")), w0(kHidden, kIn, in.at("0.weight")), w1(kClasses, kHidden, in.at("2.weight"));
  Matrix h = Multiply(x, w0, false, true);
  for (size_t i = 0; i < h.rows; ++i)
    for (size_t j = 0; j < h.cols; ++j) h(i, j) = std::max(0.0, h(i, j) + in.at("0.bias")[j]);
  Matrix logits = Multiply(h, w1, false, true), d(kRows, kClasses);
  double loss = 0;
  for (size_t i = 0; i < logits.rows; ++i) {
    double sum = 0;
    for (size_t j = 0; j < kClasses; ++j) sum += std::exp(logits(i, j) += in.at("2.bias")[j]);
    const auto label = static_cast<size_t>(in.at("labels")[i]);
    const double weight = in.at("weights")[i];
    loss += weight * (std::log(sum) - logits(i, label));
    for (size_t j = 0; j < kClasses; ++j)
      d(i, j) = weight * in.at("inverse_valid")[0] * (std::exp(logits(i, j)) / sum - (j == label ? 1 : 0));
  }
  Matrix dh = Multiply(d, w1, false, false);
  for (size_t i = 0; i < dh.data.size(); ++i) dh.data[i] = h.data[i] > 0 ? dh.data[i] : 0;
  return {{"loss", {loss}},
          {"gradient/2.weight", Multiply(d, h, true, false).data},
          {"gradient/2.bias", SumRows(d)},
          {"gradient/0.weight", Multiply(dh, x, true, false).data},
          {"gradient/0.bias", SumRows(dh)}};
}

// f32 sums of up to 24 terms of size up to 5 through three layers.
void ExpectNear(const PlainValues& found, const PlainValues& expected) {
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_EQ(found.at(name).size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(found.at(name)[i], values[i], 1e-5 * std::max(1.0, std::abs(values[i]))) << name << "[" << i << "]";
  }
}

class Program : public ::testing::Test {
 protected:
  std::unique_ptr<CpuProgram> Compile(const Graph& graph, CompileOptions options = {}) {
    auto program = CpuProgram::Compile(graph, kernels_, options);
    TUTTI_CHECK_OK(program.status());
    return *std::move(program);
  }
  static size_t Find(const CpuProgram& program, std::string_view name, bool is_output) {
    for (size_t i = 0; i < program.externals().size(); ++i)
      if (program.externals()[i].name == name && program.externals()[i].is_output == is_output) return i;
    TUTTI_CHECK(false, "no external {}", name);
  }
  static void Store(const CpuProgram& program, const ProgramMemory& memory, const PlainValues& values) {
    for (const auto& [name, value] : values) {
      const size_t i = Find(program, name, false);
      StoreValue(program.externals()[i], value, memory.pointers()[i]);
    }
  }
  static Values Load(const CpuProgram& program, const ProgramMemory& memory, std::string_view name) {
    const size_t i = Find(program, name, true);
    return LoadValue(program.externals()[i], memory.pointers()[i]);
  }
  const OpRegistry ops_ = StandardOps();
  const KernelRegistry kernels_ = StandardCpuKernels();
};

TEST_F(Program, AnMlpCellIsTheReferenceMathematicsOnOneAndTwoThreads) {
  const auto graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int threads : {1, 2}) {
    const auto found = RunGraph(*graph, kernels_, MlpInputs(), threads);
    ASSERT_TRUE(found.ok()) << found.status();
    ExpectNear(*found, MlpReference(MlpInputs()));
  }
}

TEST_F(Program, PassesDoNotChangeTheNumbersOfAConvolutionalNetwork) {
  GraphBuilder builder(Graph("cnn"), ops_);
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({4, 1, 12, 12}));
  const ValueId w0 = builder.AddInput("0.weight", ValueClass::kParameter, F32({16, 1, 3, 3}));
  const ValueId b0 = builder.AddInput("0.bias", ValueClass::kParameter, F32({16}));
  const ValueId w1 = builder.AddInput("3.weight", ValueClass::kParameter, F32({8, 16, 3, 3}));
  const ValueId w2 = builder.AddInput("6.weight", ValueClass::kParameter, F32({3, 72}));
  const Attributes same = {{"padding", int64_t{1}}, {"stride", int64_t{1}}};
  const Attributes pool = {{"size", int64_t{2}}, {"stride", int64_t{2}}, {"padding", int64_t{0}}};
  ValueId y = builder.Add("conv2d", "0", {x, w0, b0}, same).value()[0];
  y = builder.Add1("relu", "1", {y}).value();
  y = builder.Add("max_pool", "2", {y}, pool).value()[0];
  y = builder.Add("conv2d", "3", {y, w1}, same).value()[0];
  y = builder.Add1("gelu", "4", {builder.Add1("tanh", "4", {y}).value()}).value();
  y = builder.Add("max_pool", "5", {y}, pool).value()[0];
  AddLoss(builder, builder.Add1("dense", "6", {builder.Add1("flatten", "6", {y}).value(), w2}).value());
  const Graph forward = builder.Take();
  PlainValues in;
  uint64_t seed = 1;
  for (ValueId id : forward.inputs()) {
    const Value& value = forward.value(id);
    in[value.name] = internal::RandomValues(value.type.elements(), seed++);
  }
  in["labels"] = {0, 1, 2, 0};
  in["weights"] = {1, 1, 1, 1};
  in["inverse_valid"] = {0.25};
  const auto plain_joint = Differentiate(forward, "loss", ops_);
  const auto fused_joint = BuildTrainingGraph(forward, "loss", ops_);
  ASSERT_TRUE(plain_joint.ok()) << plain_joint.status();
  ASSERT_TRUE(fused_joint.ok()) << fused_joint.status();
  EXPECT_LT(fused_joint->nodes().size(), plain_joint->nodes().size());
  const auto expected = RunGraph(*plain_joint, kernels_, in);
  const auto found = RunGraph(*fused_joint, kernels_, in);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(found.ok()) << found.status();
  ExpectNear(*found, *expected);
}

TEST_F(Program, SecondRunWithOtherMemoryAndTheSameWorkspaceIsTheSame) {
  const Graph graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  auto program = Compile(graph);
  const ProgramMemory first(graph, *program), second(graph, *program);
  Store(*program, first, MlpInputs());
  Store(*program, second, MlpInputs());
  program->Run(first.pointers(), first.workspace(), {});
  program->Run(second.pointers(), first.workspace(), {});
  program->Run(first.pointers(), second.workspace(), {});
  for (const char* name : {"loss", "gradient/0.weight", "gradient/2.bias"})
    EXPECT_EQ(Load(*program, first, name), Load(*program, second, name)) << name;
}

TEST_F(Program, GradientsHaveTheLayoutOfTheirParameterAndAFamilySharesIt) {
  const Graph training = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  const Graph inference = BuildInferenceGraph(Mlp(ops_), ops_).value();
  auto train = Compile(training);
  CompileOptions options;
  for (const ExternalValue& external : train->externals()) {
    if (external.value_class != ValueClass::kParameter) continue;
    options.fixed_layouts[external.name] = external.layout;
    const ExternalValue& gradient = train->externals()[Find(*train, "gradient/" + external.name, true)];
    EXPECT_TRUE(SameLayout(gradient.layout, external.layout)) << external.name;
  }
  EXPECT_EQ(options.fixed_layouts.size(), 4u);
  auto eval = Compile(inference, options);
  const ProgramMemory memory(inference, *eval);
  for (const ExternalValue& external : eval->externals()) {
    if (external.value_class != ValueClass::kParameter) continue;
    EXPECT_TRUE(SameLayout(external.layout, options.fixed_layouts.at(external.name))) << external.name;
  }
  Store(*eval, memory, MlpInputs());
  eval->Run(memory.pointers(), memory.workspace(), {});
  EXPECT_NEAR(Load(*eval, memory, "loss")[0], MlpReference(MlpInputs()).at("loss")[0], 1e-4);
}

TEST_F(Program, EachOutputIsReportedOnceAfterItsStepInBackwardOrder) {
  const Graph graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  auto program = Compile(graph);
  const ProgramMemory memory(graph, *program);
  Store(*program, memory, MlpInputs());
  std::vector<std::string> order;
  const PlainValues expected = MlpReference(MlpInputs());
  const std::function<void(size_t)> on_output = [&](size_t index) {
    const ExternalValue& external = program->externals()[index];
    EXPECT_TRUE(external.is_output);
    order.push_back(external.name);
    if (!expected.contains(external.name)) return;
    EXPECT_NEAR(LoadValue(external, memory.pointers()[index])[0], expected.at(external.name)[0], 1e-4)  // final already
        << external.name;
  };
  program->Run(memory.pointers(), memory.workspace(), {.on_output = &on_output});
  ASSERT_EQ(order.size(), 6u);
  EXPECT_THAT(std::vector<std::string>(order.begin(), order.begin() + 2), ElementsAre("loss", "correct"));
  EXPECT_THAT(order[2], HasSubstr("gradient/2."));
  EXPECT_THAT(order[5], HasSubstr("gradient/0."));
}

TEST_F(Program, ProfileNamesEveryStep) {
  const Graph graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  auto program = Compile(graph);
  const ProgramMemory memory(graph, *program);
  Store(*program, memory, MlpInputs());
  std::vector<NodeProfile> profile;
  program->Run(memory.pointers(), memory.workspace(), {.profile = &profile});
  program->Run(memory.pointers(), memory.workspace(), {.profile = &profile});
  EXPECT_EQ(profile.size(), program->kernel_choices().size());
  EXPECT_GE(profile.size(), graph.nodes().size());
  EXPECT_EQ(profile[0].path, "0");
  for (const NodeProfile& node : profile) EXPECT_GT(node.nanos, 0) << node.op;
  EXPECT_THAT(program->kernel_choices(), ::testing::Contains(HasSubstr("loss softmax_cross_entropy: tutti loss")));
}

TEST_F(Program, RunMakesNoAllocationOverOneKilobyte) {
  if (!kCountsAllocations) GTEST_SKIP() << "allocations cannot be counted under a sanitizer";
  const Graph graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  for (int threads : {1, 2}) {
    CompileOptions options;
    options.threads = threads;
    auto program = Compile(graph, options);
    const ProgramMemory memory(graph, *program);
    Store(*program, memory, MlpInputs());
    program->Run(memory.pointers(), memory.workspace(), {});  // the OpenMP team starts here
    const AllocationCounter counter(1024);
    for (int i = 0; i < 10; ++i) program->Run(memory.pointers(), memory.workspace(), {});
    EXPECT_EQ(counter.count(), 0) << "largest: " << counter.largest() << " bytes, " << threads << " threads";
  }
}

// Every external and the workspace stand between canaries.
TEST_F(Program, NothingIsWrittenOutsideOfThePlannedBytes) {
  const Graph graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  auto program = Compile(graph);
  constexpr int64_t kGuard = 256;
  std::vector<int64_t> sizes;
  for (const ExternalValue& external : program->externals()) sizes.push_back(external.layout.bytes);
  sizes.push_back(program->workspace_bytes());
  int64_t total = kGuard;
  for (int64_t size : sizes) total += AlignUp(size) + kGuard;
  std::vector<char> block(static_cast<size_t>(total + 64), char{0x5A});
  char* at = block.data() + (64 - reinterpret_cast<uintptr_t>(block.data()) % 64) % 64;
  std::vector<void*> pointers;
  for (int64_t size : sizes) {
    pointers.push_back(at += kGuard);
    at += AlignUp(size);
  }
  for (const auto& [name, values] : MlpInputs()) {
    const size_t i = Find(*program, name, false);
    StoreValue(program->externals()[i], values, pointers[i]);
  }
  program->Run(std::span(pointers).first(pointers.size() - 1), pointers.back(), {});
  for (size_t i = 0; i < pointers.size(); ++i) {
    const char* begin = static_cast<char*>(pointers[i]);
    for (int64_t g = 1; g <= kGuard; ++g) ASSERT_EQ(begin[-g], 0x5A) << "before " << i;
    for (int64_t g = sizes[i]; g < AlignUp(sizes[i]) + kGuard && begin + g < block.data() + total; ++g)
      ASSERT_EQ(begin[g], 0x5A) << "behind " << i;
  }
  const size_t loss = Find(*program, "loss", true);
  EXPECT_NEAR(LoadValue(program->externals()[loss], pointers[loss])[0], MlpReference(MlpInputs()).at("loss")[0], 1e-4);
}

TEST_F(Program, LanesSideBySideGiveTheBitsOfOneAlone) {
  const Graph graph = BuildTrainingGraph(Mlp(ops_), "loss", ops_).value();
  const PlainValues alone = RunGraph(graph, kernels_, MlpInputs()).value();
  constexpr int kLanes = 3;
  auto pool = LanePool::Create({.lanes = kLanes}).value();
  std::vector<PlainValues> found(kLanes);
  for (int call = 0; call < 5; ++call) {
    pool->RunAll([&](int lane) { found[static_cast<size_t>(lane)] = RunGraph(graph, kernels_, MlpInputs()).value(); });
    for (const PlainValues& values : found) EXPECT_EQ(values, alone);
  }
}

TEST_F(Program, AnUpdateIsWrittenOverItsInput) {
  GraphBuilder builder(Graph("update"), ops_);
  const ValueId p = builder.AddInput("p", ValueClass::kParameter, F32({100}));
  const ValueId g = builder.AddInput("g", ValueClass::kBatch, F32({100}));
  builder.AddOutput("p", builder.Add1("add", "u", {p, g}).value(), "p");
  ASSERT_TRUE(VerifyOps(builder.graph(), ops_).ok());
  auto program = Compile(builder.graph());
  EXPECT_EQ(program->activation_bytes(), 0);
  const ProgramMemory memory(builder.graph(), *program);
  Store(*program, memory, {{"p", Values(100, 1)}, {"g", Values(100, 0.5)}});
  for (int i = 0; i < 3; ++i) program->Run(memory.pointers(), memory.workspace(), {});
  EXPECT_EQ(Load(*program, memory, "p"), Values(100, 2.5));
}

// y[i] = x[n - 1 - i]: must not run in place.
class ReverseKernel : public CpuKernel {
 public:
  explicit ReverseKernel(int64_t n) : n_(n) {}
  void Run(const KernelArgs& args) override {
    for (int64_t i = 0; i < n_; ++i)
      static_cast<float*>(args.outputs[0])[i] = static_cast<const float*>(args.inputs[0])[n_ - 1 - i];
  }

 private:
  int64_t n_;
};

TEST_F(Program, AKernelThatCannotWorkInPlaceGoesThroughTheWorkspace) {
  KernelRegistry kernels;
  ASSERT_TRUE(kernels
                  .Register("reverse",
                            [](const KernelRequest& request) -> StatusOr<KernelPlan> {
                              KernelPlan plan = PlainPlan(request);
                              plan.kernel = std::make_unique<ReverseKernel>(request.input_type(0).elements());
                              return plan;
                            })
                  .ok());
  Graph graph("g");
  const ValueId s = graph.AddInput("s", ValueClass::kOptimizerState, F32({5}));
  graph.AddOutput("s", graph.AddNode("reverse", "r", {s}, {}, {F32({5})})[0], "s");
  const auto found = RunGraph(graph, kernels, {{"s", {1, 2, 3, 4, 5}}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->at("s"), (Values{5, 4, 3, 2, 1}));
}

TEST_F(Program, ErrorsNameTheNodeAndTheDevice) {
  Graph graph("g");
  const ValueId x = graph.AddInput("x", ValueClass::kBatch, F32({5}));
  graph.AddOutput("y", graph.AddNode("nosuch", "layers.4", {x}, {}, {F32({5})})[0]);
  const Status missing = CpuProgram::Compile(graph, kernels_, {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(missing), HasSubstr("layers.4 nosuch: op nosuch has no kernel for device cpu"));
  Graph broken("g");
  broken.AddOutput("x", broken.AddInput("x", ValueClass::kBatch, F32({5})));
  EXPECT_EQ(CpuProgram::Compile(broken, kernels_, {}).status().code(), absl::StatusCode::kInvalidArgument);
  CompileOptions none;
  none.threads = 0;
  EXPECT_EQ(CpuProgram::Compile(Mlp(ops_), kernels_, none).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Program, DenormalsAreFlushedInsideAndTheCallersModeComesBack) {
  GraphBuilder builder(Graph("g"), ops_);
  const int64_t n = 100000;
  const ValueId x = builder.AddInput("x", ValueClass::kBatch, F32({n}));
  builder.AddOutput("y", builder.Add1("scale", "s", {x}, {{"factor", 1e-10}}).value());
  const auto found = RunGraph(builder.graph(), kernels_, {{"x", Values(static_cast<size_t>(n), 1e-32)}}, 2);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->at("y"), Values(static_cast<size_t>(n), 0.0));
  volatile float tiny = 1e-32f;
  EXPECT_NE(tiny * 1e-10f, 0.0f);
}

TEST(Layout, PackAndUnpackAreInverseAndPlainIsPlain) {
  const CpuLayout plain = PlainLayout(F32({3, 5, 2, 2}));
  EXPECT_TRUE(plain.plain);
  EXPECT_EQ(plain.bytes, 240);
  EXPECT_TRUE(SameLayout(plain, PlainLayout(F32({3, 20}))));  // the same bytes
  EXPECT_FALSE(SameLayout(plain, PlainLayout(F32({3, 21}))));
  CpuLayout blocked = plain;  // channels in blocks of 8, as oneDNN's nChw8c
  const dnnl_dims_t dims = {3, 5, 2, 2};
  ASSERT_EQ(dnnl_memory_desc_init_by_tag(&blocked.desc, 4, dims, dnnl_f32, dnnl_nChw8c), dnnl_success);
  blocked.bytes = static_cast<int64_t>(dnnl_memory_desc_get_size(&blocked.desc));
  blocked.plain = false;
  EXPECT_EQ(blocked.bytes, 3 * 8 * 4 * 4);
  std::vector<float> values(60), back(60), stored(96, 7.0f);
  std::iota(values.begin(), values.end(), 1.0f);
  PackFromPlain(values.data(), blocked, stored.data());
  EXPECT_EQ(stored[0], 1);
  EXPECT_EQ(stored[1], 5);  // the next channel, same pixel
  EXPECT_EQ(stored[5], 0);  // padding
  EXPECT_EQ(stored[8], 2);  // the next pixel
  UnpackToPlain(stored.data(), blocked, back.data());
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace tutti
