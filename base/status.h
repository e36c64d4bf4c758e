// How errors travel. Every call that the outside world can make fail returns absl::Status or absl::StatusOr<T>; the
// code says what the caller can do next, the message says what, where, expected and found.
//
//   INVALID_ARGUMENT     the input is wrong: fix it, do not retry
//   NOT_FOUND            the named thing is absent
//   ALREADY_EXISTS       the named thing is there, and differs
//   FAILED_PRECONDITION  the state does not allow it now: change the state first
//   OUT_OF_RANGE         past the end, or a token that is too old: start from a fresh snapshot
//   DATA_LOSS            stored bytes are damaged: use another copy
//   RESOURCE_EXHAUSTED   disk, memory, slots, limits: free some, or ask for less
//   UNAVAILABLE          a peer cannot be reached: the only code that may be retried blindly
//   DEADLINE_EXCEEDED    a bounded wait ended
//   ABORTED              fenced or cancelled by someone with the right to: stop
//   UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED as in gRPC
//
// Messages are made with fmt (Debian's absl::string_view does not convert from std::string_view).
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tutti {

using absl::Status;
using absl::StatusOr;

inline Status OkStatus() { return absl::OkStatus(); }

#define TUTTI_DEFINE_ERROR(Name, code)                                     \
  template <typename... Args>                                              \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {        \
    return Status(code, fmt::format(format, std::forward<Args>(args)...)); \
  }
TUTTI_DEFINE_ERROR(InvalidArgument, absl::StatusCode::kInvalidArgument)
TUTTI_DEFINE_ERROR(NotFound, absl::StatusCode::kNotFound)
TUTTI_DEFINE_ERROR(AlreadyExists, absl::StatusCode::kAlreadyExists)
TUTTI_DEFINE_ERROR(FailedPrecondition, absl::StatusCode::kFailedPrecondition)
TUTTI_DEFINE_ERROR(OutOfRange, absl::StatusCode::kOutOfRange)
TUTTI_DEFINE_ERROR(DataLoss, absl::StatusCode::kDataLoss)
TUTTI_DEFINE_ERROR(ResourceExhausted, absl::StatusCode::kResourceExhausted)
TUTTI_DEFINE_ERROR(Unavailable, absl::StatusCode::kUnavailable)
TUTTI_DEFINE_ERROR(DeadlineExceeded, absl::StatusCode::kDeadlineExceeded)
TUTTI_DEFINE_ERROR(Aborted, absl::StatusCode::kAborted)
TUTTI_DEFINE_ERROR(PermissionDenied, absl::StatusCode::kPermissionDenied)
TUTTI_DEFINE_ERROR(Unauthenticated, absl::StatusCode::kUnauthenticated)
TUTTI_DEFINE_ERROR(Unimplemented, absl::StatusCode::kUnimplemented)
TUTTI_DEFINE_ERROR(Internal, absl::StatusCode::kInternal)
#undef TUTTI_DEFINE_ERROR

// The message as std::string (absl's accessor returns its own string_view type).
inline std::string Message(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// The status of a failed system call: "<what>: <strerror(error)>", with the code that errno stands for (ENOSPC and
// EDQUOT are RESOURCE_EXHAUSTED, ENOENT is NOT_FOUND, ...). `error` is an errno value.
Status ErrnoStatus(int error, std::string_view what);

// `status` with "<context>: " in front of its message; OK stays OK.
Status Annotate(const Status& status, std::string_view context);

}  // namespace tutti

#define TUTTI_CONCAT_INNER(a, b) a##b
#define TUTTI_CONCAT(a, b) TUTTI_CONCAT_INNER(a, b)

#define TUTTI_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                                 \
    if (::absl::Status tutti_status = (expr); !tutti_status.ok()) return tutti_status; \
  } while (false)

#define TUTTI_ASSIGN_OR_RETURN(lhs, expr) TUTTI_ASSIGN_OR_RETURN_INNER(TUTTI_CONCAT(tutti_or_, __LINE__), lhs, expr)
#define TUTTI_ASSIGN_OR_RETURN_INNER(var, lhs, expr) \
  auto var = (expr);                                 \
  if (!var.ok()) return var.status();                \
  lhs = *std::move(var)
