// Between our statuses and gRPC's, and what clients may send. Errors of fields carry google.rpc.BadRequest.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/core/state.h"
#include "tutti/v1/api.pb.h"

namespace tutti::coordinator {

inline constexpr int64_t kMaxSpecBytes = 1 << 20;

grpc::Status ToGrpc(const Status& status);

struct FieldViolation {
  std::string field;
  std::string description;
};
// INVALID_ARGUMENT with one line and one BadRequest detail per violation.
grpc::Status BadRequest(const std::vector<FieldViolation>& violations);

// What is wrong with the request before any state is looked at.
std::vector<FieldViolation> CheckCreate(const v1::CreateJobRequest& request);
std::vector<FieldViolation> CheckSpec(const v1::JobSpec* spec);

// SHA-256 of the deterministic serialisation.
std::string SpecDigest(const v1::JobSpec& spec);

// By id, by name (the newest of that name) or by a prefix of ids that only one has. NOT_FOUND, or INVALID_ARGUMENT
// where several match.
StatusOr<const JobEntry*> FindJob(const State& state, const std::string& key);

// "state=RUNNING,name=x,label.team=vision": all must hold. INVALID_ARGUMENT names the part that is wrong.
struct JobFilter {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;
};
StatusOr<JobFilter> ParseFilter(const std::string& text);
bool Matches(const JobFilter& filter, const v1::Job& job);

// The node as clients see it: each slot with its holder.
v1::Node DescribeNode(const State& state, const NodeEntry& entry);

}  // namespace tutti::coordinator
