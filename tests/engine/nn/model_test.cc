#include "engine/nn/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/graph/verify.h"
#include "engine/ops/registry.h"

namespace tutti {
namespace {

v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.mutable_data()->set_classes(10);
  spec.mutable_model()->set_loss(v1::LOSS_SOFTMAX_CROSS_ENTROPY);
  return spec;
}
void Dense(v1::Model* model, int64_t units) {
  v1::Dense* dense = model->add_layers()->mutable_dense();
  dense->set_units(units);
  dense->set_bias(true);
}
StatusOr<Model> Build(const v1::JobSpec& spec, std::vector<int64_t> dims = {1, 8, 8}) {
  const OpRegistry ops = StandardOps();
  return BuildModel(spec, dims, 4, ops);
}

v1::JobSpec EveryLayer() {
  v1::JobSpec spec = Spec();
  v1::Model* m = spec.mutable_model();
  v1::Conv2d* conv = m->add_layers()->mutable_conv2d();
  conv->set_channels(6);
  conv->set_kernel(3);
  conv->set_stride(1);
  conv->set_padding(1);
  conv->set_bias(true);
  m->add_layers()->mutable_batch_norm()->set_epsilon(1e-5);
  m->add_layers()->mutable_activation()->set_kind(v1::ACTIVATION_KIND_GELU);
  v1::Pool* pool = m->add_layers()->mutable_max_pool();
  pool->set_size(2);
  pool->set_stride(2);
  m->add_layers()->mutable_dropout()->set_rate(0.25);
  v1::Residual* residual = m->add_layers()->mutable_residual();
  residual->add_layers()->mutable_layer_norm()->set_epsilon(1e-5);
  residual->add_layers()->mutable_activation()->set_kind(v1::ACTIVATION_KIND_TANH);
  m->add_layers()->mutable_global_pool();
  Dense(m, 10);
  return spec;
}

std::set<std::string> Ops(const Graph& graph) {
  std::set<std::string> ops;
  for (const Node& node : graph.nodes()) ops.insert(node.op);
  return ops;
}

TEST(BuildModel, NamesShapesAndGroupsOfEveryLayer) {
  const auto model = Build(EveryLayer());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Verify(model->training).ok());
  EXPECT_TRUE(Verify(model->evaluation).ok());
  std::vector<std::string> names;
  for (const ParameterInfo& p : model->parameters) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                                             "layers.5.layers.0.weight", "layers.5.layers.0.bias", "layers.7.weight",
                                             "layers.7.bias"}));
  for (const ParameterInfo& p : model->parameters) {
    const bool weight = p.name == "layers.0.weight" || p.name == "layers.7.weight";
    EXPECT_EQ(p.is_bias_or_norm, !weight) << p.name;
  }
  // 6*9+6, 6+6, 2 * (6*4*4), 10*6+10
  EXPECT_EQ(model->parameter_count(), 60 + 12 + 192 + 70);
  ASSERT_EQ(model->layers.size(), 8u);
  EXPECT_EQ(model->layers[5].kind(), "residual");
  EXPECT_EQ(model->layers[5].parameters(), 192);
  EXPECT_EQ(std::vector<int64_t>(model->layers[3].output_shape().begin(), model->layers[3].output_shape().end()),
            (std::vector<int64_t>{6, 4, 4}));
  ASSERT_EQ(model->statistics.size(), 2u);
  EXPECT_EQ(model->statistics[1].name, "layers.1.running_variance");
  EXPECT_EQ(model->statistics[1].samples_per_cell, 4 * 8 * 8);
}

TEST(BuildModel, EvaluationHasNoDropoutAndUsesRunningStatistics) {
  const auto model = Build(EveryLayer());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Ops(model->training).contains("dropout"));
  EXPECT_TRUE(model->training.FindInput("seed").ok());
  EXPECT_FALSE(Ops(model->evaluation).contains("dropout"));
  EXPECT_FALSE(model->evaluation.FindInput("seed").ok());
  EXPECT_TRUE(Ops(model->evaluation).contains("batch_norm_inference"));
  EXPECT_TRUE(model->evaluation.FindInput("layers.1.running_mean").ok());
  EXPECT_FALSE(model->training.FindInput("layers.1.running_mean").ok());
}

TEST(BuildModel, ErrorsNameTheLayer) {
  const auto message = [](const v1::JobSpec& spec, std::vector<int64_t> dims = {1, 8, 8}) {
    const auto model = Build(spec, std::move(dims));
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return Message(model.status());
  };
  v1::JobSpec spec = Spec();
  EXPECT_NE(message(spec).find("model.layers"), std::string::npos);
  Dense(spec.mutable_model(), 12);
  EXPECT_NE(message(spec).find("data.classes is 10"), std::string::npos);
  spec = EveryLayer();
  EXPECT_NE(message(spec, {64}).find("layers.0 conv2d"), std::string::npos);
  spec.mutable_model()->mutable_layers(0)->mutable_conv2d()->set_kernel(20);
  EXPECT_NE(message(spec).find("layers.0"), std::string::npos);
  spec = EveryLayer();
  Dense(spec.mutable_model(), 10);
  spec.mutable_model()->mutable_layers(5)->mutable_residual()->add_layers()->mutable_global_pool();
  EXPECT_NE(message(spec).find("layers.5 residual"), std::string::npos);
}

TEST(InitialValues, AreUniformWithinTheFanInBoundAndDependOnNameAndSeed) {
  const ParameterInfo p{.name = "layers.0.weight", .type = {DType::kF32, {100, 400}}, .fan_in = 400};
  std::vector<float> a(40000), b(40000), c(40000);
  InitialValues(p, 1, a);
  InitialValues(p, 1, b);
  EXPECT_EQ(a, b);
  InitialValues(p, 2, c);
  EXPECT_NE(a, c);
  const auto [low, high] = std::minmax_element(a.begin(), a.end());
  const double bound = 1 / std::sqrt(400.0);
  EXPECT_GE(*low, -bound);
  EXPECT_LE(*high, bound);
  double sum = 0, squares = 0;
  for (float v : a) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  // Uniform on [-b, b]: mean 0, variance b^2 / 3; five standard errors of 40,000 samples.
  EXPECT_NEAR(sum / 40000, 0, 5 * bound / std::sqrt(3.0 * 40000));
  EXPECT_NEAR(squares / 40000 / (bound * bound / 3), 1, 5 * std::sqrt(0.8 / 40000));
}

}  // namespace
}  // namespace tutti
