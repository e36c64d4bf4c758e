// Turns what depends on other values into values: every `auto`, and the default checkpoint directory. Done once, at
// submission.
#pragma once

#include <functional>
#include <string>

#include "job/job_file.h"

namespace tutti {

// `is_auto(path)`: the value was left to us. Values that stay unset (zero) could not be resolved because others are
// wrong.
void ResolveAutomatic(const JobFileOptions& options, const std::function<bool(const std::string&)>& is_auto,
                      v1::JobSpec* spec);

// <working_directory>/runs/<name>, or the first of -2, -3, ... that holds no run (`resume`: the last that does).
std::string DefaultRunDirectory(const std::string& working_directory, const std::string& name, bool fresh, bool resume);

}  // namespace tutti
