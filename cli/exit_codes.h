// Exit codes of `tutti`, documented in its help.
#pragma once

#include "base/status.h"

namespace tutti::cli {

enum ExitCode : int {
  kSucceeded = 0,
  kFailed = 1,     // the job failed, or what was asked for could not be done
  kUsage = 2,      // the job file or the command line is wrong
  kNeverRuns = 3,  // it can never run here
  kCancelled = 4,
  kNoCoordinator = 5,  // none was reached
  kNotAllowed = 6,
  kInterrupted = 130,  // the job is cancelled, or goes on, as the message says
};

// For the errors of one call or file.
inline int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSucceeded;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
      return kUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kNoCoordinator;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kNotAllowed;
    default:
      return kFailed;
  }
}

}  // namespace tutti::cli
