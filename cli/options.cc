#include "cli/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/files.h"
#include "base/process.h"
#include "cli/exit_codes.h"
#include "engine/data/dataset.h"

namespace tutti::cli {

Format Options::format() const {
  return output == "json"   ? Format::kJson
         : output == "yaml" ? Format::kYaml
         : output == "wide" ? Format::kWide
                            : Format::kText;
}

bool HasTarget(const Options& options) {
  return !options.coordinator.empty() || !GetEnv("TUTTI_COORDINATOR").value_or("").empty();
}

StatusOr<Target> FindTarget(const Options& options) {
  Target target{.address = options.coordinator.empty() ? GetEnv("TUTTI_COORDINATOR").value_or("") : options.coordinator,
                .token = ""};
  if (target.address.empty()) {
    return Unavailable(
        "no coordinator is named: give --coordinator HOST:PORT or set TUTTI_COORDINATOR (`tutti run` needs none)");
  }
  const std::string path = options.token_file.empty() ? GetEnv("TUTTI_TOKEN_FILE").value_or("") : options.token_file;
  if (path.empty()) return target;
  StatusOr<std::string> token = ReadFile(path, 4096);
  if (!token.ok()) return Unauthenticated("the token file cannot be read: {}", Message(token.status()));
  token->erase(token->find_last_not_of(" \t\r\n") + 1);
  if (token->empty()) return Unauthenticated("{} holds no token", path);
  target.token = *std::move(token);
  return target;
}

std::optional<LoadedJob> LoadJob(const Options& options) {
  JobFileOptions job_options{.overrides = options.overrides,
                             .working_directory = "",
                             .cores_available = std::max<int>(1, static_cast<int>(AllowedCores().size())),
                             .fresh_run_directory = true};
  if (options.resume) job_options.overrides.push_back("checkpoint.resume=auto");
  StatusOr<LoadedJob> job = LoadJobFile(options.file, job_options);
  if (job.ok()) return *std::move(job);
  const std::string message = Message(job.status());
  fmt::print(stderr, "{}\n", message);
  if (job.status().code() == absl::StatusCode::kInvalidArgument) {
    const auto count = std::count(message.begin(), message.end(), '\n') + 1;
    fmt::print(stderr,
               "{} error{}; nothing was started. (exit code 2; `tutti explain spec` and `tutti explain spec.optimizer` "
               "list the keys)\n",
               count, count == 1 ? "" : "s");
  } else {
    fmt::print(stderr, "nothing was started. (exit code 2)\n");
  }
  return std::nullopt;
}

StatusOr<v1::DataFacts> InspectData(const v1::JobSpec& spec) {
  TUTTI_ASSIGN_OR_RETURN(const DatasetShape train, InspectDataset(spec.data().train()));
  v1::DataFacts facts;
  for (const int64_t dim : train.sample_shape) facts.add_sample_dims(dim);
  facts.set_train_samples(train.size);
  facts.set_resident_bytes(train.memory_bytes);
  if (!spec.data().has_eval()) return facts;
  TUTTI_ASSIGN_OR_RETURN(const DatasetShape eval, InspectDataset(spec.data().eval()));
  if (eval.sample_shape != train.sample_shape) {
    return InvalidArgument("{} and {} hold samples of different shapes", spec.data().train().images(),
                           spec.data().eval().images());
  }
  facts.set_eval_samples(eval.size);
  facts.set_resident_bytes(train.memory_bytes + eval.memory_bytes);
  return facts;
}

int Report(const Status& status) {
  fmt::print(stderr, "tutti: {}\n", Message(status));
  return ExitCodeOf(status);
}

}  // namespace tutti::cli
