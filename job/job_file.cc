#include "job/job_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/files.h"
#include "job/bind.h"
#include "job/resolve.h"
#include "job/validate.h"

namespace tutti {
namespace {

constexpr size_t kMaxReportedErrors = 100;

ValueSource SourceAt(const YamlPosition& at, const std::string& file, const JobFileOptions& options) {
  if (at.override_index >= 0) {
    return {.kind = ValueSource::Kind::kOverride,
            .text = "--set " + options.overrides[static_cast<size_t>(at.override_index)]};
  }
  return {.kind = ValueSource::Kind::kFile,
          .line = at.line,
          .column = at.column,
          .text = fmt::format("{}:{}:{}", file, at.line, at.column)};
}

std::string Parent(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

// The nearest position that is known for `path`: its own or that of a section around it.
YamlPosition PositionOf(std::string path, const Binder& binder) {
  for (;; path = Parent(path)) {
    if (const auto it = binder.given.find(path); it != binder.given.end()) return it->second;
    if (path.empty()) return {.line = 1, .column = 1};
  }
}

// A value cannot be judged where it, or a section around it, was refused.
bool IsUsable(std::string path, const std::set<std::string>& refused) {
  for (;; path = Parent(path)) {
    if (refused.count(path) > 0) return false;
    if (path.empty()) return true;
  }
}

Status ErrorList(std::vector<JobFileError> errors, const std::string& file, const JobFileOptions& options) {
  const auto order = [](const JobFileError& e) { return std::tie(e.at.override_index, e.at.line, e.at.column); };
  std::stable_sort(errors.begin(), errors.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  std::string text;
  for (size_t i = 0; i < std::min(errors.size(), kMaxReportedErrors); ++i) {
    const JobFileError& error = errors[i];
    text += fmt::format("{}{}: {}{}", i == 0 ? "" : "\n", SourceAt(error.at, file, options).text,
                        error.path.empty() ? "" : error.path + ": ", error.what);
  }
  if (errors.size() > kMaxReportedErrors) text += fmt::format("\n... and {} more", errors.size() - kMaxReportedErrors);
  return InvalidArgument("{}", text);
}

// Auto values, ranges and combinations; mistakes go to the binder's list, placed where the value was given.
void Finish(const JobFileOptions& options, Binder* binder) {
  ResolveAutomatic(
      options, [&](const std::string& path) { return binder->automatic.count(path) > 0; }, &binder->spec);
  std::set<std::string> unresolved;
  const auto depends = [&](const char* path, std::initializer_list<const char*> inputs) {
    const bool bad = std::any_of(inputs.begin(), inputs.end(), [&](const char* input) {
      return !IsUsable(input, binder->refused) || unresolved.count(input) > 0;
    });
    if (bad && binder->automatic.count(path) > 0) unresolved.insert(path);
  };
  depends("spec.numerics.shards", {"spec.resources.ranks"});
  depends("spec.numerics.threads", {"spec.resources.ranks", "spec.resources.coresPerRank"});
  depends("spec.batch.micro", {"spec.batch.global", "spec.numerics.shards"});
  depends("spec.checkpoint.directory", {"metadata.name"});
  depends("spec.train.evaluateAtEnd", {"spec.data.eval"});
  // With a global batch that its shards do not divide, the automatic micro batch means nothing either.
  const bool automatic_micro = binder->automatic.count("spec.batch.micro") > 0;
  binder->refused.insert(unresolved.begin(), unresolved.end());

  const auto usable = [&](const std::string& path) { return IsUsable(path, binder->refused); };
  for (SpecIssue& issue : CheckValues(binder->spec)) {
    if (!usable(issue.path) || (automatic_micro && issue.path == "spec.batch.micro")) continue;
    binder->errors.push_back({PositionOf(issue.path, *binder), issue.path, std::move(issue.message)});
    binder->refused.insert(issue.path);
  }
  for (SpecIssue& issue : CheckCombinations(binder->spec, usable)) {
    binder->errors.push_back({PositionOf(issue.path, *binder), issue.path, std::move(issue.message)});
  }
}

}  // namespace

StatusOr<LoadedJob> ParseJobFile(std::string_view text, const std::string& name, const std::string& folder,
                                 const JobFileOptions& given_options) {
  JobFileOptions options = given_options;
  if (options.working_directory.empty()) {
    TUTTI_ASSIGN_OR_RETURN(options.working_directory, AbsolutePath("."));
  }
  if (text.size() > static_cast<size_t>(kMaxJobFileBytes)) {
    return InvalidArgument("{}:1:1: {} bytes; a job file has at most {}", name, text.size(), kMaxJobFileBytes);
  }
  StatusOr<YamlNode> root = ParseYaml(text);
  if (!root.ok()) return InvalidArgument("{}:{}", name, Message(root.status()));
  if (root->kind != YamlNode::Kind::kMapping) {
    return InvalidArgument("{}:{}:{}: found no sections; expected apiVersion, kind, metadata, spec", name,
                           root->at.line, root->at.column);
  }
  Binder binder({.folder = folder, .working_directory = options.working_directory});
  ApplyOverrides(options.overrides, &*root, &binder.errors);
  binder.BindFile(*root);
  Finish(options, &binder);
  if (!binder.errors.empty()) return ErrorList(std::move(binder.errors), name, options);

  LoadedJob job{.spec = std::move(binder.spec), .file = name, .sources = {}, .layers = {}};
  for (const auto& [path, at] : binder.given) job.sources[path] = SourceAt(at, name, options);
  for (const std::string& path : binder.automatic) {
    ValueSource& source = job.sources[path];
    source.text = source.text.empty() ? "default (auto)" : source.text + " (auto)";
  }
  for (const auto& [path, at] : binder.layers) job.layers[path] = SourceAt(at, name, options);
  return job;
}

StatusOr<LoadedJob> LoadJobFile(const std::string& path, const JobFileOptions& options) {
  StatusOr<std::string> text = ReadFile(path, kMaxJobFileBytes);
  if (text.status().code() == absl::StatusCode::kResourceExhausted) {
    return InvalidArgument("{}:1:1: a job file has at most {} bytes", path, kMaxJobFileBytes);
  }
  TUTTI_RETURN_IF_ERROR(text.status());
  TUTTI_ASSIGN_OR_RETURN(const std::string absolute, AbsolutePath(path));
  return ParseJobFile(*text, path, Dirname(absolute), options);
}

std::string LocateLayerError(const LoadedJob& job, std::string_view message) {
  const std::string text(message);
  const ValueSource* best = nullptr;
  size_t best_length = 0;
  for (const auto& [path, source] : job.layers) {
    const size_t at = text.find(path);
    if (at == std::string::npos || path.size() <= best_length) continue;
    const size_t end = at + path.size();
    if (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])))
      continue;  // layers.1 inside layers.12
    best = &source;
    best_length = path.size();
  }
  return best == nullptr ? text : fmt::format("{}: {}", best->text, text);
}

}  // namespace tutti
