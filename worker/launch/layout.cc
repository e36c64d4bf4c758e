#include "worker/launch/layout.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "base/files.h"

namespace tutti::worker {
namespace {

// The number that a folder of a generation is named by; nullopt for any other name.
std::optional<int64_t> ParseGeneration(std::string_view name) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc() || end != name.data() + name.size() || value < 1) return std::nullopt;
  return value;
}

std::vector<int64_t> Generations(const std::string& job_directory) {
  std::vector<int64_t> result;
  const auto names = ListDirectory(job_directory);
  if (!names.ok()) return result;
  for (const std::string& name : *names) {
    if (const auto generation = ParseGeneration(name)) result.push_back(*generation);
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

std::string RankLogFile(int32_t rank) { return fmt::format("rank-{}.log", rank); }
std::string RankPidFile(int32_t rank) { return fmt::format("rank-{}.pid", rank); }
std::string RankExitFile(int32_t rank) { return fmt::format("exit-{}.pb", rank); }

std::string JobsDirectory(const std::string& state_directory) { return JoinPath(state_directory, "jobs"); }

std::string RunDirectory(const std::string& state_directory, const RunKey& key) {
  return JoinPath(JobsDirectory(state_directory), fmt::format("{}/{}", key.job_id, key.generation));
}

StatusOr<std::string> RankLogPath(const RunKey& key, int32_t rank) {
  TUTTI_RETURN_IF_ERROR(CheckJobId(key.job_id));
  if (key.generation < 1) return InvalidArgument("generation {} is not at least 1", key.generation);
  if (rank < 0) return InvalidArgument("rank {} is negative", rank);
  return fmt::format("{}/{}/{}", key.job_id, key.generation, RankLogFile(rank));
}

Status ReplaceFile(const std::string& path, std::string_view content, int mode) {
  const std::string part = path + ".part";
  UniqueFd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!file.valid()) return ErrnoStatus(errno, fmt::format("open {}", part));
  TUTTI_RETURN_IF_ERROR(WriteAll(file.get(), content));
  if (::rename(part.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, fmt::format("replace {}", path));
  return OkStatus();
}

Status WriteRecord(const std::string& run_directory, const v1::StartJob& start) {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(run_directory, 0700));
  return ReplaceFile(JoinPath(run_directory, kRecordFile), start.SerializeAsString());
}

StatusOr<v1::StartJob> ReadRecord(const std::string& run_directory) {
  const std::string path = JoinPath(run_directory, kRecordFile);
  TUTTI_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, 64 << 20));
  v1::StartJob start;
  if (!start.ParseFromString(bytes)) return DataLoss("{} is not a StartJob message", path);
  return start;
}

Status MarkForgotten(const std::string& run_directory) {
  return ReplaceFile(JoinPath(run_directory, kForgottenFile), "");
}

StatusOr<std::vector<v1::StartJob>> ListRuns(const std::string& state_directory, std::vector<std::string>* problems) {
  std::vector<v1::StartJob> runs;
  const std::string jobs = JobsDirectory(state_directory);
  if (!FileExists(jobs)) return runs;
  TUTTI_ASSIGN_OR_RETURN(const std::vector<std::string> ids, ListDirectory(jobs));
  for (const std::string& id : ids) {
    for (const int64_t generation : Generations(JoinPath(jobs, id))) {
      const RunKey key{id, generation};
      const std::string directory = RunDirectory(state_directory, key);
      // No record: the agent ended before it was written, so nothing was started.
      if (!FileExists(JoinPath(directory, kRecordFile)) || FileExists(JoinPath(directory, kForgottenFile))) continue;
      auto start = ReadRecord(directory);
      if (start.ok() && KeyOf(start->assignment()) != key) {
        start = DataLoss("{} holds the record of {}", directory, ToString(KeyOf(start->assignment())));
      }
      if (start.ok()) {
        runs.push_back(*std::move(start));
      } else {
        problems->push_back(Message(start.status()));
      }
    }
  }
  return runs;
}

Status SweepForgotten(const std::string& state_directory, size_t keep) {
  const std::string jobs = JobsDirectory(state_directory);
  if (!FileExists(jobs)) return OkStatus();
  TUTTI_ASSIGN_OR_RETURN(const std::vector<std::string> ids, ListDirectory(jobs));
  std::vector<std::string> done;  // ids are ULIDs: byte-wise order is the order of creation
  for (const std::string& id : ids) {
    const std::vector<int64_t> generations = Generations(JoinPath(jobs, id));
    const bool forgotten = std::all_of(generations.begin(), generations.end(), [&](int64_t generation) {
      return FileExists(JoinPath(RunDirectory(state_directory, {id, generation}), kForgottenFile));
    });
    if (forgotten) done.push_back(id);
  }
  for (size_t i = 0; i + keep < done.size(); ++i) TUTTI_RETURN_IF_ERROR(RemoveTree(JoinPath(jobs, done[i])));
  return OkStatus();
}

}  // namespace tutti::worker
