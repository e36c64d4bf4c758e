#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "job/job_file.h"
#include "job/schema.h"
#include "tests/job/job_text.h"

namespace tutti {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(EffectiveConfig, IsAJobFileThatLoadsToTheSameSpec) {
  const std::string text = Replace(kJob, "- flatten\n",
                                   "- residual: {layers: [relu, {dropout: {rate: 0.1}}, {residual: {layers: "
                                   "[gelu]}}]}\n      - flatten\n      - maxPool: {size: 2}\n");
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{},
        {"metadata.labels.team=no", "optimizer.learningRate=1e-7", "train.seed=18446744073709551615",
         "checkpoint.resume=path", "checkpoint.resumeFrom=/a b"},
        {"optimizer={type: adamw, learningRate: 1e-3}", "schedule={type: step, stepEvery: 5}",
         "data.eval={images: a, labels: b}"}}) {
    const auto job = Load(text, overrides);
    ASSERT_TRUE(job.ok()) << job.status();
    for (const std::string& printed : {EffectiveConfig(*job), JobSpecToYaml(job->spec),
                                       nlohmann::json::parse(EffectiveConfigJson(*job))["config"].dump()}) {
      const auto again = Load(printed);
      ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
      EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(again->spec, job->spec)) << printed;
    }
  }
}

TEST(EffectiveConfig, SaysWhereEachValueComesFrom) {  // JOB-10
  const auto job = Load(kJob, {"optimizer.learningRate=0.1", "model.layers.1.dense.units=12"});
  ASSERT_TRUE(job.ok()) << job.status();
  const std::string text = EffectiveConfig(*job);
  EXPECT_THAT(text, ContainsRegex("learningRate: 0\\.1 +# --set optimizer\\.learningRate=0\\.1\n"));
  EXPECT_THAT(text, ContainsRegex("global: 128 +# job\\.yaml:13:13\n"));
  EXPECT_THAT(text, ContainsRegex("micro: 32 +# default \\(auto\\)\n"));
  EXPECT_THAT(text, ContainsRegex("momentum: 0\\.0 +# default\n"));
  EXPECT_THAT(text, ContainsRegex("- flatten +# job\\.yaml:7:9\n"));
  EXPECT_THAT(text,
              ContainsRegex("- dense: \\{units: 12, bias: true\\} +# --set model\\.layers\\.1\\.dense\\.units=12\n"));
  const auto json = nlohmann::json::parse(EffectiveConfigJson(*job));
  EXPECT_EQ(json["config"]["spec"]["optimizer"]["learningRate"], 0.1);
  EXPECT_EQ(json["sources"]["spec.optimizer.learningRate"], "--set optimizer.learningRate=0.1");
}

TEST(ExplainJobKey, ListsKeysWithTypeDefaultAndMeaning) {
  for (const char* path : {"spec.optimizer", "optimizer"}) {
    const auto text = ExplainJobKey(path);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, ContainsRegex("type +one of sgd, adam, adamw; required"));
    EXPECT_THAT(*text, ContainsRegex("beta1 +a number in \\[0, 1\\); default 0.9; only with type adam or adamw"));
  }
  EXPECT_THAT(*ExplainJobKey(""), HasSubstr("apiVersion"));
  EXPECT_THAT(*ExplainJobKey("model.layers"), HasSubstr("maxPool"));
  EXPECT_THAT(*ExplainJobKey("model.layers.dense"), HasSubstr("units"));
  EXPECT_THAT(*ExplainJobKey("train.epochs"), HasSubstr("this or steps"));
  EXPECT_THAT(Message(ExplainJobKey("spec.optimizer.lr").status()), HasSubstr("did you mean 'learningRate'?"));
  EXPECT_EQ(ExplainJobKey("spec.nothing.at.all").status().code(), absl::StatusCode::kNotFound);
}

TEST(JobFileJsonSchema, CoversEveryKeyOfTheTable) {
  const auto root = nlohmann::json::parse(JobFileJsonSchema());
  for (const schema::Key& key : schema::AllKeys()) {
    const auto& section = key.section == "File"    ? root
                          : key.section == "Layer" ? root["$defs"]["Layer"]["oneOf"][1]
                                                   : root["$defs"][std::string(key.section)];
    ASSERT_TRUE(section["properties"].contains(std::string(key.name))) << key.section << "." << key.name;
    EXPECT_FALSE(section["additionalProperties"].get<bool>()) << key.section;
  }
  EXPECT_EQ(root["$defs"]["Optimizer"]["properties"]["momentum"]["exclusiveMaximum"], 1);
  EXPECT_EQ(root["$defs"]["Layer"]["oneOf"][0]["enum"],
            nlohmann::json({"relu", "gelu", "tanh", "sigmoid", "globalPool", "flatten", "batchNorm", "layerNorm"}));
  EXPECT_THAT(root["required"], ::testing::ElementsAre("apiVersion", "kind", "metadata", "spec"));
}

TEST(Schema, EveryFieldOfTheSpecHasAKeyAndEveryDefaultIsLegal) {
  std::set<std::string> sections;
  for (const schema::Key& key : schema::AllKeys()) sections.insert(std::string(key.section));
  for (const std::string& section : sections) {
    if (section == "File" || section == "Layer" || section == "Activation") continue;
    const auto* message = schema::MessageOf(section);
    ASSERT_NE(message, nullptr) << section;
    for (int i = 0; i < message->field_count(); ++i) {
      if (message->field(i)->name() == "metadata") continue;
      EXPECT_NE(schema::FindField(section, message->field(i)->name()), nullptr)
          << section << "." << message->field(i)->name();
    }
  }
  for (const schema::Key& key : schema::AllKeys()) {
    double value = 0;
    if (schema::HasDefault(key) && !key.range.empty() && schema::ReadDouble(key.fallback, &value).ok()) {
      EXPECT_TRUE(schema::InRange(key, value)) << key.section << "." << key.name;
    }
  }
}

}  // namespace
}  // namespace tutti
