// Names inside a run directory (store.h), and the scan that reader, retention and verifier share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/checkpoint/store.h"

namespace tutti {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLedgerName = "ledger.bin";
inline constexpr std::string_view kClaimPrefix = "claim";
inline constexpr std::string_view kBasePrefix = "base";

std::string SliceName(Rank rank);    // "rank-3.safetensors"
std::string ReceiptName(Rank rank);  // "rank-3.done"
std::string FailureName(Rank rank);  // "rank-3.failed"

// 8 hexadecimal digits of XXH3 of the job id.
std::string JobTag(std::string_view job_id);

struct FolderName {
  Step step;
  Generation generation;
  std::string tag;
};
std::string FormatFolderName(const FolderName& name);              // "step-1407.g2.5d1f09ac"
std::optional<FolderName> ParseFolderName(std::string_view name);  // leading zeros allowed; all else is refused
std::string FormatMarkName(std::string_view prefix, const JobIdentity& self);             // "claim.g2.5d1f09ac"
std::optional<FolderName> ParseMarkName(std::string_view prefix, std::string_view name);  // step 0
std::optional<Step> ParseFriendlyName(std::string_view name);                             // "step-1407"

struct Candidate {
  std::string path;
  FolderName name;
  bool committed = false;
  CheckpointInfo info;  // valid when `status` is OK
  Status status;        // of reading the manifest; NOT_FOUND: never committed
};
struct DirectoryScan {
  std::vector<Candidate> candidates;    // newest first, by number
  std::map<std::string, Fence> fences;  // by job tag: base files and manifests
};
StatusOr<DirectoryScan> ScanDirectory(const std::string& directory);

}  // namespace tutti
