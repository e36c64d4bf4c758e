#include <algorithm>

#include "base/process.h"
#include "cli/embedded.h"
#include "cli/exit_codes.h"
#include "cli/session.h"
#include "cli/verbs.h"

namespace tutti::cli {

int RunVerb(const Options& options) {
  const std::optional<LoadedJob> job = LoadJob(options);
  if (!job) return kUsage;
  StatusOr<UniqueFd> signals = ListenToSignals();
  if (!signals.ok()) return Report(signals.status());
  const StatusOr<std::unique_ptr<Embedded>> embedded =
      Embedded::Start({.ranks = job->spec.resources().ranks(),
                       .cores_per_rank = job->spec.resources().cores_per_rank(),
                       .cores_available = std::max<int>(1, static_cast<int>(AllowedCores().size()))});
  if (!embedded.ok()) return Report(embedded.status());
  Client client({.address = (*embedded)->address(), .token = "", .wait_for_start = true});
  return Session(options, *job, &client, embedded->get(), *std::move(signals)).Run();
}

}  // namespace tutti::cli
