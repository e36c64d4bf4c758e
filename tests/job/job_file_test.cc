#include "job/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "job/validate.h"
#include "tests/job/job_text.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

TEST(JobFile, DefaultsAndAutomaticValuesAreFilledIn) {
  const auto job = Load(kJob);
  ASSERT_TRUE(job.ok()) << job.status();
  const v1::JobSpec& spec = job->spec;
  EXPECT_EQ(spec.metadata().name(), "job");
  ASSERT_EQ(spec.model().layers_size(), 2);
  EXPECT_TRUE(spec.model().layers(0).has_flatten());
  EXPECT_EQ(spec.model().layers(1).dense().units(), 10);
  EXPECT_TRUE(spec.model().layers(1).dense().bias());
  EXPECT_EQ(spec.model().loss(), v1::LOSS_SOFTMAX_CROSS_ENTROPY);
  EXPECT_EQ(spec.data().train().images(), "/jobs/images.idx");
  EXPECT_TRUE(spec.data().shuffle());
  EXPECT_FALSE(spec.data().has_eval());
  EXPECT_EQ(spec.data().std(), 1.0);
  EXPECT_EQ(spec.batch().micro(), 32);  // 128 / 4
  EXPECT_EQ(spec.numerics().mode(), v1::NUMERICS_MODE_EXACT);
  EXPECT_EQ(spec.optimizer().beta1(), 0);  // has no meaning with sgd
  EXPECT_EQ(spec.schedule().kind(), v1::SCHEDULE_KIND_CONSTANT);
  EXPECT_FALSE(spec.train().evaluate_at_end());
  EXPECT_EQ(spec.train().max_skipped_steps(), 10);
  EXPECT_EQ(spec.checkpoint().directory(), "/work/runs/job");
  EXPECT_EQ(spec.checkpoint().resume(), v1::RESUME_MODE_NEVER);
  EXPECT_THAT(spec.restart().no_retry_exit_codes(), ::testing::ElementsAre(2, 3));
  EXPECT_EQ(spec.restart().grace_ms(), 30'000);
  EXPECT_TRUE(ValidateJobSpec(spec).ok()) << ValidateJobSpec(spec);
}

TEST(JobFile, AutomaticShardsThreadsAndMicroFollowRanksAndCores) {
  const std::string text = Replace(kJob, "numerics: {shards: 4, threads: 1}", "numerics: {shards: auto}");
  const auto job = Load(text);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.numerics().shards(), 2);   // ranks
  EXPECT_EQ(job->spec.numerics().threads(), 4);  // 8 cores / 2 ranks
  EXPECT_EQ(job->spec.batch().micro(), 64);      // 128 / 2
  const auto pinned = Load(text, {"resources.coresPerRank=3"});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->spec.numerics().threads(), 3);
}

TEST(JobFile, EveryLayerKindIsRead) {
  const auto job = Load(Replace(
      kJob, "      - flatten\n",
      "      - conv2d: {channels: 4, kernel: 3}\n      - batchNorm\n      - relu\n      - gelu\n"
      "      - tanh\n      - sigmoid\n      - maxPool: {size: 2}\n      - avgPool: {size: 3, stride: 1, padding: 1}\n"
      "      - residual:\n          layers:\n            - relu\n            - dropout: {rate: 0.5}\n"
      "      - layerNorm: {epsilon: 1e-6}\n      - globalPool\n"));
  ASSERT_TRUE(job.ok()) << job.status();
  const auto& layers = job->spec.model().layers();
  EXPECT_EQ(layers[0].conv2d().stride(), 1);
  EXPECT_EQ(layers[1].batch_norm().momentum(), 0.1);
  EXPECT_EQ(layers[2].activation().kind(), v1::ACTIVATION_KIND_RELU);
  EXPECT_EQ(layers[5].activation().kind(), v1::ACTIVATION_KIND_SIGMOID);
  EXPECT_EQ(layers[6].max_pool().stride(), 2);  // auto: size
  EXPECT_EQ(layers[7].avg_pool().stride(), 1);
  EXPECT_EQ(layers[8].residual().layers(1).dropout().rate(), 0.5);
  EXPECT_EQ(layers[9].layer_norm().epsilon(), 1e-6);
  EXPECT_TRUE(layers[10].has_global_pool());
  EXPECT_EQ(job->layers.at("layers.8.layers.1").line, 18);
  EXPECT_EQ(LocateLayerError(*job, "layers.8.layers.1: wrong shape"), "job.yaml:18:15: layers.8.layers.1: wrong shape");
  EXPECT_EQ(LocateLayerError(*job, "no layer is named"), "no layer is named");
}

