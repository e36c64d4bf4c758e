// Steps, evaluations, checkpoints and notices of each job in append-only framed files, directory/ID.series. Not
// thread-safe. A file is written without fsync: it survives our death, and an agent's replay after a power loss.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/journal.pb.h"

namespace tutti::coordinator {

struct Series {
  std::vector<v1::StepRecord> steps;        // strictly increasing, each once: the newest generation's record
  std::vector<v1::EvalRecord> evaluations;  // the same
  std::vector<v1::CheckpointRecord> checkpoints;
};

class SeriesStore {
 public:
  static StatusOr<std::unique_ptr<SeriesStore>> Open(const std::string& directory);

  // `job_id` must be a ULID: it becomes a file name. RESOURCE_EXHAUSTED: no room; the file stays whole.
  Status Append(const std::string& job_id, const v1::SeriesRecord& record);

  // Records with a step greater than `after_step`. A job without records gives an empty series; a torn tail is ignored.
  // May be called from any thread, while another appends.
  StatusOr<Series> Read(const std::string& job_id, int64_t after_step) const;

 private:
  explicit SeriesStore(std::string directory) : directory_(std::move(directory)) {}
  std::string PathOf(const std::string& job_id) const;
  StatusOr<int> OpenForAppend(const std::string& job_id);

  const std::string directory_;
  std::map<std::string, UniqueFd> open_;  // bounded: the oldest id is closed first
};

// Of every step made by several generations the newest generation's record; steps that a later generation has undone
// (it resumed below them and has not made them again) stay until it does.
Series Merge(const std::vector<v1::SeriesRecord>& records, int64_t after_step);

// Whether `id` is a ULID as NewUlid makes them: safe as a file name.
bool IsUlid(const std::string& id);

}  // namespace tutti::coordinator
