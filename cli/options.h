// What the verbs share: flags, the coordinator's address and token, reading a job file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/client.h"
#include "cli/json.h"
#include "job/job_file.h"
#include "tutti/v1/plan.pb.h"

namespace tutti::cli {

struct Options {
  // Of every verb.
  std::string output;                   // "", "json", "yaml", "wide"
  std::string coordinator, token_file;  // flags; the environment stands behind them
  // Of verbs that read a job file.
  std::string file;
  std::vector<std::string> overrides;
  bool resume = false;
  std::string uid;
  bool follow = false, dry_run = false;
  // Of the others.
  std::string kind, name;  // get jobs, describe node NAME
  std::vector<std::string> names;
  std::string filter;
  int64_t limit = 500;
  bool watch = false, force = false;
  int32_t rank = 0;
  int64_t attempt = 0, tail_bytes = -1;

  Format format() const;
};

// The coordinator that flags or environment name. UNAVAILABLE: none is named; the message says how to.
StatusOr<Target> FindTarget(const Options& options);
bool HasTarget(const Options& options);

// Reads options.file with --set and --resume. On failure the mistakes are printed with their count: exit code 2.
std::optional<LoadedJob> LoadJob(const Options& options);
// Size and shape of the job's data from the files' headers.
StatusOr<v1::DataFacts> InspectData(const v1::JobSpec& spec);

// Prints "tutti: <message>" on standard error and gives the exit code.
int Report(const Status& status);

}  // namespace tutti::cli
