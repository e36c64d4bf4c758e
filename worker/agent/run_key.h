// A run is one generation of a job on one node.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tutti/v1/cluster.pb.h"

namespace tutti::worker {

struct RunKey {
  std::string job_id;
  int64_t generation = 0;
  auto operator<=>(const RunKey&) const = default;
};
std::string ToString(const RunKey& key);  // "01JD3… generation 4"
RunKey KeyOf(const v1::Assignment& assignment);

// INVALID_ARGUMENT unless the id is 1-64 characters of [A-Za-z0-9_-]: it becomes a folder's name.
Status CheckJobId(std::string_view job_id);

}  // namespace tutti::worker
