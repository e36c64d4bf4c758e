#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "cli/text.h"

namespace tutti::cli {
namespace {

// Of one unit, that of the sum: "1.6 MiB weights · 1.6 gradients · ... = 29.3 MiB".
std::string MemoryParts(const v1::MemoryPlan& memory) {
  struct Part {
    const char* name;
    int64_t bytes;
  };
  const Part parts[] = {{"weights", memory.weight_bytes()},         {"gradients", memory.gradient_bytes()},
                        {"optimizer", memory.optimizer_bytes()},    {"statistics", memory.statistic_bytes()},
                        {"activations", memory.activation_bytes()}, {"workspace", memory.workspace_bytes()},
                        {"batches", memory.batch_bytes()},          {"exchange", memory.communication_bytes()}};
  const int64_t unit = memory.arena_bytes() >= (int64_t{1} << 30) ? int64_t{1} << 30
                       : memory.arena_bytes() >= (1 << 20)        ? 1 << 20
                                                                  : 1 << 10;
  const char* const name = unit == (int64_t{1} << 30) ? "GiB" : unit == (1 << 20) ? "MiB" : "KiB";
  const auto in_unit = [&](int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / static_cast<double>(unit));
  };
  std::string text;
  for (const Part& part : parts) {
    if (part.bytes * 20 < unit) continue;  // would read 0.0
    text += text.empty() ? fmt::format("{} {} {}", in_unit(part.bytes), name, part.name)
                         : fmt::format(" · {} {}", in_unit(part.bytes), part.name);
  }
  return fmt::format("{}{}{}", text, text.empty() ? "" : " = ", MemoryText(memory.arena_bytes()));
}

std::string Shown(const std::string& path, const std::string& working_directory) {
  const std::string prefix = working_directory + "/";
  return !working_directory.empty() && path.starts_with(prefix) ? path.substr(prefix.size()) : path;
}

std::string Plural(int64_t count, std::string_view word) {
  return fmt::format("{} {}{}", WithCommas(count), word, count == 1 ? "" : "s");
}

// The plan with exact bytes where a rank made one.
const v1::TrainPlan& PlanOf(const v1::Job& job) {
  return job.status().result().has_plan() ? job.status().result().plan() : job.status().plan();
}

int64_t SamplesOf(const v1::Job& job) { return job.status().result().samples(); }

std::string LedgerText(const RunFacts& facts) {
  if (!facts.ledger) return "no ledger to verify";
  return facts.ledger->exact ? "each epoch exact (ledger verified)"
                             : fmt::format("LEDGER NOT EXACT: {}", facts.ledger->problem);
}

std::string FailureName(const v1::Failure& failure) {
  return failure.rank() >= 0
             ? fmt::format("rank {}{}", failure.rank(), failure.node().empty() ? "" : " on " + failure.node())
         : failure.node().empty() ? std::string("the job")
                                  : "node " + failure.node();
}

using Json = nlohmann::ordered_json;

Json FiniteOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json FailureJson(const v1::Failure& failure) {
  Json out = {{"generation", failure.generation()},
              {"rank", failure.rank()},
              {"node", failure.node()},
              {"cause", failure.cause()}};
  out["victims"] = std::vector<int32_t>(failure.victims().begin(), failure.victims().end());
  out["step"] = failure.step();
  out["completedStep"] = failure.completed_step();
  out["durableStep"] = failure.durable_step();
  out["exitCode"] = failure.exit_code();
  out["signal"] = failure.signal();
  out["lastLines"] = std::vector<std::string>(failure.last_lines().begin(), failure.last_lines().end());
  out["next"] = failure.next();
  out["try"] = failure.try_hint();
  return out;
}

}  // namespace

