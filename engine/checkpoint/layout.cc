#include "engine/checkpoint/layout.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/digest.h"
#include "base/files.h"
#include "tutti/v1/checkpoint.pb.h"

namespace tutti {
namespace {

constexpr size_t kTagDigits = 8;
constexpr int64_t kMaxMarkBytes = 4096;

// The decimal number that `text` is, whole.
std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool ConsumePrefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// "g2.5d1f09ac"
bool ParseGenerationAndTag(std::string_view text, FolderName* name) {
  const size_t dot = text.find('.');
  if (!ConsumePrefix(&text, "g") || dot == std::string_view::npos) return false;
  const std::optional<int64_t> generation = ParseNumber(text.substr(0, dot - 1));
  const std::string_view tag = text.substr(dot);
  if (!generation || tag.size() != kTagDigits || tag.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return false;
  name->generation = Generation(*generation);
  name->tag = tag;
  return true;
}

StatusOr<Step> ReadBase(const std::string& path) {
  TUTTI_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxMarkBytes));
  v1::GenerationBase base;
  if (google::protobuf::util::JsonStringToMessage(json, &base).ok()) return Step(base.base_step());
  return DataLoss("{} is damaged: it must say from which step its generation started", path);
}

}  // namespace

std::string SliceName(Rank rank) { return fmt::format("rank-{}.safetensors", rank.value()); }
std::string ReceiptName(Rank rank) { return fmt::format("rank-{}.done", rank.value()); }
std::string FailureName(Rank rank) { return fmt::format("rank-{}.failed", rank.value()); }

std::string JobTag(std::string_view job_id) { return fmt::format("{:016x}", Xxh3(job_id)).substr(0, kTagDigits); }

std::string FormatFolderName(const FolderName& name) {
  return fmt::format("step-{}.g{}.{}", name.step.value(), name.generation.value(), name.tag);
}

std::optional<FolderName> ParseFolderName(std::string_view name) {
  FolderName result;
  const size_t dot = name.find('.');
  if (!ConsumePrefix(&name, "step-") || dot == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> step = ParseNumber(name.substr(0, dot - 5));
  if (!step || !ParseGenerationAndTag(name.substr(dot - 4), &result)) return std::nullopt;
  result.step = Step(*step);
  return result;
}

std::string FormatMarkName(std::string_view prefix, const JobIdentity& self) {
  return fmt::format("{}.g{}.{}", prefix, self.generation.value(), JobTag(self.job_id));
}

std::optional<FolderName> ParseMarkName(std::string_view prefix, std::string_view name) {
  FolderName result;
  if (!ConsumePrefix(&name, prefix) || !ConsumePrefix(&name, ".") || !ParseGenerationAndTag(name, &result))
    return std::nullopt;
  return result;
}

std::optional<Step> ParseFriendlyName(std::string_view name) {
  if (!ConsumePrefix(&name, "step-")) return std::nullopt;
  const std::optional<int64_t> step = ParseNumber(name);
  return step ? std::optional<Step>(*step) : std::nullopt;
}

StatusOr<DirectoryScan> ScanDirectory(const std::string& directory) {
  DirectoryScan scan;
  TUTTI_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  for (const std::string& name : names) {
    const std::string path = JoinPath(directory, name);
    if (const auto base = ParseMarkName(kBasePrefix, name)) {
      TUTTI_ASSIGN_OR_RETURN(const Step step, ReadBase(path));
      scan.fences[base->tag].Add(base->generation, step);
    }
    const auto folder = ParseFolderName(name);
    if (!folder) continue;
    Candidate candidate{.path = path, .name = *folder, .committed = false, .info = {}, .status = OkStatus()};
    auto info = ReadManifest(path);
    candidate.status = info.status();
    candidate.committed = info.status().code() != absl::StatusCode::kNotFound;
    if (info.ok()) {
      candidate.info = *std::move(info);
      for (const v1::GenerationBase& base : candidate.info.manifest->bases()) {
        // Of itself a generation knows the truth; of others it knows what a coordinator had heard.
        if (base.generation() != folder->generation.value()) continue;
        scan.fences[folder->tag].Add(folder->generation, Step(base.base_step()));
      }
    }
    scan.candidates.push_back(std::move(candidate));
  }
  std::sort(scan.candidates.begin(), scan.candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.name.step, a.name.generation, a.name.tag) > std::tie(b.name.step, b.name.generation, b.name.tag);
  });
  return scan;
}

}  // namespace tutti
