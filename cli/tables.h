// Lists and descriptions of jobs and nodes as text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/v1/cluster.pb.h"

namespace tutti::cli {

// `now_unix_ms` for ages.
std::string JobsTable(const std::vector<v1::Job>& jobs, int64_t now_unix_ms, bool wide);
std::string NodesTable(const std::vector<v1::Node>& nodes, int64_t now_unix_ms, bool wide);
// State with the reason, why it waits or why it is there, ranks, failures, what next.
std::string DescribeJob(const v1::Job& job, int64_t now_unix_ms);
std::string DescribeNode(const v1::Node& node, int64_t now_unix_ms);

}  // namespace tutti::cli
