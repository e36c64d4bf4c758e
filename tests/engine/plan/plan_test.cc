#include "engine/plan/plan.h"

#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

// 784-1024-1024-10, batch 128.
v1::JobSpec Perceptron() {
  v1::JobSpec spec;
  for (int64_t units : {1024, 1024, 10}) {
    v1::Dense* dense = spec.mutable_model()->add_layers()->mutable_dense();
    dense->set_units(units);
    dense->set_bias(true);
    if (units == 1024) {
      spec.mutable_model()->add_layers()->mutable_activation()->set_kind(v1::ACTIVATION_KIND_RELU);
    }
  }
  spec.mutable_model()->set_loss(v1::LOSS_SOFTMAX_CROSS_ENTROPY);
  spec.mutable_data()->set_classes(10);
  spec.mutable_data()->set_prefetch(2);
  spec.mutable_batch()->set_global(128);
  spec.mutable_batch()->set_micro(32);
  spec.mutable_numerics()->set_shards(4);
  spec.mutable_numerics()->set_threads(1);
  spec.mutable_numerics()->set_mode(v1::NUMERICS_MODE_EXACT);
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.mutable_optimizer()->set_momentum(0.9);
  spec.mutable_train()->set_epochs(3);
  spec.mutable_resources()->set_ranks(2);
  return spec;
}

DataShape Data() { return {.sample_dims = {1, 28, 28}, .train_samples = 60000, .eval_samples = 10000}; }
constexpr int64_t kParameters = 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 10 * 1024 + 10;

TEST(PlanJob, CountsParametersFlopsStepsAndBytes) {
  const auto plan = PlanJob(Perceptron(), Data(), {.cores = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters(), kParameters);
  EXPECT_EQ(plan->steps(), (3 * 60000 + 127) / 128);  // JOB-07: batches run on over epochs, only the last is topped up
  EXPECT_EQ(plan->steps_per_epoch(), 60000 / 128);
  EXPECT_EQ(plan->samples(), 180000);
  EXPECT_EQ(plan->micro_batches(), 1);
  // Multiply-adds count two: forward and weight gradients of all three, input gradients of all but the first.
  const double products = 2.0 * 128 * (3.0 * (784 * 1024 + 1024 * 1024 + 1024 * 10) - 784 * 1024);
  EXPECT_NEAR(plan->step().flops() / products, 1, 0.02);  // the rest: activations, loss, sums of biases
  // Two ranks send half of the gradient to each other, then half of the result: count * 4 bytes in all.
  EXPECT_NEAR(static_cast<double>(plan->step().exchanged_bytes()) / (4.0 * kParameters), 1, 0.02);
  EXPECT_GE(plan->memory().weight_bytes(), 4 * kParameters);
  EXPECT_EQ(plan->memory().optimizer_bytes(), plan->memory().weight_bytes());
  EXPECT_FALSE(plan->exact_bytes());
  ASSERT_EQ(plan->layers_size(), 5);
  EXPECT_EQ(plan->layers(0).parameters(), 784 * 1024 + 1024);
}

TEST(PlanJob, IsPure) {
  const auto a = PlanJob(Perceptron(), Data(), {.cores = 2}), b = PlanJob(Perceptron(), Data(), {.cores = 2});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->SerializeAsString(), b->SerializeAsString());
}

// DAT-09
TEST(PlanJob, RefusesAnEpochOfZeroSteps) {
  DataShape few = Data();
  few.train_samples = 5;
  const auto plan = PlanJob(Perceptron(), few, {});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(plan.status()).find("0 steps per epoch: 5 samples < 128"), std::string::npos) << plan.status();
}