std::string StateWord(v1::JobState state) {
  const std::string name = v1::JobState_Name(state);
  return name.starts_with("JOB_STATE_") ? name.substr(10) : "UNKNOWN";
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

std::string PlanBlock(const v1::JobSpec& spec, const v1::TrainPlan& plan, int64_t slot_bytes) {
  const int64_t per_shard = spec.batch().global() / std::max<int64_t>(1, spec.numerics().shards());
  std::string split =
      fmt::format("{} = {} x {}", spec.batch().global(), Plural(spec.numerics().shards(), "shard"), per_shard);
  if (plan.micro_batches() > 1)
    split += fmt::format(" ({} micro-batches of {})", plan.micro_batches(), spec.batch().micro());
  std::string out =
      fmt::format("plan   {}: {} parameters, {} (data parallel), global batch {}\n", spec.metadata().name(),
                  WithCommas(plan.parameters()), Plural(plan.ranks(), "rank"), split);
  out += fmt::format("       per rank  {}{}{}\n", MemoryParts(plan.memory()), plan.exact_bytes() ? "" : " at most",
                     slot_bytes > 0 ? fmt::format(" (slot {})", MemoryText(slot_bytes)) : "");
  const std::string length = spec.train().epochs() > 0 ? fmt::format("{} = {}", Plural(spec.train().epochs(), "epoch"),
                                                                     Plural(plan.steps(), "step"))
                                                       : Plural(plan.steps(), "step");
  out += fmt::format("       per step  {}FLOP · {} exchanged · about {} ms · {}, about {}\n",
                     CountText(plan.step().flops()) + (plan.step().flops() < 1000 ? " " : ""),
                     MemoryText(plan.step().exchanged_bytes()), Significant(plan.step().step_ms()), length,
                     DurationText(plan.wall_seconds()));
  return out;
}

std::string DecayLine(const v1::TrainPlan& plan) {
  if (plan.decay_groups().empty() || plan.decay_groups(0).weight_decay() == 0) return "";
  std::string out;
  for (const v1::DecayGroup& group : plan.decay_groups()) {
    const bool first = out.empty();
    out += fmt::format("{}{} on {} ({}{})", first ? "       decay     " : ", ",
                       group.weight_decay() > 0 ? fmt::format("{}", group.weight_decay()) : "none",
                       first ? Plural(group.tensors(), "tensor") : WithCommas(group.tensors()),
                       first ? Plural(group.parameters(), "parameter") : WithCommas(group.parameters()),
                       group.weight_decay() > 0 ? "" : ": biases and normalisation");
  }
  return out + "\n";
}

std::string RunLine(const v1::Job& job, double first_step_ms) {
  std::set<std::string> nodes;
  std::map<int32_t, std::string> slots;
  for (const auto& share : job.status().assignment().nodes()) {
    nodes.insert(share.node());
    for (int i = 0; i < share.slots_size(); ++i) slots[share.first_rank() + i] = share.slots(i);
  }
  std::string ranks;
  constexpr int kMaxRanksShown = 8;
  for (int i = 0; i < std::min(job.status().ranks_size(), kMaxRanksShown); ++i) {
    const v1::RankStatus& rank = job.status().ranks(i);
    std::string cores;
    for (const int32_t core : rank.cores()) cores += fmt::format("{}{}", cores.empty() ? " cores " : ",", core);
    if (cores.empty() && !slots[rank.rank()].empty()) cores = " slot " + slots[rank.rank()];
    ranks += fmt::format("{}rank {}{}{}", i == 0 ? ": " : ", ", rank.rank(),
                         nodes.size() > 1 ? " on " + rank.node() : "", cores);
  }
  if (job.status().ranks_size() > kMaxRanksShown) ranks += fmt::format(", ... {} in all", job.status().ranks_size());
  std::string line =
      fmt::format("run    job {} on {}{}", job.id(), Plural(static_cast<int64_t>(nodes.size()), "node"), ranks);
  if (first_step_ms >= 0) line += fmt::format(" · first step after {:.0f} ms", first_step_ms);
  line += "\n";
  if (const v1::TrainPlan& plan = job.status().plan(); plan.exact_bytes()) {
    line += fmt::format("       compiled  {} exactly · resident {}\n", MemoryParts(plan.memory()),
                        MemoryText(plan.memory().resident_bytes()));
  }
  return line;
}

std::string EvalLine(const v1::EvalRecord& evaluation) {
  const std::string accuracy =
      evaluation.accuracy() >= 0 ? fmt::format("test accuracy {:.4f}, ", evaluation.accuracy()) : "";
  return fmt::format("eval   {}loss {} over {} samples (each once) after step {}\n", accuracy,
                     Significant(evaluation.loss()), WithCommas(evaluation.samples()), WithCommas(evaluation.step()));
}

std::string CheckpointLine(const v1::CheckpointRecord& checkpoint, const std::string& working_directory) {
  return fmt::format("saved  step {}  {}  {} in {}\n", WithCommas(checkpoint.step()),
                     Shown(checkpoint.path(), working_directory), MemoryText(checkpoint.bytes()),
                     DurationText(checkpoint.seconds()));
}

std::string FailureBlock(const v1::Job& job, const v1::Failure& failure) {
  const bool final = job.status().state() == v1::JOB_STATE_FAILED && failure.generation() == job.status().generation();
  std::string out =
      fmt::format("{}  {}, generation {} · in step {} (completed {}, durable {})\n", final ? "FAILED" : "RECOVERING",
                  job.spec().metadata().name(), failure.generation(), WithCommas(failure.step()),
                  WithCommas(failure.completed_step()), WithCommas(failure.durable_step()));
  out += fmt::format("cause   {}: {}\n", FailureName(failure), Printable(failure.cause()));
  if (failure.victims_size() > 0) {
    const std::vector<int32_t> victims(failure.victims().begin(), failure.victims().end());
    out += fmt::format("victims {} ended because of it{}\n", RankList(victims),
                       failure.where().empty() ? "" : fmt::format(" ({})", Printable(failure.where())));
  }
  if (failure.last_lines_size() > 0) {
    out +=
        fmt::format("last lines of {}:\n", failure.rank() >= 0 ? fmt::format("rank {}", failure.rank()) : "the output");
    for (const std::string& line : failure.last_lines()) out += fmt::format("  {}\n", Printable(line));
  }
  if (!failure.next().empty()) out += fmt::format("next    {}\n", Printable(failure.next()));
  if (!failure.try_hint().empty()) out += fmt::format("try     {}\n", Printable(failure.try_hint()));
  return out;
}

std::string DoneBlock(const v1::Job& job, const RunFacts& facts) {
  const v1::JobStatus& status = job.status();
  std::string out = fmt::format("done   {} in {} · attempt {}", StateWord(status.state()),
                                DurationText(facts.wall_seconds), status.attempts());
  if (SamplesOf(job) > 0) out += fmt::format(" · {} samples", WithCommas(SamplesOf(job)));
  if (facts.ledger) out += fmt::format(", {}", LedgerText(facts));
  out += "\n";
  if (status.state() != v1::JOB_STATE_SUCCEEDED && !status.message().empty())
    out += fmt::format("       {}\n", Printable(status.message()));
  if (!status.latest_checkpoint().empty()) {
    const std::string weights =
        status.weights_sha256().empty() ? "" : fmt::format("   weights sha256 {}", status.weights_sha256());
    const std::string again = facts.file.empty() ? "" : fmt::format("   (resume: tutti run {} --resume)", facts.file);
    out += fmt::format("       checkpoint  {}{}{}\n", Shown(status.latest_checkpoint(), facts.working_directory),
                       weights, again);
  } else if (status.state() != v1::JOB_STATE_SUCCEEDED && !facts.file.empty()) {
    out += fmt::format("       run it again: tutti run {}\n", facts.file);
  }
  if (const v1::RankResult& result = status.result(); result.measured_arena_bytes() > 0) {
    const v1::TrainPlan& plan = PlanOf(job);
    out += fmt::format("       plan vs measured  memory {} / {} · resident {} / {} · step {} / {} ms\n",
                       MemoryText(plan.memory().arena_bytes()), MemoryText(result.measured_arena_bytes()),
                       MemoryText(plan.memory().resident_bytes()), MemoryText(result.measured_resident_bytes()),
                       Significant(plan.step().step_ms()), Significant(result.median_step_ms()));
  }
  if (!facts.kept.empty()) out += fmt::format("       logs and records kept in {}\n", facts.kept);
  return out;
}

std::string ResultJson(const v1::Job& job, const RunFacts& facts) {
  const v1::JobStatus& status = job.status();
  const v1::RankResult& result = status.result();
  const v1::TrainPlan& plan = PlanOf(job);
  Json metrics = Json::object();
  if (facts.last_step) {
    metrics["train.loss"] = FiniteOrNull(facts.last_step->loss());
    if (facts.last_step->accuracy() >= 0) metrics["train.accuracy"] = FiniteOrNull(facts.last_step->accuracy());
  }
  if (status.has_evaluation()) {
    metrics["eval.loss"] = FiniteOrNull(status.evaluation().loss());
    if (status.evaluation().accuracy() >= 0) metrics["eval.accuracy"] = FiniteOrNull(status.evaluation().accuracy());
    metrics["eval.samples"] = status.evaluation().samples();
  }
  const double median = result.median_step_ms();
  const double rate =
      median > 0 ? 1000.0 * static_cast<double>(job.spec().batch().global()) / median : facts.samples_per_second;
  Json failures = Json::array();
  for (const v1::Failure& failure : status.failures()) failures.push_back(FailureJson(failure));
  Json out = {{"job", job.id()},
              {"name", job.spec().metadata().name()},
              {"state", StateWord(status.state())},
              {"attempts", status.attempts()}};
  out["generation"] = status.generation();
  out["ranks"] = job.spec().resources().ranks();
  out["steps"] = status.completed_step();
  out["samples"] = SamplesOf(job);
  out["metrics"] = std::move(metrics);
  out["weightsSha256"] = status.weights_sha256();
  out["checkpoint"] = status.latest_checkpoint();
  out["ledger"] = facts.ledger ? Json{{"epochs", facts.ledger->epochs}, {"exact", facts.ledger->exact}} : Json(nullptr);
  out["memory"] = {{"plannedArenaBytes", plan.memory().arena_bytes()},
                   {"measuredArenaBytes", result.measured_arena_bytes()},
                   {"plannedResidentBytes", plan.memory().resident_bytes()},
                   {"measuredResidentBytes", result.measured_resident_bytes()}};
  out["time"] = {
      {"submitToFirstStepMs", facts.submit_to_first_step_ms >= 0 ? Json(facts.submit_to_first_step_ms) : Json(nullptr)},
      {"medianStepMs", FiniteOrNull(median)},
      {"wallSeconds", facts.wall_seconds},
      {"samplesPerSecond", FiniteOrNull(rate)}};
  out["failures"] = std::move(failures);
  if (!status.message().empty()) out["message"] = status.message();
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti::cli
