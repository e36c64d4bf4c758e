// Messages for scripts: proto3's JSON field names, but numbers as numbers (64 bit too), enumerations by name, unset
// fields left out, non-finite numbers as null (JSON has none). Pure.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <vector>

namespace tutti::cli {

enum class Format { kText, kWide, kJson, kYaml };

// `format` is kJson or kYaml; ends with a newline.
std::string MessageText(const google::protobuf::Message& message, Format format);
std::string ListText(const std::vector<const google::protobuf::Message*>& messages, Format format);
// Any JSON text as block YAML.
std::string JsonToYaml(const std::string& json);

}  // namespace tutti::cli
