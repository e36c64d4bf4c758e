#include "worker/agent/run_key.h"

#include <algorithm>

namespace tutti::worker {

std::string ToString(const RunKey& key) { return fmt::format("{} generation {}", key.job_id, key.generation); }
RunKey KeyOf(const v1::Assignment& assignment) { return {assignment.job_id(), assignment.generation()}; }

Status CheckJobId(std::string_view job_id) {
  const bool ok = !job_id.empty() && job_id.size() <= 64 && std::all_of(job_id.begin(), job_id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-';
  });
  if (ok) return OkStatus();
  return InvalidArgument("job id '{}' is not 1-64 characters of [A-Za-z0-9_-]", job_id.substr(0, 80));
}

}  // namespace tutti::worker