TEST(JobFile, FiveSpellingsOfALearningRateAreOneNumber) {  // JOB-01
  for (const char* spelling : {"2e-5", "2E-5", "2.e-5", ".00002", "+2e-5"}) {
    const auto job = Load(Replace(kJob, "0.05", spelling));
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->spec.optimizer().learning_rate(), 2e-5) << spelling;
  }
  EXPECT_EQ(Errors(Replace(kJob, "0.05", "fast")),
            "job.yaml:16:19: spec.optimizer.learningRate: found 'fast', which is not a finite decimal number; expected "
            "a number in (0, 1000000]");
  for (const char* wrong :
       {"\"2e-5\"", "1e999", ".inf", ".nan", "nan", "0x10", "1_000", "2e-5x", "012", "0", "-1", "1e", "."}) {
    EXPECT_THAT(Errors(Replace(kJob, "0.05", wrong)), HasSubstr("job.yaml:16:19: spec.optimizer.learningRate: found "))
        << wrong;
  }
}

TEST(JobFile, UnknownKeyNamesTheNearestOne) {  // JOB-02
  struct Case {
    const char *from, *to, *expected;
  };
  for (const Case& c : {
           Case{"learningRate:", "learning_rate:",
                "job.yaml:16:5: spec.optimizer: unknown key 'learning_rate'; did you mean 'learningRate'?"},
           Case{
               "learningRate:", "lr:", "job.yaml:16:5: spec.optimizer: unknown key 'lr'; did you mean 'learningRate'?"},
           Case{"epochs: 3", "epochs: 3\n    num-epochs: 3",
                "job.yaml:19:5: spec.train: unknown key 'num-epochs'; did you mean 'epochs'?"},
           Case{"type: sgd", "type: sgd\n    weigthDecay: 0.1",
                "job.yaml:16:5: spec.optimizer: unknown key 'weigthDecay'; did you mean 'weightDecay'?"},
           Case{"  train:\n", "  learningRate: 0.1\n  train:\n",
                "job.yaml:17:3: spec: unknown key 'learningRate'; it belongs to spec.optimizer"},
           Case{"epochs: 3", "epochs: 3\n    ranks: 2",
                "job.yaml:19:5: spec.train: unknown key 'ranks'; it belongs to spec.resources"},
           Case{"kind: TrainingJob\n", "kind: TrainingJob\nqwertz: 1\n", "job.yaml:3:1: unknown key 'qwertz'"},
           Case{"- flatten", "- Flaten",
                "job.yaml:7:9: spec.model.layers.0: unknown layer 'Flaten'; expected one of dense, conv2d, relu, gelu, "
                "tanh, "
                "sigmoid, maxPool, avgPool, globalPool, flatten, dropout, batchNorm, layerNorm, residual; did you mean "
                "'flatten'?"},
           Case{"{units: 10}", "{unit: 10}",
                "job.yaml:8:17: spec.model.layers.1.dense: unknown key 'unit'; did you mean 'units'?"},
           Case{"type: sgd", "type: adamv",
                "job.yaml:15:11: spec.optimizer.type: found 'adamv'; expected one of sgd, adam, adamw; did you mean "
                "'adamw'?"},
       }) {
    EXPECT_EQ(Errors(Replace(kJob, c.from, c.to)), c.expected) << c.to;
  }
}

