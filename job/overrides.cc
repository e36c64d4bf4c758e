#include <fmt/format.h>

#include <algorithm>

#include "job/bind.h"

namespace tutti {
namespace {

void Stamp(YamlNode* node, const YamlPosition& at) {
  node->at = at;
  for (YamlNode& item : node->items) Stamp(&item, at);
  for (YamlEntry& entry : node->entries) {
    entry.at = at;
    Stamp(&entry.value, at);
  }
}

std::vector<std::string> SplitPath(std::string_view path) {
  std::vector<std::string> names;
  for (size_t start = 0; start <= path.size();) {
    const size_t dot = std::min(path.find('.', start), path.size());
    names.emplace_back(path.substr(start, dot - start));
    start = dot + 1;
  }
  if (schema::FindKey("File", names[0]) == nullptr) names.insert(names.begin(), "spec");
  if (names.size() > 3 && names[0] == "metadata" && names[1] == "labels") {  // label names may hold dots
    names[2] = std::string(path.substr(path.find(names[2], std::string_view("metadata.labels.").size())));
    names.resize(3);
  }
  return names;
}

class Override {
 public:
  Override(YamlNode* root, int index, std::vector<JobFileError>* errors)
      : root_(root), at_{.override_index = index}, errors_(errors) {}

  void Apply(const std::string& text, bool other_duration_given) {
    const size_t equal = text.find('=');
    if (equal == std::string::npos || equal == 0)
      return Fail("--set", fmt::format("found '{:.60}'; expected key=value", text));
    const std::vector<std::string> names = SplitPath(std::string_view(text).substr(0, equal));
    YamlNode value{.kind = YamlNode::Kind::kScalar, .text = text.substr(equal + 1)};
    const bool remove = value.text == "null" || value.text == "~";
    if (!value.text.empty() && std::string_view("[{\"'").find(value.text[0]) != std::string_view::npos) {
      auto parsed = ParseYaml(value.text);
      if (!parsed.ok()) return Fail("--set", Message(parsed.status()));
      value = *std::move(parsed);
    }
    Stamp(&value, at_);
    if (!Set(names, std::move(value), remove)) return;
    if (!remove && !other_duration_given && names.size() == 3 && names[0] == "spec" && names[1] == "train") {
      if (names[2] == "steps") Set({"spec", "train", "epochs"}, {}, true);
      if (names[2] == "epochs") Set({"spec", "train", "steps"}, {}, true);
    }
  }

 private:
  void Fail(std::string path, std::string what) { errors_->push_back({at_, std::move(path), std::move(what)}); }

  bool Set(const std::vector<std::string>& names, YamlNode value, bool remove) {
    YamlNode* node = root_;
    std::string path;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool last = i + 1 == names.size();
      if (node->kind == YamlNode::Kind::kSequence) {
        int64_t position = -1;
        if (!schema::ReadInt(names[i], &position).ok() || position < 0 ||
            position >= static_cast<int64_t>(node->items.size())) {
          Fail(path, fmt::format("found list position '{}'; expected 0 to {}", names[i], node->items.size() - 1));
          return false;
        }
        if (last && remove) {
          node->items.erase(node->items.begin() + position);
          return true;
        }
        node = &node->items[static_cast<size_t>(position)];
      } else if (node->kind == YamlNode::Kind::kScalar) {
        Fail(path, fmt::format("is the value '{:.60}'; expected a section with '{}'", node->text, names[i]));
        return false;
      } else {
        if (node->kind == YamlNode::Kind::kNull) *node = {.kind = YamlNode::Kind::kMapping, .at = at_};
        if (last && remove) {
          std::erase_if(node->entries, [&](const YamlEntry& entry) { return entry.key == names[i]; });
          return true;
        }
        YamlEntry* entry = node->Find(names[i]);
        if (entry == nullptr) {
          if (remove) return true;
          node->entries.push_back({.key = names[i], .at = at_, .value = {.kind = YamlNode::Kind::kNull, .at = at_}});
          entry = &node->entries.back();
        } else if (last) {
          entry->at = at_;
        }
        node = &entry->value;
      }
      path += (path.empty() ? "" : ".") + names[i];
    }
    *node = std::move(value);
    return true;
  }

  YamlNode* root_;
  YamlPosition at_;
  std::vector<JobFileError>* errors_;
};

}  // namespace

void ApplyOverrides(const std::vector<std::string>& overrides, YamlNode* root, std::vector<JobFileError>* errors) {
  const auto names = [&](std::string_view key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& text) {
      return text.starts_with(fmt::format("train.{}=", key)) || text.starts_with(fmt::format("spec.train.{}=", key));
    });
  };
  const bool both = names("steps") && names("epochs");
  for (size_t i = 0; i < overrides.size(); ++i) Override(root, static_cast<int>(i), errors).Apply(overrides[i], both);
}

}  // namespace tutti