TEST(PlanJob, OneRankSendsNothing) {
  v1::JobSpec spec = Perceptron();
  spec.mutable_resources()->set_ranks(1);
  const auto plan = PlanJob(spec, Data(), {.cores = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->step().exchanged_bytes(), 0);
  EXPECT_GT(plan->step().compute_ms(), 0);
}

struct Group {
  double weight_decay;
  int64_t parameters;
  std::vector<std::string> names;
  bool operator==(const Group&) const = default;
};
void PrintTo(const Group& group, std::ostream* out) {
  *out << group.weight_decay << " on " << group.parameters << ": " << absl::StrJoin(group.names, " ");
}

std::vector<Group> DecayGroups(const v1::JobSpec& spec) {
  const auto plan = PlanJob(spec, Data(), {.cores = 2});
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<Group> groups;
  if (!plan.ok()) return groups;
  for (const v1::DecayGroup& group : plan->decay_groups()) {
    EXPECT_EQ(group.tensors(), group.names_size());
    groups.push_back({group.weight_decay(), group.parameters(), {group.names().begin(), group.names().end()}});
  }
  return groups;
}

// OPT-02: a convolution with bias, one batch norm, one layer norm, a dense layer inside a residual block, a dense head.
TEST(PlanJob, ListsWhatWeightDecayAppliesTo) {
  v1::JobSpec spec = Perceptron();
  spec.mutable_model()->clear_layers();
  v1::Conv2d* conv = spec.mutable_model()->add_layers()->mutable_conv2d();
  conv->set_channels(4);
  conv->set_kernel(3);
  conv->set_stride(1);
  conv->set_padding(1);
  conv->set_bias(true);
  spec.mutable_model()->add_layers()->mutable_batch_norm()->set_epsilon(1e-5);
  spec.mutable_model()->add_layers()->mutable_flatten();
  spec.mutable_model()->add_layers()->mutable_layer_norm()->set_epsilon(1e-5);
  v1::Layer* inner = spec.mutable_model()->add_layers()->mutable_residual()->add_layers();
  inner->mutable_dense()->set_units(4 * 784);
  inner->mutable_dense()->set_bias(true);
  v1::Dense* head = spec.mutable_model()->add_layers()->mutable_dense();
  head->set_units(10);
  head->set_bias(true);

  constexpr int64_t kFeatures = 4 * 784;
  const Group weights{0.1,
                      4 * 9 + kFeatures * kFeatures + 10 * kFeatures,
                      {"layers.0.weight", "layers.4.layers.0.weight", "layers.5.weight"}};
  const Group rest{0,
                   4 + 2 * 4 + 2 * kFeatures + kFeatures + 10,
                   {"layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.3.weight", "layers.3.bias",
                    "layers.4.layers.0.bias", "layers.5.bias"}};
  spec.mutable_optimizer()->set_weight_decay(0.1);
  EXPECT_EQ(DecayGroups(spec), (std::vector<Group>{weights, rest}));

  const std::vector<std::string> all = {
      "layers.0.weight", "layers.0.bias", "layers.1.weight",          "layers.1.bias",
      "layers.3.weight", "layers.3.bias", "layers.4.layers.0.weight", "layers.4.layers.0.bias",
      "layers.5.weight", "layers.5.bias"};
  const int64_t parameters = weights.parameters + rest.parameters;
  spec.mutable_optimizer()->set_decay_bias_and_norm(true);
  EXPECT_EQ(DecayGroups(spec), (std::vector<Group>{{0.1, parameters, all}}));
  spec.mutable_optimizer()->set_weight_decay(0);
  EXPECT_EQ(DecayGroups(spec), (std::vector<Group>{{0, parameters, all}}));
}

TEST(LanesOf, AsManyShardsSideBySideAsCoresAllow) {
  v1::JobSpec spec = Perceptron();
  EXPECT_EQ(LanesOf(spec, 4, 8), 4);
  EXPECT_EQ(LanesOf(spec, 4, 2), 2);
  EXPECT_EQ(LanesOf(spec, 4, 0), 1);
  spec.mutable_numerics()->set_threads(2);
  EXPECT_EQ(LanesOf(spec, 4, 5), 2);
  EXPECT_EQ(LanesOf(spec, 1, 8), 1);
}

TEST(CheckFits, SaysWhatIsNeededAndWhatWouldFit) {
  v1::JobSpec spec = Perceptron();
  spec.mutable_batch()->set_global(1 << 20);
  spec.mutable_batch()->set_micro(1 << 18);
  DataShape data = Data();
  data.train_samples = 1 << 21;
  const SlotShape slot{.memory_bytes = int64_t{8} << 30, .cores = 2};
  const auto plan = PlanJob(spec, data, slot);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Status fits = CheckFits(spec, data, slot, *plan);
  EXPECT_EQ(fits.code(), absl::StatusCode::kResourceExhausted);
  const std::string text = Message(fits);
  EXPECT_EQ(text.find("does not fit: rank needs "), 0u) << text;
  EXPECT_NE(text.find("slot has 8.0 GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("would fit:"), std::string::npos) << text;
  EXPECT_NE(text.find("1 slot of"), std::string::npos) << text;
  EXPECT_TRUE(CheckFits(spec, data, {.cores = 2}, *plan).ok());  // memory not known
  v1::JobSpec small = Perceptron();
  const auto small_plan = PlanJob(small, Data(), slot);
  ASSERT_TRUE(small_plan.ok());
  EXPECT_TRUE(CheckFits(small, Data(), slot, *small_plan).ok());
}

}  // namespace
}  // namespace tutti
