#include "engine/checkpoint/store.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "base/check.h"
#include "base/files.h"
#include "engine/checkpoint/layout.h"
#include "tutti/v1/checkpoint.pb.h"
#include "tutti/v1/job.pb.h"

namespace tutti {
namespace {

// The newest of `scan` that passes `wanted`, its job's fence and the check of its files.
template <typename Wanted>
std::optional<CheckpointInfo> Select(const DirectoryScan& scan, const std::map<std::string, Fence>& fences,
                                     Wanted wanted, std::vector<std::string>* notices) {
  for (const Candidate& candidate : scan.candidates) {
    if (!wanted(candidate)) continue;
    const std::string name = Basename(candidate.path);
    if (!candidate.status.ok()) {
      notices->push_back(candidate.committed ? fmt::format("{} is passed over: {}", name, Message(candidate.status))
                                             : fmt::format("{} is passed over: it was never completed", name));
      continue;
    }
    const auto fence = fences.find(candidate.name.tag);
    if (fence != fences.end() && !fence->second.Admits(candidate.name.generation, candidate.name.step)) {
      notices->push_back(fmt::format("{} is passed over: a later generation went on from an earlier step", name));
      continue;
    }
    if (Status status = VerifyFiles(candidate.info); !status.ok()) {
      notices->push_back(fmt::format("{} is passed over: {}", name, Message(status)));
      continue;
    }
    return candidate.info;
  }
  return std::nullopt;
}

// What `resume_from` names: a step folder, or a run folder's newest.
StatusOr<CheckpointInfo> FindNamed(const std::string& path, std::vector<std::string>* notices) {
  if (path.empty() || !FileExists(path)) return NotFound("checkpoint.resumeFrom: {} does not exist", path);
  if (FileExists(JoinPath(path, kManifestName))) {
    TUTTI_ASSIGN_OR_RETURN(CheckpointInfo info, ReadManifest(path));
    TUTTI_RETURN_IF_ERROR(VerifyFiles(info));
    return info;
  }
  TUTTI_ASSIGN_OR_RETURN(const CheckpointStore store, CheckpointStore::OpenExisting(path));
  TUTTI_ASSIGN_OR_RETURN(std::optional<CheckpointInfo> found, store.Latest("", Fence(), notices));
  if (!found) return NotFound("checkpoint.resumeFrom: {} holds no complete checkpoint", path);
  return *std::move(found);
}

}  // namespace

void Fence::Add(Generation generation, Step base) {
  const auto [at, inserted] = bases_.emplace(generation.value(), base.value());
  if (!inserted) at->second = std::min(at->second, base.value());
}

void Fence::Add(const Fence& other) {
  for (const auto& [generation, base] : other.bases_) Add(Generation(generation), Step(base));
}

bool Fence::Admits(Generation generation, Step step) const {
  for (auto later = bases_.upper_bound(generation.value()); later != bases_.end(); ++later) {
    if (step.value() > later->second) return false;
  }
  return true;
}

StatusOr<CheckpointStore> CheckpointStore::Open(const std::string& directory) {
  TUTTI_ASSIGN_OR_RETURN(std::string path, AbsolutePath(directory));
  TUTTI_RETURN_IF_ERROR(MakeDirectories(path));
  return CheckpointStore(std::move(path));
}

StatusOr<CheckpointStore> CheckpointStore::OpenExisting(const std::string& directory) {
  TUTTI_ASSIGN_OR_RETURN(std::string path, AbsolutePath(directory));
  if (!FileExists(path)) return NotFound("{} does not exist", path);
  return CheckpointStore(std::move(path));
}

StatusOr<std::optional<CheckpointInfo>> CheckpointStore::Latest(const std::string& job_id, const Fence& known,
                                                                std::vector<std::string>* notices) const {
  TUTTI_ASSIGN_OR_RETURN(const DirectoryScan scan, ScanDirectory(directory_));
  const std::string tag = JobTag(job_id);
  const auto wanted = [&](const Candidate& c) { return job_id.empty() || c.name.tag == tag; };
  std::map<std::string, Fence> fences = scan.fences;
  fences[tag].Add(known);
  return Select(scan, fences, wanted, notices);
}

StatusOr<std::optional<CheckpointInfo>> CheckpointStore::FindStart(const v1::CheckpointPolicy& policy,
                                                                   const JobIdentity& self,
                                                                   std::vector<std::string>* notices) const {
  TUTTI_RETURN_IF_ERROR(Claim(self));
  TUTTI_ASSIGN_OR_RETURN(const DirectoryScan scan, ScanDirectory(directory_));
  const std::string tag = JobTag(self.job_id);
  const auto own = [&](const Candidate& c) { return c.name.tag == tag; };
  const auto foreign = [&](const Candidate& c) { return c.name.tag != tag && c.committed; };
  std::optional<CheckpointInfo> start = Select(scan, scan.fences, own, notices);
  if (!start && policy.resume() == v1::RESUME_MODE_PATH) {
    TUTTI_ASSIGN_OR_RETURN(start, FindNamed(policy.resume_from(), notices));
  } else if (!start && policy.resume() == v1::RESUME_MODE_AUTO) {
    start = Select(scan, scan.fences, foreign, notices);
  } else if (!start) {
    const auto other = std::find_if(scan.candidates.begin(), scan.candidates.end(), foreign);
    if (other != scan.candidates.end()) {
      return FailedPrecondition(
          "{} already holds a run of another job ({}): resume it, or name another checkpoint directory", directory_,
          Basename(other->path));
    }
  }
  TUTTI_RETURN_IF_ERROR(RecordBase(self, start ? start->step : Step(0)));
  return start;
}

Status CheckpointStore::Claim(const JobIdentity& self) const {
  TUTTI_RETURN_IF_ERROR(CheckCurrent(self));
  const Status status =
      CreateFileExclusive(JoinPath(directory_, FormatMarkName(kClaimPrefix, self)), self.job_id + "\n");
  return status.code() == absl::StatusCode::kAlreadyExists ? OkStatus() : status;
}

Status CheckpointStore::RecordBase(const JobIdentity& self, Step base) const {
  v1::GenerationBase message;
  message.set_generation(self.generation.value());
  message.set_base_step(base.value());
  std::string json;
  TUTTI_CHECK(google::protobuf::util::MessageToJsonString(message, &json).ok());
  const std::string path = JoinPath(directory_, FormatMarkName(kBasePrefix, self));
  const Status status = CreateFileExclusive(path, json + "\n");
  if (status.code() != absl::StatusCode::kAlreadyExists) return status;
  TUTTI_ASSIGN_OR_RETURN(const std::string before, ReadFile(path));
  if (before == json + "\n") return OkStatus();
  return FailedPrecondition("generation {} started before, from another step: {} says {}", self.generation.value(),
                            path, before);
}

Status CheckpointStore::CheckCurrent(const JobIdentity& self) const {
  TUTTI_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory_));
  const std::string tag = JobTag(self.job_id);
  for (const std::string& name : names) {
    const auto claim = ParseMarkName(kClaimPrefix, name);
    if (claim && claim->tag == tag && claim->generation > self.generation) {
      return Aborted("generation {} of the job has started in {}: generation {} is over", claim->generation.value(),
                     directory_, self.generation.value());
    }
  }
  return OkStatus();
}

std::string CheckpointStore::StepFolder(const JobIdentity& self, Step step) const {
  return JoinPath(directory_, FormatFolderName({step, self.generation, JobTag(self.job_id)}));
}

Status CheckpointStore::LinkFriendlyName(const JobIdentity& self, Step step) const {
  return ReplaceSymlink(Basename(StepFolder(self, step)), JoinPath(directory_, fmt::format("step-{}", step.value())));
}

}  // namespace tutti
