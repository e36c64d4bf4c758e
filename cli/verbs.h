// The verbs: each does one thing and returns an exit code (cli/exit_codes.h).
#pragma once

#include "cli/options.h"

namespace tutti::cli {

// With a coordinator and an agent of its own; blocks signals in the calling thread and what it starts.
int RunVerb(const Options& options);

// Without a coordinator.
int PlanVerb(const Options& options);  // with one where it is named: for its nodes
int ConfigVerb(const Options& options);
int ExplainVerb(const Options& options);
int SchemaVerb(const Options& options);
int VerifyVerb(const Options& options);  // a folder, or a job of a coordinator
int VersionVerb(const Options& options);
int CompletionVerb(const Options& options);

// With one.
int SubmitVerb(const Options& options);
int GetVerb(const Options& options);
int DescribeVerb(const Options& options);
int LogsVerb(const Options& options);
int CancelVerb(const Options& options);

}  // namespace tutti::cli
