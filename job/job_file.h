// Job file (YAML) -> JobSpec: strict, with located errors, every default filled in and every `auto` resolved. The only
// user of yaml-cpp. The coordinator never parses YAML: it calls ValidateJobSpec (job/validate.h, target job_validate)
// on the message.
//
// Precedence: --set a.b=c > file > default. Nothing is guessed: unknown, misplaced and duplicate keys, wrong types,
// ranges and combinations are refused, all at once, each as
//   file:line:column: section: what was found; what is expected; did you mean ...
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tutti/v1/job.pb.h"

namespace tutti {

inline constexpr int64_t kMaxJobFileBytes = 1 << 20;

struct JobFileOptions {
  std::vector<std::string>
      overrides;  // "optimizer.learningRate=0.1" or "spec.optimizer...", "model.layers.0.dense.units=64",
                  // "metadata.name=x"; "key=null" removes the key; train.steps=N replaces train.epochs
  std::string
      working_directory;    // absolute; checkpoint.directory defaults to <it>/runs/<name>. Empty: the process's own
  int cores_available = 1;  // for `auto`: numerics.threads = max(1, cores_available / ranks)
  bool fresh_run_directory = false;  // a defaulted checkpoint.directory that holds a run already becomes runs/<name>-2,
                                     // -3, ... (with resume: auto the last of these)
};

// Where a value comes from.
struct ValueSource {
  enum class Kind { kFile, kOverride, kDefault };
  Kind kind = Kind::kDefault;
  int line = 0;  // 1-based, kFile
  int column = 0;
  std::string text;  // "job.yaml:14:5", "--set optimizer.learningRate=0.1", "default", "default (auto)"
};

struct LoadedJob {
  v1::JobSpec spec;                            // valid
  std::string file;                            // as given
  std::map<std::string, ValueSource> sources;  // by path: "spec.optimizer.learningRate", "spec.model.layers.3", ...
  std::map<std::string, ValueSource> layers;   // by the engine's layer path: "layers.3", "layers.3.layers.0"
};

// INVALID_ARGUMENT: the message has one line per mistake, in file order. NOT_FOUND, PERMISSION_DENIED: the file cannot
// be read. Bounded: 1 MiB, depth 32, 20,000 nodes; no anchors, aliases, tags, second documents.
StatusOr<LoadedJob> LoadJobFile(const std::string& path, const JobFileOptions& options);
// The same for text; relative paths are resolved against `folder` (absolute), `name` stands in messages.
StatusOr<LoadedJob> ParseJobFile(std::string_view text, const std::string& name, const std::string& folder,
                                 const JobFileOptions& options);

// "job.yaml:12:7: layers.3: <message>" where the job's layer path is known, else the message alone: for errors of the
// engine and the planner, which name layers by path at the start of or inside their message.
std::string LocateLayerError(const LoadedJob& job, std::string_view message);

// The effective file: a job file that loads to the same spec, each value followed by its source as a comment.
std::string EffectiveConfig(const LoadedJob& job);
// The same as JSON: {"config": {...}, "sources": {"spec.optimizer.learningRate": "job.yaml:14:5", ...}}.
std::string EffectiveConfigJson(const LoadedJob& job);
// A spec as a job file, without sources.
std::string JobSpecToYaml(const v1::JobSpec& spec);

// What `tutti explain PATH` prints: the keys of a section (or one key) with type, default and meaning. "" is the whole
// file. NOT_FOUND names the nearest path.
StatusOr<std::string> ExplainJobKey(const std::string& path);
// JSON Schema (draft 2020-12) of the job file, from the same table.
std::string JobFileJsonSchema();

}  // namespace tutti
