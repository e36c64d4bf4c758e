#include "cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/tables.h"

namespace tutti::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Job FinishedJob() {
  v1::Job job;
  job.set_id("01JD3");
  auto* spec = job.mutable_spec();
  spec->mutable_metadata()->set_name("cnn");
  spec->mutable_batch()->set_global(128);
  spec->mutable_batch()->set_micro(32);
  spec->mutable_numerics()->set_shards(4);
  spec->mutable_train()->set_epochs(3);
  spec->mutable_resources()->set_ranks(2);
  auto* status = job.mutable_status();
  status->set_state(v1::JOB_STATE_SUCCEEDED);
  status->set_attempts(2);
  status->set_generation(2);
  status->set_completed_step(1407);
  status->set_weights_sha256("9f2c");
  status->set_latest_checkpoint("/work/runs/cnn/step-1407.g2");
  status->mutable_evaluation()->set_accuracy(0.9087);
  status->mutable_evaluation()->set_loss(0.25);
  status->mutable_evaluation()->set_samples(10'000);
  auto* result = status->mutable_result();
  result->set_samples(180'000);
  result->set_measured_arena_bytes(30'723'072);
  result->set_measured_resident_bytes(100 << 20);
  result->set_median_step_ms(32);
  auto* plan = result->mutable_plan();
  plan->set_parameters(421'642);
  plan->set_ranks(2);
  plan->set_steps(1407);
  plan->set_exact_bytes(true);
  plan->mutable_memory()->set_arena_bytes(30'723'072);
  plan->mutable_memory()->set_weight_bytes(1'686'568);
  plan->mutable_memory()->set_resident_bytes(99 << 20);
  plan->mutable_step()->set_flops(3.1e9);
  plan->mutable_step()->set_exchanged_bytes(1'686'568);
  plan->mutable_step()->set_step_ms(34);
  plan->set_wall_seconds(48);
  return job;
}

v1::Failure SomeFailure() {
  v1::Failure failure;
  failure.set_generation(1);
  failure.set_rank(3);
  failure.set_node("node-b");
  failure.set_cause("killed by signal 9, cause unknown, possibly memory");
  failure.set_signal(9);
  for (const int rank : {0, 1, 2, 4}) failure.add_victims(rank);
  failure.add_last_lines("loader\x1b[2J prefetch");
  failure.set_where("all-reduce #31 of step 10,412");
  failure.set_step(10'412);
  failure.set_completed_step(10'411);
  failure.set_durable_step(10'400);
  failure.set_next("generation 2 from step 10,400 (1 of 3 restarts used)");
  failure.set_try_hint("a smaller batch.micro");
  return failure;
}

TEST(PlanBlock, HasParametersSplitMemoryAndTime) {
  const v1::Job job = FinishedJob();
  EXPECT_EQ(PlanBlock(job.spec(), job.status().result().plan(), int64_t{12} << 30),
            "plan   cnn: 421,642 parameters, 2 ranks (data parallel), global batch 128 = 4 shards x 32\n"
            "       per rank  1.6 MiB weights = 29.3 MiB (slot 12.0 GiB)\n"
            "       per step  3.1 GFLOP · 1.6 MiB exchanged · about 34.0 ms · 3 epochs = 1,407 steps, about 48.0 s\n");
}

TEST(PlanBlock, AccumulationIsSaid) {  // JOB-07
  v1::Job job = FinishedJob();
  job.mutable_spec()->mutable_batch()->set_micro(8);
  job.mutable_status()->mutable_result()->mutable_plan()->set_micro_batches(4);
  EXPECT_THAT(PlanBlock(job.spec(), job.status().result().plan(), 0),
              HasSubstr("global batch 128 = 4 shards x 32 (4 micro-batches of 8)\n"));
}

TEST(DecayLine, SaysHowMuchIsDecayedAndHowMuchIsNot) {  // OPT-02
  v1::TrainPlan plan;
  EXPECT_EQ(DecayLine(plan), "");
  v1::DecayGroup* group = plan.add_decay_groups();
  group->set_weight_decay(0);
  group->set_tensors(10);
  group->set_parameters(421642);
  EXPECT_EQ(DecayLine(plan), "");  // nothing is decayed: nothing to be surprised by
  group->set_weight_decay(0.05);
  EXPECT_EQ(DecayLine(plan), "       decay     0.05 on 10 tensors (421,642 parameters)\n");
  group->set_tensors(1);
  v1::DecayGroup* rest = plan.add_decay_groups();
  rest->set_tensors(6);
  rest->set_parameters(1234);
  EXPECT_EQ(DecayLine(plan),
            "       decay     0.05 on 1 tensor (421,642 parameters), none on 6 (1,234: biases and normalisation)\n");
}

TEST(RunLine, ExactBytesAreNamedApartFromThePlansBound) {
  v1::Job job;
  job.set_id("01JD3");
  job.mutable_status()->mutable_plan()->mutable_memory()->set_arena_bytes(1'258'291);
  EXPECT_EQ(RunLine(job, -1), "run    job 01JD3 on 0 nodes\n");  // a bound: nothing is compiled yet
  v1::TrainPlan* plan = job.mutable_status()->mutable_plan();
  plan->set_exact_bytes(true);
  plan->mutable_memory()->set_weight_bytes(262'144);
  plan->mutable_memory()->set_arena_bytes(274'432);
  plan->mutable_memory()->set_resident_bytes(30'408'704);
  EXPECT_EQ(RunLine(job, -1),
            "run    job 01JD3 on 0 nodes\n"
            "       compiled  256.0 KiB weights = 268.0 KiB exactly · resident 29.0 MiB\n");
}

TEST(RunLine, NamesNodesCoresAndTheFirstStep) {
  v1::Job job = FinishedJob();
  auto* share = job.mutable_status()->mutable_assignment()->add_nodes();
  share->set_node("a");
  share->add_slots("cpu0");
  share->add_slots("cpu1");
  for (int rank = 0; rank < 2; ++rank) {
    auto* status = job.mutable_status()->add_ranks();
    status->set_rank(rank);
    status->set_node("a");
  }
  EXPECT_EQ(RunLine(job, -1), "run    job 01JD3 on 1 node: rank 0 slot cpu0, rank 1 slot cpu1\n");
  job.mutable_status()->mutable_ranks(0)->add_cores(0);
  job.mutable_status()->mutable_ranks(1)->add_cores(1);
  job.mutable_status()->mutable_ranks(1)->add_cores(3);
  EXPECT_EQ(RunLine(job, 180.4),
            "run    job 01JD3 on 1 node: rank 0 cores 0, rank 1 cores 1,3 · first step after 180 ms\n");
}

TEST(FailureBlock, OneCauseVictimsLastLinesAndWhatNext) {
  v1::Job job = FinishedJob();
  job.mutable_status()->set_state(v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(FailureBlock(job, SomeFailure()),
            "RECOVERING  cnn, generation 1 · in step 10,412 (completed 10,411, durable 10,400)\n"
            "cause   rank 3 on node-b: killed by signal 9, cause unknown, possibly memory\n"
            "victims ranks 0-2, 4 ended because of it (all-reduce #31 of step 10,412)\n"
            "last lines of rank 3:\n"
            "  loader[2J prefetch\n"
            "next    generation 2 from step 10,400 (1 of 3 restarts used)\n"
            "try     a smaller batch.micro\n");
  job.mutable_status()->set_state(v1::JOB_STATE_FAILED);
  EXPECT_THAT(FailureBlock(job, SomeFailure()), HasSubstr("RECOVERING  cnn"));  // an earlier generation's
  v1::Failure last = SomeFailure();
  last.set_generation(2);
  EXPECT_THAT(FailureBlock(job, last), HasSubstr("FAILED  cnn, generation 2"));
}

TEST(DoneBlock, ComparesPlanAndMeasurementAndSaysHowToGoOn) {
  RunFacts facts{.file = "cnn.yaml",
                 .wall_seconds = 47.9,
                 .last_step = {},
                 .ledger = RunFacts::Ledger{3, true, ""},
                 .kept = "",
                 .working_directory = "/work"};
  EXPECT_EQ(
      DoneBlock(FinishedJob(), facts),
      "done   SUCCEEDED in 47.9 s · attempt 2 · 180,000 samples, each epoch exact (ledger verified)\n"
      "       checkpoint  runs/cnn/step-1407.g2   weights sha256 9f2c   (resume: tutti run cnn.yaml --resume)\n"
      "       plan vs measured  memory 29.3 MiB / 29.3 MiB · resident 99.0 MiB / 100.0 MiB · step 34.0 / 32.0 ms\n");
  facts.ledger = RunFacts::Ledger{2, false, "step 7 saw other samples"};
  EXPECT_THAT(DoneBlock(FinishedJob(), facts), HasSubstr("LEDGER NOT EXACT: step 7 saw other samples"));
  v1::Job failed = FinishedJob();
  failed.mutable_status()->set_state(v1::JOB_STATE_FAILED);
  failed.mutable_status()->set_message("3 of 3 restarts used");
  failed.mutable_status()->clear_latest_checkpoint();
  facts.kept = "/state/failed-1";
  EXPECT_THAT(DoneBlock(failed, facts),
              AllOf(HasSubstr("FAILED"), HasSubstr("3 of 3 restarts used"),
                    HasSubstr("run it again: tutti run cnn.yaml"), HasSubstr("/state/failed-1")));
}

TEST(ResultJson, HasTheDocumentedFields) {
  v1::Job job = FinishedJob();
  *job.mutable_status()->add_failures() = SomeFailure();
  RunFacts facts{.file = "cnn.yaml",
                 .wall_seconds = 47.9,
                 .submit_to_first_step_ms = 180,
                 .last_step = v1::StepRecord(),
                 .ledger = RunFacts::Ledger{3, true, ""},
                 .kept = "",
                 .working_directory = ""};
  facts.last_step->set_loss(std::nan(""));
  const std::string text = ResultJson(job, facts);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const auto json = nlohmann::json::parse(text);  // LOG-01: strict, although the loss is NaN
  EXPECT_EQ(json["job"], "01JD3");
  EXPECT_EQ(json["name"], "cnn");
  EXPECT_EQ(json["state"], "SUCCEEDED");
  EXPECT_EQ(json["attempts"], 2);
  EXPECT_EQ(json["generation"], 2);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["steps"], 1407);
  EXPECT_EQ(json["samples"], 180'000);
  EXPECT_TRUE(json["metrics"]["train.loss"].is_null());
  EXPECT_EQ(json["metrics"]["eval.accuracy"], 0.9087);
  EXPECT_EQ(json["metrics"]["eval.samples"], 10'000);
  EXPECT_EQ(json["weightsSha256"], "9f2c");
  EXPECT_EQ(json["checkpoint"], "/work/runs/cnn/step-1407.g2");
  EXPECT_EQ(json["ledger"], nlohmann::json({{"epochs", 3}, {"exact", true}}));
  EXPECT_EQ(json["memory"]["plannedArenaBytes"], 30'723'072);
  EXPECT_EQ(json["memory"]["measuredArenaBytes"], 30'723'072);
  EXPECT_EQ(json["memory"]["plannedResidentBytes"], 99 << 20);
  EXPECT_EQ(json["memory"]["measuredResidentBytes"], 100 << 20);
  EXPECT_EQ(json["time"]["submitToFirstStepMs"], 180);
  EXPECT_EQ(json["time"]["medianStepMs"], 32);
  EXPECT_EQ(json["time"]["wallSeconds"], 47.9);
  EXPECT_EQ(json["time"]["samplesPerSecond"], 4000);  // 128 samples each 32 ms
  ASSERT_EQ(json["failures"].size(), 1u);
  EXPECT_EQ(json["failures"][0]["signal"], 9);
  EXPECT_EQ(json["failures"][0]["victims"], nlohmann::json({0, 1, 2, 4}));
}

TEST(ResultJson, OfAJobThatNeverStartedIsStillWhole) {
  v1::Job job;
  job.mutable_status()->set_state(v1::JOB_STATE_CANCELLED);
  const auto json = nlohmann::json::parse(ResultJson(job, {}));
  EXPECT_EQ(json["state"], "CANCELLED");
  EXPECT_TRUE(json["ledger"].is_null());
  EXPECT_TRUE(json["time"]["submitToFirstStepMs"].is_null());
  EXPECT_TRUE(json["failures"].empty());
}

TEST(DescribeJob, TellsEachRanksEnd) {  // API-06
  v1::Job job = FinishedJob();
  job.mutable_status()->set_state(v1::JOB_STATE_FAILED);
  const auto add = [&](int rank, int code, int signal, bool victim) {
    auto* status = job.mutable_status()->add_ranks();
    status->set_rank(rank);
    status->set_node("a");
    status->set_state(v1::RANK_STATE_EXITED);
    status->set_exit_code(code);
    status->set_signal(signal);
    status->set_victim(victim);
  };
  add(0, 0, 0, false);
  add(1, 3, 0, true);
  add(2, 0, 11, false);
  const std::string text = DescribeJob(job, 0);
  EXPECT_THAT(text, HasSubstr("EXITED with code 0"));
  EXPECT_THAT(text, ::testing::ContainsRegex("EXITED with code 3 +victim"));
  EXPECT_THAT(text, HasSubstr("EXITED by signal 11"));
}

TEST(DescribeJob, SaysWhyItWaits) {
  v1::Job job = FinishedJob();
  job.mutable_status()->set_state(v1::JOB_STATE_PENDING);
  job.mutable_status()->set_wait_reason("waiting: needs 2, free 1");
  job.set_create_unix_ms(1000);
  EXPECT_THAT(DescribeJob(job, 251'000), HasSubstr("PENDING for 4m: waiting: needs 2, free 1"));
}

TEST(Tables, JobsAndNodes) {
  v1::Job job = FinishedJob();
  job.set_create_unix_ms(1000);
  EXPECT_EQ(
      JobsTable({job}, 61'000, false),
      "ID     NAME  STATE      STEP   RANKS  ATTEMPTS  AGE\n01JD3  cnn   SUCCEEDED  1,407  2      2         60s\n");
  EXPECT_EQ(JobsTable({}, 0, false), "no jobs\n");
  v1::Node node;
  node.set_name("a");
  node.set_state(v1::NODE_STATE_READY);
  node.set_memory_bytes(int64_t{24} << 30);
  node.set_last_seen_unix_ms(60'000);
  node.add_slots()->set_job_id("01JD3");
  node.add_slots()->set_locked_elsewhere(true);
  node.add_slots();
  EXPECT_EQ(NodesTable({node}, 61'000, false),
            "NAME  STATE  SLOTS  FREE  MEMORY    SEEN\na     READY  3      1     24.0 GiB  1s\n");
  EXPECT_THAT(DescribeNode(node, 61'000), HasSubstr("another program"));
}

}  // namespace
}  // namespace tutti::cli