TEST(JobFile, DuplicateKeysNameBothLines) {  // JOB-03
  EXPECT_EQ(Errors(std::string(kJob) + "  train: {epochs: 1}\n"),
            "job.yaml:21:3: spec: duplicate key 'train' (first at line 17)");
  EXPECT_EQ(Errors(Replace(kJob, "epochs: 3", "epochs: 3\n    epochs: 3")),
            "job.yaml:19:5: spec.train: duplicate key 'epochs' (first at line 18)");
  EXPECT_THAT(Errors(Replace(kJob, "{name: job}", "{name: job, labels: {a: b, a: c}}")),
              HasSubstr("metadata.labels: duplicate key 'a' (first at line 3)"));
}

TEST(JobFile, TextStaysTextAndBooleansAreTwoWords) {  // JOB-05
  const auto job =
      Load(Replace(kJob, "{name: job}", "{name: job, labels: {COUNTRY: no, MODE: on, y: n, ZERO: 0, off: 012}}"));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->spec.metadata().labels(),
              ::testing::UnorderedElementsAre(::testing::Pair("COUNTRY", "no"), ::testing::Pair("MODE", "on"),
                                              ::testing::Pair("y", "n"), ::testing::Pair("ZERO", "0"),
                                              ::testing::Pair("off", "012")));
  for (const char* word : {"yes", "no", "on", "off", "y", "1", "True", "\"true\""}) {
    const std::string error = Errors(Replace(kJob, "classes: 10", std::string("classes: 10\n    shuffle: ") + word));
    EXPECT_THAT(error, HasSubstr("job.yaml:12:14: spec.data.shuffle: found ")) << word;
    EXPECT_THAT(error, HasSubstr("expected true or false")) << word;
  }
}

