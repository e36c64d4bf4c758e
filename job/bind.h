// From a YAML tree to a JobSpec by the table of job/schema.h, collecting every mistake; --set on the tree before that.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "job/job_file.h"
#include "job/schema.h"
#include "job/yaml_tree.h"

namespace tutti {

struct JobFileError {
  YamlPosition at;
  std::string path;  // "spec.optimizer"
  std::string what;
};

// Writes the values of `overrides` into the tree. Mistakes in their paths are added to `errors`.
void ApplyOverrides(const std::vector<std::string>& overrides, YamlNode* root, std::vector<JobFileError>* errors);

class Binder {
 public:
  struct Paths {
    std::string folder;             // of the job file, for paths written there
    std::string working_directory;  // for paths given by --set
  };
  explicit Binder(Paths paths) : paths_(std::move(paths)) {}

  void BindFile(const YamlNode& root) { BindSection(root, "", "File", &spec); }

  v1::JobSpec spec;
  std::vector<JobFileError> errors;
  std::set<std::string> refused;               // paths whose value cannot be used
  std::set<std::string> automatic;             // paths that stand for `auto`, written or by default
  std::map<std::string, YamlPosition> given;   // paths of the file and of --set
  std::map<std::string, YamlPosition> layers;  // engine paths

 private:
  using Key = schema::Key;
  using Message = google::protobuf::Message;
  using FieldDescriptor = google::protobuf::FieldDescriptor;

  void Refuse(const YamlPosition& at, const std::string& path, std::string what);
  void BindSection(const YamlNode& node, const std::string& path, std::string_view section, Message* out);
  // Binds the known keys of `node`, in two passes (`type` first); returns those that were seen or meant by a wrong key.
  std::set<const Key*> BindEntries(const YamlNode& node, const std::string& path, std::string_view section,
                                   Message* out);
  void FillDefaults(const YamlNode& node, const std::string& path, std::string_view section,
                    const std::set<const Key*>& seen, Message* out);
  void BindValue(const YamlNode& node, const std::string& path, const Key& key, Message* out);
  void BindScalar(const YamlNode& node, const std::string& path, const Key& key, Message* out);
  void BindLabels(const YamlNode& node, const std::string& path);
  void BindIntegers(const YamlNode& node, const std::string& path, const Key& key, Message* out);
  void BindLayers(const YamlNode& node, const std::string& path, const std::string& engine_path,
                  google::protobuf::RepeatedPtrField<v1::Layer>* out);
  void BindLayer(const YamlNode& item, const std::string& path, const std::string& engine_path, v1::Layer* out);
  // "" or what is wrong with `text` as a value of `field`.
  std::string SetNumber(std::string_view text, const Key& key, const FieldDescriptor& field, Message* out);

  Paths paths_;
  std::string engine_path_;  // of the layer that is being bound
};

}  // namespace tutti
