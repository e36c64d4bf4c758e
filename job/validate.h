// Whether a JobSpec can be run at all: ranges, enumerations, combinations. Pure, no YAML; from the same table as the
// job file's reader (job/schema.h). The coordinator calls it again on whatever a client sends.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tutti/v1/job.pb.h"

namespace tutti {

struct SpecIssue {
  std::string path;     // in the job file's words: "spec.batch.global", "spec.model.layers.3.dense.units"
  std::string message;  // "100 is not divisible by numerics.shards 8; nearest valid: 96, 104"
};

// INVALID_ARGUMENT: the message has one line "<path>: <message>" per mistake, all of them.
Status ValidateJobSpec(const v1::JobSpec& spec);

// The parts of it, for the job file's reader. `usable(path)` is false for values that were refused already: rules that
// depend on one of those are skipped.
std::vector<SpecIssue> CheckValues(const v1::JobSpec& spec);
std::vector<SpecIssue> CheckCombinations(const v1::JobSpec& spec,
                                         const std::function<bool(const std::string&)>& usable);

}  // namespace tutti
