#include <set>

#include "base/check.h"
#include "base/files.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "tutti/v1/checkpoint.pb.h"

namespace tutti {
namespace {

constexpr std::string_view kTrashPrefix = "trash.";

// Gone for every reader at once, whatever happens during the removal.
Status RemoveFolder(const std::string& path) {
  const std::string trash = JoinPath(Dirname(path), std::string(kTrashPrefix) + Basename(path));
  TUTTI_RETURN_IF_ERROR(RemoveTree(trash));
  TUTTI_RETURN_IF_ERROR(RenamePath(path, trash));
  return RemoveTree(trash);
}

bool SizesMatch(const CheckpointInfo& info) {
  for (const v1::SliceFile& file : info.manifest->files()) {
    const auto size = FileSize(JoinPath(info.path, file.name()));
    if (!size.ok() || *size != file.bytes()) return false;
  }
  return true;
}

// Paths of the folders that stay, of one job, in a scan sorted newest first.
std::set<std::string> Kept(const DirectoryScan& scan, const JobIdentity& self,
                           const CheckpointStore::Retention& retention) {
  const std::string tag = JobTag(self.job_id);
  std::set<std::string> kept;
  std::set<int64_t> newest;
  for (const Candidate& candidate : scan.candidates) {
    if (candidate.name.tag != tag) continue;
    const int64_t step = candidate.name.step.value();
    if (!candidate.status.ok()) {
      // A write of ours may be under way, or a later generation's; one below a newer commit of ours is a leftover.
      const bool given_up = FileExists(JoinPath(candidate.path, FailureName(Rank(0))));
      const bool live = candidate.name.generation > self.generation ||
                        (candidate.name.generation == self.generation && newest.empty() && !given_up);
      if (live || candidate.committed) kept.insert(candidate.path);  // a damaged one is for people to look at
      continue;
    }
    const auto fence = scan.fences.find(tag);
    if (fence != scan.fences.end() && !fence->second.Admits(candidate.name.generation, candidate.name.step)) continue;
    const bool fresh = std::cmp_less(newest.size(), retention.keep) && SizesMatch(candidate.info);
    if (fresh) newest.insert(step);
    if (fresh || step == retention.best_step || step == retention.base.value()) kept.insert(candidate.path);
  }
  return kept;
}

}  // namespace

Status CheckpointStore::Retain(const JobIdentity& self, const Retention& retention) const {
  TUTTI_CHECK(retention.keep >= 1);
  TUTTI_RETURN_IF_ERROR(CheckCurrent(self));
  TUTTI_ASSIGN_OR_RETURN(const DirectoryScan scan, ScanDirectory(directory_));
  const std::set<std::string> kept = Kept(scan, self, retention);
  const std::string tag = JobTag(self.job_id);
  for (const Candidate& candidate : scan.candidates) {
    if (candidate.name.tag == tag && !kept.contains(candidate.path))
      TUTTI_RETURN_IF_ERROR(RemoveFolder(candidate.path));
  }
  TUTTI_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    const std::string path = JoinPath(directory_, name);
    if (name.starts_with(kTrashPrefix) && name.ends_with(tag)) TUTTI_RETURN_IF_ERROR(RemoveTree(path));
    if (ParseFriendlyName(name) && !FileExists(path)) TUTTI_RETURN_IF_ERROR(RemoveFile(path));  // its folder went
  }
  return OkStatus();
}

Status CheckpointStore::Discard(const JobIdentity& self, Step step, std::string_view reason) const {
  const std::string folder = StepFolder(self, step), mark = FailureName(Rank(0));
  if (!FileExists(folder)) return OkStatus();
  if (FileExists(JoinPath(folder, kManifestName))) return FailedPrecondition("{} is committed", folder);
  TUTTI_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  for (const std::string& name : names) {
    if (name != mark) TUTTI_RETURN_IF_ERROR(RemoveFile(JoinPath(folder, name)));
  }
  const Status marked = CreateFileExclusive(JoinPath(folder, mark), reason);
  return marked.code() == absl::StatusCode::kAlreadyExists ? OkStatus() : marked;
}

}  // namespace tutti
