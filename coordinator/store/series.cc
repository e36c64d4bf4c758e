#include "coordinator/store/series.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/files.h"
#include "base/framing.h"

namespace tutti::coordinator {
namespace {

constexpr size_t kMaxOpenFiles = 64;
constexpr int64_t kMaxSeriesBytes = int64_t{4} << 30;

struct Parsed {
  std::vector<v1::SeriesRecord> records;
  int64_t whole_bytes = 0;  // the rest is a torn tail
};

StatusOr<Parsed> ParseFile(const std::string& path) {
  Parsed parsed;
  if (!FileExists(path)) return parsed;
  TUTTI_ASSIGN_OR_RETURN(const std::string content, ReadFile(path, kMaxSeriesBytes));
  FrameParser parser;
  parser.Feed(content);
  while (true) {
    const size_t before = parser.buffered_bytes();
    const auto frame = parser.Next();
    v1::SeriesRecord record;
    if (!frame.ok() || !frame->has_value() || !record.ParseFromString(**frame)) {
      parsed.whole_bytes = static_cast<int64_t>(content.size() - before);
      return parsed;
    }
    parsed.records.push_back(std::move(record));
  }
}

// Of records with equal steps the last of the newest generation.
template <typename T>
std::vector<T> Newest(const std::map<int64_t, std::pair<int64_t, T>>& by_step) {
  std::vector<T> out;
  out.reserve(by_step.size());
  for (const auto& [step, entry] : by_step) out.push_back(entry.second);
  return out;
}

template <typename T>
void Keep(int64_t generation, const T& record, int64_t after_step, std::map<int64_t, std::pair<int64_t, T>>* by_step) {
  if (record.step() <= after_step) return;
  auto [it, fresh] = by_step->try_emplace(record.step(), generation, record);
  if (!fresh && generation >= it->second.first) it->second = {generation, record};
}

}  // namespace

bool IsUlid(const std::string& id) {
  static constexpr std::string_view kAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  return id.size() == 26 &&
         std::all_of(id.begin(), id.end(), [](char c) { return kAlphabet.find(c) != kAlphabet.npos; });
}

Series Merge(const std::vector<v1::SeriesRecord>& records, int64_t after_step) {
  std::map<int64_t, std::pair<int64_t, v1::StepRecord>> steps;
  std::map<int64_t, std::pair<int64_t, v1::EvalRecord>> evaluations;
  std::map<int64_t, std::pair<int64_t, v1::CheckpointRecord>> checkpoints;
  for (const v1::SeriesRecord& record : records) {
    if (record.has_step()) Keep(record.generation(), record.step(), after_step, &steps);
    if (record.has_evaluation()) Keep(record.generation(), record.evaluation(), after_step, &evaluations);
    if (record.has_checkpoint()) Keep(record.generation(), record.checkpoint(), after_step, &checkpoints);
  }
  return {Newest(steps), Newest(evaluations), Newest(checkpoints)};
}

StatusOr<std::unique_ptr<SeriesStore>> SeriesStore::Open(const std::string& directory) {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(directory, 0700));
  return std::unique_ptr<SeriesStore>(new SeriesStore(directory));
}

std::string SeriesStore::PathOf(const std::string& job_id) const { return JoinPath(directory_, job_id + ".series"); }

StatusOr<int> SeriesStore::OpenForAppend(const std::string& job_id) {
  if (const auto it = open_.find(job_id); it != open_.end()) return it->second.get();
  if (!IsUlid(job_id)) return InvalidArgument("'{}' is no job id", job_id.substr(0, 64));
  const std::string path = PathOf(job_id);
  TUTTI_ASSIGN_OR_RETURN(const Parsed parsed, ParseFile(path));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  if (::ftruncate(fd.get(), parsed.whole_bytes) != 0) return ErrnoStatus(errno, path);
  if (open_.size() >= kMaxOpenFiles) open_.erase(open_.begin());
  return open_.emplace(job_id, std::move(fd)).first->second.get();
}

Status SeriesStore::Append(const std::string& job_id, const v1::SeriesRecord& record) {
  TUTTI_ASSIGN_OR_RETURN(const int fd, OpenForAppend(job_id));
  std::string frame;
  AppendFrame(record.SerializeAsString(), &frame);
  const off_t before = ::lseek(fd, 0, SEEK_END);
  Status status = WriteAll(fd, frame);
  if (status.ok()) return status;
  if (before < 0 || ::ftruncate(fd, before) != 0) open_.erase(job_id);  // the next open cuts what is torn
  return Annotate(status, PathOf(job_id));
}

StatusOr<Series> SeriesStore::Read(const std::string& job_id, int64_t after_step) const {
  if (!IsUlid(job_id)) return InvalidArgument("'{}' is no job id", job_id.substr(0, 64));
  TUTTI_ASSIGN_OR_RETURN(const Parsed parsed, ParseFile(PathOf(job_id)));
  return Merge(parsed.records, after_step);
}

}  // namespace tutti::coordinator
