// Verbs that talk to a coordinator which runs already.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/files.h"
#include "cli/exit_codes.h"
#include "cli/report.h"
#include "cli/session.h"
#include "cli/tables.h"
#include "cli/verbs.h"

namespace tutti::cli {
namespace {

constexpr int kPageSize = 500;
constexpr int kReconnectPauseMs = 200;
constexpr int64_t kLogDeadlineMs = 15'000;  // of trying to reach a coordinator that went away

bool Structured(const Options& options) {
  return options.format() == Format::kJson || options.format() == Format::kYaml;
}

template <typename T>
std::string ListOf(const std::vector<T>& items, Format format) {
  std::vector<const google::protobuf::Message*> pointers;
  for (const T& item : items) pointers.push_back(&item);
  return ListText(pointers, format);
}

StatusOr<std::vector<v1::Job>> AllJobs(Client* client, const Options& options) {
  std::vector<v1::Job> jobs;
  v1::ListJobsRequest request;
  request.set_filter(options.filter);
  do {
    request.set_page_size(
        static_cast<int32_t>(std::min<int64_t>(kPageSize, options.limit - static_cast<int64_t>(jobs.size()))));
    TUTTI_ASSIGN_OR_RETURN(v1::ListJobsResponse page, client->ListJobs(request));
    for (v1::Job& job : *page.mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && static_cast<int64_t>(jobs.size()) < options.limit);
  return jobs;
}

StatusOr<std::vector<v1::Node>> AllNodes(Client* client) {
  std::vector<v1::Node> nodes;
  v1::ListNodesRequest request;
  request.set_page_size(kPageSize);
  do {
    TUTTI_ASSIGN_OR_RETURN(v1::ListNodesResponse page, client->ListNodes(request));
    for (v1::Node& node : *page.mutable_nodes()) nodes.push_back(std::move(node));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return nodes;
}

// A row, or a document, per change, until interrupted.
Status WatchAll(Client* client, const Options& options) {
  StreamStopper stopper;
  v1::WatchJobsRequest request;
  if (options.names.size() == 1) request.set_id(options.names[0]);
  bool heading = true;
  for (;;) {
    const Status status = client->WatchJobs(request, &stopper, [&](const v1::WatchJobsResponse& event) {
      if (!event.resume_token().empty()) request.set_resume_token(event.resume_token());
      if (!event.has_snapshot() && !event.has_changed()) return true;
      const v1::Job& job = event.has_snapshot() ? event.snapshot() : event.changed();
      const std::string table = Structured(options)
                                    ? MessageText(job, options.format())
                                    : JobsTable({job}, SystemClock().UnixMillis(), options.format() == Format::kWide);
      const std::string text = Structured(options) || heading ? table : table.substr(table.find('\n') + 1);
      heading = false;
      return WriteAll(STDOUT_FILENO, text).ok();
    });
    if (status.code() == absl::StatusCode::kOutOfRange) {
      request.clear_resume_token();
    } else if (status.ok() || status.code() != absl::StatusCode::kUnavailable) {
      return status;
    }
    ::poll(nullptr, 0, kReconnectPauseMs);
  }
}

int GetJobs(Client* client, const Options& options) {
  if (options.watch) return ExitCodeOf(WatchAll(client, options));
  std::vector<v1::Job> jobs;
  if (options.names.empty()) {
    StatusOr<std::vector<v1::Job>> all = AllJobs(client, options);
    if (!all.ok()) return Report(all.status());
    jobs = *std::move(all);
  }
  for (const std::string& name : options.names) {
    StatusOr<v1::Job> job = client->GetJob(name);
    if (!job.ok()) return Report(job.status());
    jobs.push_back(*std::move(job));
  }
  if (!Structured(options)) {
    fmt::print("{}", JobsTable(jobs, SystemClock().UnixMillis(), options.format() == Format::kWide));
  } else {
    fmt::print("{}",
               options.names.size() == 1 ? MessageText(jobs[0], options.format()) : ListOf(jobs, options.format()));
  }
  return kSucceeded;
}

int GetNodes(Client* client, const Options& options) {
  std::vector<v1::Node> nodes;
  if (options.names.empty()) {
    StatusOr<std::vector<v1::Node>> all = AllNodes(client);
    if (!all.ok()) return Report(all.status());
    nodes = *std::move(all);
  }
  for (const std::string& name : options.names) {
    StatusOr<v1::Node> node = client->GetNode(name);
    if (!node.ok()) return Report(node.status());
    nodes.push_back(*std::move(node));
  }
  if (!Structured(options)) {
    fmt::print("{}", NodesTable(nodes, SystemClock().UnixMillis(), options.format() == Format::kWide));
  } else {
    fmt::print("{}",
               options.names.size() == 1 ? MessageText(nodes[0], options.format()) : ListOf(nodes, options.format()));
  }
  return kSucceeded;
}

bool IsJobKind(const std::string& kind) { return kind == "job" || kind == "jobs"; }
bool IsNodeKind(const std::string& kind) { return kind == "node" || kind == "nodes"; }

// The log of one generation from `*offset` on, reconnecting while following. OK: all was read (following: its rank has
// ended).
Status ReadOneLog(Client* client, v1::ReadLogsRequest* request) {
  StreamStopper stopper;
  Nanos reached = SystemClock().Monotonic();
  for (;;) {
    bool reader_gone = false;
    const Status status = client->ReadLogs(*request, &stopper, [&](const v1::ReadLogsResponse& chunk) {
      reached = SystemClock().Monotonic();
      request->set_generation(chunk.generation());
      request->set_offset(chunk.next_offset());
      reader_gone = !WriteAll(STDOUT_FILENO, chunk.data()).ok();
      return !reader_gone;
    });
    if (reader_gone) return Aborted("standard output is closed");
    if (status.ok() || !request->follow() || status.code() != absl::StatusCode::kUnavailable) return status;
    if (SystemClock().Monotonic() - reached > Millis(kLogDeadlineMs)) return status;
    ::poll(nullptr, 0, kReconnectPauseMs);
  }
}

// The next generation of a job after `generation`; 0 once there will be none.
StatusOr<int64_t> AwaitNextGeneration(Client* client, const std::string& id, int64_t generation) {
  Nanos reached = SystemClock().Monotonic();
  for (;;) {
    const StatusOr<v1::Job> job = client->GetJob(id);
    if (job.ok()) {
      reached = SystemClock().Monotonic();
      if (job->status().generation() > generation) return job->status().generation();
      if (IsTerminal(job->status().state())) return 0;
    } else if (job.status().code() != absl::StatusCode::kUnavailable ||
               SystemClock().Monotonic() - reached > Millis(kLogDeadlineMs)) {
      return job.status();
    }
    ::poll(nullptr, 0, kReconnectPauseMs);
  }
}

}  // namespace

int SubmitVerb(const Options& options) {
  const std::optional<LoadedJob> job = LoadJob(options);
  if (!job) return kUsage;
  const StatusOr<Target> target = FindTarget(options);
  if (!target.ok()) return Report(target.status());
  if (options.follow) {
    StatusOr<UniqueFd> signals = ListenToSignals();
    if (!signals.ok()) return Report(signals.status());
    Client client(*target);
    return Session(options, *job, &client, nullptr, *std::move(signals)).Run();
  }
  Client client(*target);
  v1::CreateJobRequest request;
  request.set_uid(options.uid.empty() ? NewUlid() : options.uid);
  *request.mutable_spec() = job->spec;
  request.set_validate_only(options.dry_run);
  if (StatusOr<v1::DataFacts> data = InspectData(job->spec); data.ok()) {
    *request.mutable_data() = *std::move(data);
  } else {
    fmt::print(stderr, "note: no plan before the ranks make theirs: {}\n",
               Message(data.status()));  // the data may be on the nodes only
  }
  const StatusOr<v1::CreateJobResponse> created = client.CreateJob(request);
  if (!created.ok()) {
    fmt::print(stderr, "{}\n", LocateLayerError(*job, Message(created.status())));
    return created.status().code() == absl::StatusCode::kResourceExhausted ? static_cast<int>(kNeverRuns)
                                                                           : ExitCodeOf(created.status());
  }
  if (Structured(options)) {
    fmt::print("{}", MessageText(created->job(), options.format()));
    return kSucceeded;
  }
  if (created->has_plan()) fmt::print("{}", PlanBlock(job->spec, created->plan(), 0));
  fmt::print("{}", options.dry_run ? std::string("valid; nothing was submitted\n")
                                   : fmt::format("job {} ({}) submitted\n", created->job().id(),
                                                 created->job().spec().metadata().name()));
  return kSucceeded;
}

int GetVerb(const Options& options) {
  const StatusOr<Target> target = FindTarget(options);
  if (!target.ok()) return Report(target.status());
  Client client(*target);
  if (IsJobKind(options.kind)) return GetJobs(&client, options);
  if (IsNodeKind(options.kind)) return GetNodes(&client, options);
  return Report(InvalidArgument("cannot get '{}'; expected jobs or nodes", options.kind));
}

int DescribeVerb(const Options& options) {
  const StatusOr<Target> target = FindTarget(options);
  if (!target.ok()) return Report(target.status());
  Client client(*target);
  if (IsJobKind(options.kind)) {
    const StatusOr<v1::Job> job = client.GetJob(options.name);
    if (!job.ok()) return Report(job.status());
    fmt::print("{}", Structured(options) ? MessageText(*job, options.format())
                                         : DescribeJob(*job, SystemClock().UnixMillis()));
    return kSucceeded;
  }
  if (!IsNodeKind(options.kind))
    return Report(InvalidArgument("cannot describe '{}'; expected job or node", options.kind));
  const StatusOr<v1::Node> node = client.GetNode(options.name);
  if (!node.ok()) return Report(node.status());
  fmt::print("{}", Structured(options) ? MessageText(*node, options.format())
                                       : DescribeNode(*node, SystemClock().UnixMillis()));
  return kSucceeded;
}

int LogsVerb(const Options& options) {
  const StatusOr<Target> target = FindTarget(options);
  if (!target.ok()) return Report(target.status());
  Client client(*target);
  v1::ReadLogsRequest request;
  request.set_id(options.name);
  request.set_generation(options.attempt);
  request.set_rank(options.rank);
  request.set_offset(options.tail_bytes >= 0 ? -options.tail_bytes : 0);
  request.set_follow(options.follow);
  for (;;) {
    if (const Status status = ReadOneLog(&client, &request); !status.ok()) return Report(status);
    if (!options.follow || options.attempt > 0) return kSucceeded;
    const StatusOr<int64_t> next = AwaitNextGeneration(&client, options.name, request.generation());
    if (!next.ok()) return Report(next.status());
    if (*next == 0) return kSucceeded;
    fmt::print(stderr, "--- attempt {} ended, attempt {} follows ---\n", request.generation(), *next);
    request.set_generation(*next);
    request.set_offset(0);
  }
}

int CancelVerb(const Options& options) {
  const StatusOr<Target> target = FindTarget(options);
  if (!target.ok()) return Report(target.status());
  Client client(*target);
  for (const std::string& name : options.names) {
    const StatusOr<v1::Job> before = client.GetJob(name);
    if (!before.ok()) return Report(before.status());
    const StatusOr<v1::Job> job = client.CancelJob(before->id(), options.force);
    if (!job.ok()) return Report(job.status());
    const bool too_late = IsTerminal(before->status().state());
    if (Structured(options)) {
      fmt::print("{}", MessageText(*job, options.format()));
    } else {
      fmt::print("job {} is {}{}\n", job->id(), StateWord(job->status().state()),
                 too_late ? " already; nothing was changed" : "");
    }
  }
  return kSucceeded;
}

}  // namespace tutti::cli
