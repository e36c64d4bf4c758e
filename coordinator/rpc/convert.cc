#include "coordinator/rpc/convert.h"

#include <fmt/ranges.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>

#include "base/digest.h"
#include "job/validate.h"
#include "tutti/v1/rpc_status.pb.h"

namespace tutti::coordinator {
namespace {

constexpr size_t kMinPrefix = 4;

bool IsUid(const std::string& uid) {
  return !uid.empty() && uid.size() <= 64 && std::all_of(uid.begin(), uid.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Message(status));  // the numbers are the same
}

grpc::Status BadRequest(const std::vector<FieldViolation>& violations) {
  google::rpc::BadRequest detail;
  std::string message;
  for (const FieldViolation& violation : violations) {
    google::rpc::BadRequest::FieldViolation* entry = detail.add_field_violations();
    entry->set_field(violation.field);
    entry->set_description(violation.description);
    message += fmt::format("{}{}: {}", message.empty() ? "" : "\n", violation.field, violation.description);
  }
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::INVALID_ARGUMENT);
  status.set_message(message);
  status.add_details()->PackFrom(detail);
  return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message, status.SerializeAsString());
}

std::vector<FieldViolation> CheckSpec(const v1::JobSpec* spec) {
  if (spec == nullptr) return {{"spec", "missing"}};
  if (const int64_t bytes = static_cast<int64_t>(spec->ByteSizeLong()); bytes > kMaxSpecBytes) {
    return {{"spec", fmt::format("{} bytes; at most {} are allowed", bytes, kMaxSpecBytes)}};
  }
  std::vector<FieldViolation> violations;
  for (SpecIssue& issue : CheckValues(*spec)) violations.push_back({std::move(issue.path), std::move(issue.message)});
  const auto usable = [&](const std::string& path) {
    return std::none_of(violations.begin(), violations.end(), [&](const FieldViolation& v) { return v.field == path; });
  };
  std::vector<FieldViolation> combined;
  for (SpecIssue& issue : CheckCombinations(*spec, usable))
    combined.push_back({std::move(issue.path), std::move(issue.message)});
  violations.insert(violations.end(), combined.begin(), combined.end());
  return violations;
}

std::vector<FieldViolation> CheckCreate(const v1::CreateJobRequest& request) {
  std::vector<FieldViolation> violations = CheckSpec(request.has_spec() ? &request.spec() : nullptr);
  if (!IsUid(request.uid()) && !(request.validate_only() && request.uid().empty())) {
    violations.insert(violations.begin(),
                      {"uid", "1 to 64 characters of [A-Za-z0-9-], made by the client once per job"});
  }
  return violations;
}

std::string SpecDigest(const v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&coded);
  }
  return Sha256Hex(bytes);
}

StatusOr<const JobEntry*> FindJob(const State& state, const std::string& key) {
  if (key.empty()) return InvalidArgument("a job's id or name is missing");
  if (const auto it = state.jobs.find(key); it != state.jobs.end()) return &it->second;
  for (auto it = state.jobs.rbegin(); it != state.jobs.rend(); ++it) {
    if (it->second.job().spec().metadata().name() == key) return &it->second;
  }
  std::string prefix = key;
  std::transform(prefix.begin(), prefix.end(), prefix.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto first = state.jobs.lower_bound(prefix);
  if (prefix.size() < kMinPrefix || first == state.jobs.end() || first->first.compare(0, prefix.size(), prefix) != 0) {
    return NotFound("there is no job with the id, id prefix (of {} or more characters) or name '{}'", kMinPrefix,
                    key.substr(0, 64));
  }
  if (const auto second = std::next(first);
      second != state.jobs.end() && second->first.compare(0, prefix.size(), prefix) == 0) {
    return InvalidArgument("'{}' begins the ids of several jobs: {}, {}, ...", key, first->first, second->first);
  }
  return &first->second;
}

StatusOr<JobFilter> ParseFilter(const std::string& text) {
  JobFilter filter;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == part.npos ? "" : part.substr(equals + 1);
    if (key == "state" && v1::JobState_Parse("JOB_STATE_" + value, &filter.state) &&
        filter.state != v1::JOB_STATE_UNSPECIFIED) {
      continue;
    }
    if (key == "name" && !value.empty()) {
      filter.name = value;
    } else if (key.starts_with("label.") && key.size() > 6 && equals != part.npos) {
      filter.labels.emplace_back(key.substr(6), value);
    } else {
      return InvalidArgument("filter '{}': expected state=RUNNING (or another state), name=NAME or label.KEY=VALUE",
                             part.substr(0, 200));
    }
  }
  return filter;
}

bool Matches(const JobFilter& filter, const v1::Job& job) {
  if (filter.state != v1::JOB_STATE_UNSPECIFIED && filter.state != job.status().state()) return false;
  if (!filter.name.empty() && filter.name != job.spec().metadata().name()) return false;
  const auto& labels = job.spec().metadata().labels();
  return std::all_of(filter.labels.begin(), filter.labels.end(), [&](const auto& wanted) {
    const auto it = labels.find(wanted.first);
    return it != labels.end() && it->second == wanted.second;
  });
}

v1::Node DescribeNode(const State& state, const NodeEntry& entry) {
  v1::Node node = entry.node;
  std::map<std::string, std::string> holders;
  for (const auto& [id, job] : state.jobs) {
    for (const v1::Share& share : job.row.shares()) {
      if (share.node() != node.name() || !HoldsSlots(share)) continue;
      for (const std::string& slot : share.slots()) holders[slot] = id;
    }
  }
  for (v1::Slot& slot : *node.mutable_slots()) {
    if (const auto it = holders.find(slot.id()); it != holders.end()) slot.set_job_id(it->second);
  }
  return node;
}

}  // namespace tutti::coordinator
