// A YAML document as a tree of our own, with positions, made from parser events so that duplicate keys are seen and
// limits hold before memory is spent. Only yaml_tree.cc includes yaml-cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti {

struct YamlPosition {
  int line = 0;  // 1-based; 0 with a node that came by --set
  int column = 0;
  int override_index = -1;  // of JobFileOptions::overrides
};

struct YamlEntry;
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  std::string text{};     // kScalar, as written
  bool quoted = false;  // kScalar in quotes or as a block: text, never a number or a boolean
  YamlPosition at{};
  std::vector<YamlNode> items{};
  std::vector<YamlEntry> entries{};  // in file order, duplicates included

  YamlEntry* Find(std::string_view key);  // first of that name; nullptr when absent
};
struct YamlEntry {
  std::string key;
  YamlPosition at;
  YamlNode value;
};

inline constexpr int kMaxYamlDepth = 32;
inline constexpr int kMaxYamlNodes = 20'000;

// INVALID_ARGUMENT "line:column: what": not YAML, not UTF-8, beyond a limit, or a construct that job files do not have
// (anchor, alias, tag, second document, a key that is no plain text).
StatusOr<YamlNode> ParseYaml(std::string_view text);

}  // namespace tutti