TEST(JobFile, BatchShardsMicroAndRanksMustAgree) {  // JOB-06, JOB-07
  EXPECT_EQ(Errors(Replace(kJob, "global: 128", "global: 100"), {"numerics.shards=8"}),
            "job.yaml:13:13: spec.batch.global: 100 is not divisible by numerics.shards 8 (batch.global 100, "
            "numerics.shards 8, batch.micro auto, "
            "resources.ranks 2); nearest valid: 96, 104");
  EXPECT_EQ(Errors(Replace(kJob, "global: 128", "global: 8\n    micro: 3"), {"numerics.shards=1", "resources.ranks=1"}),
            "job.yaml:14:12: spec.batch.micro: 3 does not divide the 8 samples of a shard (batch.global 8, "
            "numerics.shards 1, batch.micro 3, "
            "resources.ranks 1); nearest valid: 2, 4");
  EXPECT_THAT(
      Errors(kJob, {"resources.ranks=5"}),
      HasSubstr(
          "--set resources.ranks=5: spec.resources.ranks: 5 ranks need at least as many numerics.shards, found 4"));
  EXPECT_THAT(Errors(kJob, {"batch.micro=64"}), HasSubstr("64 does not divide the 32 samples of a shard"));
  EXPECT_THAT(Errors(kJob, {"batch.global=3"}), HasSubstr("nearest valid: 4"));
  const auto job = Load(Replace(kJob, "global: 128", "global: 8\n    micro: 1"), {"numerics.shards=2"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.batch().global() / (job->spec.numerics().shards() * job->spec.batch().micro()),
            4);  // accumulation
}

TEST(JobFile, NumbersOutsideTheirRangeAreRefusedWithTheRange) {  // JOB-08
  struct Case {
    const char *path, *value, *expected;
  };
  for (const Case& c : {Case{"batch.micro", "0", "an integer in [1, 16777216] or auto"},
                        Case{"batch.global", "-1", "an integer in [1, 16777216]"},
                        Case{"resources.ranks", "0", "an integer in [1, 65536]"},
                        Case{"train.epochs", "99999999999999999999", "an integer in [1, 1000000000]"},
                        Case{"train.epochs", "9223372036854775808", "an integer in [1, 1000000000]"},
                        Case{"resources.ranks", "1.5", "an integer in [1, 65536]"},
                        Case{"resources.ranks", "4294967297", "an integer in [1, 65536]"},
                        Case{"resources.ranks", "012", "an integer in [1, 65536]"},
                        Case{"resources.ranks", "2e0", "an integer in [1, 65536]"},
                        Case{"numerics.threads", "2147483649", "an integer in [1, 1024] or auto"},
                        Case{"train.seed", "-1", "an integer in [0, 18446744073709551615]"},
                        Case{"train.seed", "18446744073709551616", "an integer in [0, 18446744073709551615]"},
                        Case{"optimizer.momentum", "1", "a number in [0, 1)"},
                        Case{"model.layers.1.dense.units", "0", "an integer in [1, 16777216]"},
                        Case{"restart.noRetryExitCodes", "[2, 256]", "a list of integers in [1, 255]"},
                        Case{"checkpoint.keep", "1", "an integer in [2, 1000000]"},
                        Case{"restart.collectiveTimeoutMs", "", "an integer in [100, 3600000]"}}) {
    const std::string error = Errors(kJob, {fmt::format("{}={}", c.path, c.value)});
    EXPECT_THAT(error, HasSubstr(fmt::format("--set {}={}: spec.{}: found ", c.path, c.value, c.path))) << error;
    EXPECT_THAT(error, HasSubstr(fmt::format("expected {}", c.expected))) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  const auto largest = Load(kJob, {"train.seed=18446744073709551615"});
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_EQ(largest->spec.train().seed(), UINT64_MAX);
}

TEST(JobFile, CommandLineBeatsFileBeatsDefault) {  // JOB-10
  const auto job = Load(kJob, {"optimizer.learningRate=0.1", "spec.optimizer.momentum=0.9", "metadata.name=other",
                               "model.layers.1.dense.units=7"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.optimizer().learning_rate(), 0.1);
  EXPECT_EQ(job->spec.optimizer().momentum(), 0.9);
  EXPECT_EQ(job->spec.metadata().name(), "other");
  EXPECT_EQ(job->spec.model().layers(1).dense().units(), 7);
  EXPECT_EQ(job->sources.at("spec.optimizer.learningRate").text, "--set optimizer.learningRate=0.1");
  EXPECT_EQ(job->sources.at("spec.optimizer.type").text, "job.yaml:15:11");
  EXPECT_EQ(job->sources.count("spec.optimizer.weightDecay"), 0u);
}

TEST(JobFile, StepsByOverrideReplaceEpochsOfTheFile) {
  const auto job = Load(kJob, {"train.steps=17"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.train().steps(), 17);
  EXPECT_EQ(job->spec.train().epochs(), 0);
  EXPECT_THAT(Errors(kJob, {"train.steps=17", "train.epochs=2"}),
              HasSubstr("both steps (17) and epochs (2) are given"));
  EXPECT_THAT(Errors(kJob, {"train.epochs=null"}), HasSubstr("neither epochs nor steps is given"));
}

TEST(JobFile, OverrideOfNothingIsRefused) {
  EXPECT_THAT(Errors(kJob, {"optimizer"}), HasSubstr("expected key=value"));
  EXPECT_THAT(Errors(kJob, {"optimiser.momentum=0.5"}),
              HasSubstr("unknown key 'optimiser'; did you mean 'optimizer'?"));
  EXPECT_THAT(Errors(kJob, {"model.layers.7.dense.units=1"}), HasSubstr("found list position '7'; expected 0 to 1"));
  EXPECT_THAT(Errors(kJob, {"batch.global.x=1"}), HasSubstr("is the value '128'"));
  EXPECT_THAT(Errors(kJob, {"restart.noRetryExitCodes=[1"}), HasSubstr("--set: 1:"));
  const auto relative = Load(kJob, {"data.train.images=here.idx"});
  ASSERT_TRUE(relative.ok()) << relative.status();
  EXPECT_EQ(relative->spec.data().train().images(), "/work/here.idx");  // of the shell, not of the file
}

TEST(JobFile, CombinationsWithoutMeaningAreRefused) {
  EXPECT_THAT(Errors(kJob, {"optimizer.nesterov=true"}), HasSubstr("needs optimizer.momentum above 0"));
  EXPECT_THAT(Errors(kJob, {"optimizer.beta1=0.9"}),
              HasSubstr("spec.optimizer.beta1: has no meaning with type sgd; expected only with adam or adamw"));
  EXPECT_THAT(Errors(kJob, {"schedule.type=step"}), HasSubstr("spec.schedule: missing key 'stepEvery'"));
  EXPECT_THAT(Errors(kJob, {"train.evaluateEverySteps=10"}), HasSubstr("nothing to evaluate on"));
  EXPECT_THAT(Errors(kJob, {"train.evaluateAtEnd=true"}), HasSubstr("nothing to evaluate on"));
  EXPECT_THAT(Errors(kJob, {"checkpoint.resume=path"}), HasSubstr("path needs checkpoint.resumeFrom"));
  EXPECT_THAT(Errors(kJob, {"checkpoint.resumeFrom=/a"}), HasSubstr("expected only with resume: path"));
  EXPECT_THAT(Errors(Replace(kJob, "- flatten", "- maxPool: {size: 3, padding: 2}")),
              HasSubstr("layers.0.maxPool.padding: 2 is more than half of size 3"));
  for (const char* name : {"Job", "a_b", "-a", "a-", "", "a b", "../x", "a;touch pwned"}) {  // SEC-03
    EXPECT_THAT(Errors(kJob, {fmt::format("metadata.name='{}'", name)}), HasSubstr("metadata.name: ")) << name;
  }
  EXPECT_THAT(Errors(kJob, {"metadata.labels.team=$(touch pwned)"}), HasSubstr("metadata.labels.team: "));
}

TEST(JobFile, AllMistakesAtOnceInFileOrder) {
  const std::string text =
      Replace(Replace(Replace(kJob, "global: 128", "global: 126"), "learningRate:", "learning_rate:"), "epochs: 3",
              "epochs: three");
  const std::string errors = Errors(text + "  train: {}\n");
  std::vector<int> lines;
  for (size_t at = 0; at != std::string::npos; at = errors.find('\n', at + 1)) {
    lines.push_back(std::stoi(errors.substr(errors.find(".yaml:", at) + 6)));
  }
  EXPECT_THAT(lines, ::testing::ElementsAre(13, 16, 18, 21)) << errors;
}

TEST(JobFile, MissingSectionsAndKeysAreNamedWithWhatIsExpected) {
  EXPECT_THAT(Errors("apiVersion: tutti/v1\nkind: TrainingJob\nmetadata: {name: a}\nspec: {}\n"),
              HasSubstr("spec: missing key 'model'"));
  EXPECT_THAT(Errors("kind: Pod\n"), ::testing::AllOf(HasSubstr("kind: found 'Pod'; expected TrainingJob"),
                                                      HasSubstr("missing key 'apiVersion'; expected tutti/v1")));
  EXPECT_THAT(Errors(Replace(kJob, ", labels: labels.idx", "")),
              HasSubstr("spec.data.train: missing key 'labels'; expected a path"));
  EXPECT_THAT(Errors(Replace(kJob, "- dense: {units: 10}", "- dense")),
              HasSubstr("job.yaml:8:9: spec.model.layers.1.dense: missing key 'units'"));
  EXPECT_THAT(Errors(Replace(kJob, "- dense: {units: 10}", "- dense:\n        units: 10")),
              HasSubstr("one layer in a list item"));
  EXPECT_THAT(Errors(Replace(kJob, "- flatten", "- relu: {units: 10}")),
              HasSubstr("spec.model.layers.0.relu: unknown key 'units'"));
}

TEST(ValidateJobSpec, RefusesWhatNoJobFileCouldSay) {
  const auto job = Load(kJob);
  ASSERT_TRUE(job.ok());
  const auto refused = [&](auto change) {
    v1::JobSpec spec = job->spec;
    change(&spec);
    return Message(ValidateJobSpec(spec));
  };
  EXPECT_THAT(Message(ValidateJobSpec(v1::JobSpec())), HasSubstr("spec.model: missing"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_optimizer()->set_kind(static_cast<v1::OptimizerKind>(77)); }),
              HasSubstr("spec.optimizer.type: "));
  EXPECT_THAT(refused([](auto* s) { s->mutable_optimizer()->set_learning_rate(NAN); }),
              HasSubstr("spec.optimizer.learningRate: found nan"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_optimizer()->set_beta2(0.9); }),
              HasSubstr("spec.optimizer.beta2: has no meaning with type sgd"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_data()->mutable_train()->set_images("relative"); }),
              HasSubstr("'relative' is not an absolute path"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_model()->add_layers(); }),
              HasSubstr("spec.model.layers.2: a layer of no kind"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_batch()->set_micro(0); }), HasSubstr("spec.batch.micro: found 0"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_resources()->set_ranks(5); }),
              HasSubstr("need at least as many numerics.shards"));
  EXPECT_THAT(refused([](auto* s) { s->mutable_metadata()->set_name("../x"); }), HasSubstr("metadata.name: "));
  v1::Layer* nested = nullptr;
  EXPECT_THAT(refused([&](auto* s) {
                nested = s->mutable_model()->add_layers();
                for (int i = 0; i < 90; ++i) nested = nested->mutable_residual()->add_layers();
                nested->mutable_flatten();
              }),
              HasSubstr("nested deeper than 8"));
}

