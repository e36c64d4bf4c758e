// Verbs that need no coordinator.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "cli/completion.h"
#include "cli/exit_codes.h"
#include "cli/local_plan.h"
#include "cli/report.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "engine/checkpoint/verify.h"

namespace tutti::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string LayerTable(const v1::TrainPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"LAYER", "KIND", "OUTPUT", "PARAMETERS", "FLOP A SAMPLE"}};
  for (const v1::LayerPlan& layer : plan.layers()) {
    std::string shape;
    for (const int64_t dim : layer.output_shape()) shape += fmt::format("{}{}", shape.empty() ? "" : " x ", dim);
    rows.push_back({layer.path(), layer.kind(), shape, WithCommas(layer.parameters()), CountText(layer.flops())});
  }
  return Table(rows);
}

std::string DecayTable(const v1::TrainPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "WEIGHT DECAY"}};
  for (const v1::DecayGroup& group : plan.decay_groups()) {
    for (const std::string& name : group.names()) rows.push_back({name, fmt::format("{}", group.weight_decay())});
  }
  return Table(rows);
}

int PrintPlan(const Options& options, const v1::JobSpec& spec, const v1::TrainPlan& plan, int64_t slot_bytes) {
  if (options.format() == Format::kJson || options.format() == Format::kYaml) {
    fmt::print("{}", MessageText(plan, options.format()));
    return kSucceeded;
  }
  fmt::print("{}", PlanBlock(spec, plan, slot_bytes));
  fmt::print("{}", DecayLine(plan));
  for (const std::string& reason : plan.reasons()) fmt::print("       because   {}\n", Printable(reason));
  if (options.format() == Format::kWide) fmt::print("\n{}\n{}", LayerTable(plan), DecayTable(plan));
  return kSucceeded;
}

int PlanOnCluster(const Options& options, const LoadedJob& job, const v1::DataFacts& data) {
  const StatusOr<Target> target = FindTarget(options);
  if (!target.ok()) return Report(target.status());
  Client client(*target);
  v1::PlanJobRequest request;
  *request.mutable_spec() = job.spec;
  *request.mutable_data() = data;
  const StatusOr<v1::PlanJobResponse> response = client.PlanJob(request);
  if (!response.ok()) {
    fmt::print(stderr, "{}\n", LocateLayerError(job, Message(response.status())));
    return ExitCodeOf(response.status());
  }
  PrintPlan(options, job.spec, response->plan(), 0);
  if (response->fits()) return kSucceeded;
  fmt::print(stderr, "{}\n", response->reason());
  return response->can_ever_run() ? kFailed : kNeverRuns;
}

}  // namespace

int PlanVerb(const Options& options) {
  const std::optional<LoadedJob> job = LoadJob(options);
  if (!job) return kUsage;
  const StatusOr<v1::DataFacts> data = InspectData(job->spec);
  if (!data.ok()) return Report(data.status());
  if (HasTarget(options)) return PlanOnCluster(options, *job, *data);
  const StatusOr<LocalPlan> local = PlanHere(job->spec, *data);
  if (!local.ok()) {
    fmt::print(stderr, "{}\n", LocateLayerError(*job, Message(local.status())));
    return ExitCodeOf(local.status());
  }
  if (!local->fits.ok()) {
    fmt::print(stderr, "{}\n", Message(local->fits));
    return kNeverRuns;
  }
  return PrintPlan(options, job->spec, local->plan, local->slot_bytes);
}

int ConfigVerb(const Options& options) {
  const std::optional<LoadedJob> job = LoadJob(options);
  if (!job) return kUsage;
  if (options.format() == Format::kJson) {
    fmt::print("{}\n", EffectiveConfigJson(*job));
  } else {
    fmt::print("{}", EffectiveConfig(*job));
  }
  return kSucceeded;
}

int ExplainVerb(const Options& options) {
  const StatusOr<std::string> text = ExplainJobKey(options.name);
  if (!text.ok()) return Report(text.status());
  fmt::print("{}", *text);
  return kSucceeded;
}

int SchemaVerb(const Options&) {
  fmt::print("{}\n", JobFileJsonSchema());
  return kSucceeded;
}

int VerifyVerb(const Options& options) {
  std::string directory = options.name, job_id;
  if (!FileExists(directory)) {
    if (!HasTarget(options))
      return Report(
          NotFound("no folder {}, and no coordinator is named that could know a job of that name", directory));
    const StatusOr<Target> target = FindTarget(options);
    if (!target.ok()) return Report(target.status());
    const StatusOr<v1::Job> job = Client(*target).GetJob(options.name);
    if (!job.ok()) return Report(job.status());
    job_id = job->id();
    directory = job->status().latest_checkpoint().empty() ? job->spec().checkpoint().directory()
                                                          : job->status().latest_checkpoint();
  }
  const StatusOr<VerifyReport> report = VerifyRun(directory, job_id);
  if (!report.ok()) return Report(report.status());
  if (options.format() == Format::kJson || options.format() == Format::kYaml) {
    const Json out = {{"checkpoint", report->checkpoint},
                      {"job", report->job_id},
                      {"exact", report->exact},
                      {"epochs", report->ledger.epochs},
                      {"steps", report->ledger.steps},
                      {"samples", report->ledger.samples},
                      {"partialSamples", report->ledger.partial_samples},
                      {"weightsSha256", report->weights_sha256},
                      {"problems", report->problems},
                      {"notices", report->notices}};
    const std::string text = out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    fmt::print("{}", options.format() == Format::kJson ? text : JsonToYaml(text));
  } else {
    const std::string partial = report->ledger.partial_samples > 0
                                    ? fmt::format(" and {} of the next", WithCommas(report->ledger.partial_samples))
                                    : "";
    fmt::print("{}  {}\n", report->exact ? "exact" : "WRONG", report->checkpoint);
    fmt::print("       {} epochs{}, {} steps, {} samples; weights sha256 {}\n", report->ledger.epochs, partial,
               WithCommas(report->ledger.steps), WithCommas(report->ledger.samples), report->weights_sha256);
    for (const std::string& problem : report->problems) fmt::print("       problem: {}\n", Printable(problem));
    for (const std::string& notice : report->notices) fmt::print("       note: {}\n", Printable(notice));
  }
  return report->exact ? kSucceeded : kFailed;
}

int VersionVerb(const Options& options) {
  Json out = {{"version", TUTTI_VERSION}};
  if (HasTarget(options)) {
    const StatusOr<Target> target = FindTarget(options);
    if (!target.ok()) return Report(target.status());
    const StatusOr<v1::GetVersionResponse> version = Client(*target).GetVersion();
    if (!version.ok()) return Report(version.status());
    out["coordinator"] = {{"address", target->address}, {"version", version->version()}, {"term", version->term()}};
  }
  if (options.format() == Format::kJson || options.format() == Format::kYaml) {
    fmt::print("{}", options.format() == Format::kJson ? out.dump(2) + "\n" : JsonToYaml(out.dump()));
    return kSucceeded;
  }
  fmt::print("tutti {}\n", TUTTI_VERSION);
  if (out.contains("coordinator")) {
    fmt::print("coordinator {} at {}, term {}\n", out["coordinator"]["version"].get<std::string>(),
               out["coordinator"]["address"].get<std::string>(), out["coordinator"]["term"].get<int64_t>());
  }
  return kSucceeded;
}

int CompletionVerb(const Options& options) {
  const std::string script = CompletionScript(options.name);
  if (script.empty()) return Report(InvalidArgument("no completion for '{}'; expected bash or zsh", options.name));
  fmt::print("{}", script);
  return kSucceeded;
}

}  // namespace tutti::cli