TEST(LoadJobFile, NamesTheFileThatCannotBeRead) {
  const auto job = LoadJobFile("/no/such/job.yaml", {});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(job.status()), HasSubstr("/no/such/job.yaml"));
}

TEST(LoadJobFile, ConfigurationsOfTheProjectAreValid) {
  for (const char* name : {"fashion_mnist_cnn", "fashion_mnist_mlp"}) {
    const auto job = LoadJobFile(fmt::format("{}/configs/jobs/{}.yaml", TUTTI_SOURCE_DIR, name), {});
    EXPECT_TRUE(job.ok()) << job.status();
  }
}

TEST(LoadJobFile, DefaultRunDirectoryIsFreshUnlessResumed) {
  auto folder = TempDirectory::Create("tutti-job");
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(MakeDirectories(folder->path() + "/runs/job").ok());
  const auto load = [&](bool fresh, std::vector<std::string> overrides) {
    const auto job = ParseJobFile(
        kJob, "job.yaml", "/jobs",
        {.overrides = std::move(overrides), .working_directory = folder->path(), .fresh_run_directory = fresh});
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? Basename(job->spec.checkpoint().directory()) : "";
  };
  EXPECT_EQ(load(false, {}), "job");
  EXPECT_EQ(load(true, {}), "job-2");
  EXPECT_EQ(load(true, {"checkpoint.resume=auto"}), "job");
  ASSERT_TRUE(MakeDirectories(folder->path() + "/runs/job-2").ok());
  EXPECT_EQ(load(true, {}), "job-3");
  EXPECT_EQ(load(true, {"checkpoint.resume=auto"}), "job-2");
}

}  // namespace
}  // namespace tutti
