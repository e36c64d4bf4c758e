// What people and tools read about job files: the effective config, explanations, the JSON Schema.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "job/job_file.h"
#include "job/schema.h"

namespace tutti {
namespace {

using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;
using schema::Key;
using ProtoMessage = google::protobuf::Message;

Json SectionJson(std::string_view section, const ProtoMessage& message);

// One layer as the job file writes it: "relu", or {"dense": {...}}.
Json LayerJson(const v1::Layer& layer) {
  if (layer.has_activation()) return schema::WordOf(*v1::ActivationKind_descriptor(), layer.activation().kind());
  const auto& reflection = *layer.GetReflection();
  const FieldDescriptor* field = reflection.GetOneofFieldDescriptor(layer, layer.GetDescriptor()->oneof_decl(0));
  if (field == nullptr) return nullptr;
  const std::string name(schema::FindField("Layer", field->name())->name);
  Json keys = SectionJson(field->message_type()->name(), reflection.GetMessage(layer, field));
  if (keys.empty()) return name;
  return Json{{name, std::move(keys)}};
}

Json ScalarJson(const ProtoMessage& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return schema::WordOf(*field.enum_type(), reflection.GetEnumValue(message, &field));
    default:
      return reflection.GetString(message, &field);
  }
}

Json SectionJson(std::string_view section, const ProtoMessage& message) {
  const auto& reflection = *message.GetReflection();
  Json out = Json::object();
  std::string type;
  for (const Key* key : schema::KeysOf(section)) {
    const FieldDescriptor* field = schema::FieldOf(*key);
    const std::string name(key->name);
    if (schema::SectionOf(*key) == "Layer") {
      Json list = Json::array();
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        list.push_back(LayerJson(dynamic_cast<const v1::Layer&>(reflection.GetRepeatedMessage(message, field, i))));
      }
      out[name] = std::move(list);
    } else if (field->is_map()) {
      const auto& labels = dynamic_cast<const v1::Metadata&>(message).labels();
      for (const auto& [label, value] : std::map<std::string, std::string>(labels.begin(), labels.end()))
        out[name][label] = value;
    } else if (field->is_repeated()) {
      out[name] = Json::array();
      for (int i = 0; i < reflection.FieldSize(message, field); ++i)
        out[name].push_back(reflection.GetRepeatedInt32(message, field, i));
    } else if (field->message_type() != nullptr) {
      if (reflection.HasField(message, field))
        out[name] = SectionJson(field->message_type()->name(), reflection.GetMessage(message, field));
    } else {
      Json value = ScalarJson(message, *field);
      if (key->field == "kind") type = value.get<std::string>();
      const bool unset = key->fallback == schema::kAbsent && !reflection.HasField(message, field);
      if (!unset && (type.empty() || schema::Applies(*key, type))) out[name] = std::move(value);
    }
  }
  return out;
}

Json FileJson(const v1::JobSpec& spec) {
  return Json{{"apiVersion", "tutti/v1"},
              {"kind", "TrainingJob"},
              {"metadata", SectionJson("Metadata", spec.metadata())},
              {"spec", SectionJson("JobSpec", spec)}};
}

// Text that YAML 1.1 and 1.2 readers alike take for text.
std::string YamlScalar(const Json& value) {
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  static const std::set<std::string> kWords = {"true", "false", "null", "yes", "no", "on", "off", "y", "n",
                                               "True", "False", "Null", "Yes", "No", "On", "Off", "Y", "N"};
  const bool starts_plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/');
  const bool plain =
      starts_plain &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") == std::string::npos;
  return plain && kWords.count(text) == 0 ? text : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// {units: 10, bias: true}
std::string FlowYaml(const Json& value) {
  if (value.is_object()) {
    std::vector<std::string> parts;
    for (const auto& [key, item] : value.items())
      parts.push_back(fmt::format("{}: {}", YamlScalar(key), FlowYaml(item)));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const Json& item : value) parts.push_back(FlowYaml(item));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  return YamlScalar(value);
}

// Block YAML with a comment per line from `comment(path)`.
class YamlWriter {
 public:
  explicit YamlWriter(std::function<std::string(const std::string&)> comment) : comment_(std::move(comment)) {}

  void Section(const Json& section, const std::string& path, int indent) {
    for (const auto& [key, value] : section.items()) {
      const std::string child = path.empty() ? key : path + "." + key;
      if (value.is_object() && !value.empty()) {
        out += fmt::format("{:{}}{}:\n", "", indent, YamlScalar(key));
        Section(value, child, indent + 2);
      } else if (key == "layers") {
        out += fmt::format("{:{}}layers:\n", "", indent);
        Layers(value, child, indent + 2);
      } else {
        Line(fmt::format("{:{}}{}: {}", "", indent, YamlScalar(key), FlowYaml(value)), child);
      }
    }
  }

  std::string out;

 private:
  void Layers(const Json& layers, const std::string& path, int indent) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string item = fmt::format("{}.{}", path, i);
      if (layers[i].is_object() && layers[i].contains("residual")) {
        Line(fmt::format("{:{}}- residual:", "", indent), item);
        out += fmt::format("{:{}}layers:\n", "", indent + 6);
        Layers(layers[i]["residual"]["layers"], item + ".residual.layers", indent + 8);
      } else if (layers[i].is_object()) {
        Line(fmt::format("{:{}}- {}: {}", "", indent, layers[i].begin().key(), FlowYaml(layers[i].begin().value())),
             item);
      } else {
        Line(fmt::format("{:{}}- {}", "", indent, YamlScalar(layers[i])), item);
      }
    }
  }

  void Line(const std::string& text, const std::string& path) {
    const std::string comment = comment_(path);
    out += comment.empty() ? text + "\n" : fmt::format("{:<48}  # {}\n", text, comment);
  }

  std::function<std::string(const std::string&)> comment_;
};

// A layer is one line: an override inside it is what matters.
std::string SourceText(const LoadedJob& job, const std::string& path) {
  for (auto it = job.sources.lower_bound(path + "."); it != job.sources.end() && it->first.starts_with(path + ".");
       ++it) {
    if (it->second.kind == ValueSource::Kind::kOverride) return it->second.text;
  }
  const auto it = job.sources.find(path);
  return it == job.sources.end() ? "default" : it->second.text;
}

std::string DefaultText(const Key& key) {
  if (key.fallback == schema::kRequired)
    return key.when.empty() ? "required" : fmt::format("required with type {}", schema::WhenText(key));
  std::string text = key.fallback == schema::kAbsent ? "optional"
                     : key.fallback == "{}"          ? "optional section"
                                                     : fmt::format("default {}", key.fallback);
  return key.when.empty() ? text : fmt::format("{}; only with type {}", text, schema::WhenText(key));
}

void ExplainKey(const Key& key, std::string* out) {
  const bool section = !schema::SectionOf(key).empty() && schema::SectionOf(key) != "Layer";
  *out += fmt::format("  {:<22}{}; {}\n  {:<22}{}\n", key.name, section ? "a section" : schema::Expected(key),
                      DefaultText(key), "", key.doc);
}

Json KeySchema(const Key& key) {
  const FieldDescriptor* field = schema::FieldOf(key);
  const std::string section(schema::SectionOf(key));
  Json out;
  if (section == "Layer") {
    out = {{"type", "array"}, {"minItems", 1}, {"items", {{"$ref", "#/$defs/Layer"}}}};
  } else if (!section.empty()) {
    out = {{"$ref", "#/$defs/" + section}};
  } else if (field == nullptr) {
    out = {{"const", schema::Expected(key)}};
  } else if (field->is_map()) {
    out = {{"type", "object"}, {"additionalProperties", {{"type", {"string", "number", "boolean"}}}}};
  } else if (field->enum_type() != nullptr) {
    out = {{"enum", schema::WordsOf(*field->enum_type())}};
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    out = {{"type", "boolean"}};
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    out = {{"type", "string"}, {"minLength", 1}};
  } else {
    out = {{"type", field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ? "number" : "integer"}};
    if (key.range.empty()) out["minimum"] = 0;  // the seed, the one number without a range, is unsigned
    if (!key.range.empty()) {
      const size_t comma = key.range.find(", ");
      const auto number = [](std::string_view text) { return Json::parse(text); };
      out[key.range.front() == '(' ? "exclusiveMinimum" : "minimum"] = number(key.range.substr(1, comma - 1));
      out[key.range.back() == ')' ? "exclusiveMaximum" : "maximum"] =
          number(key.range.substr(comma + 2, key.range.size() - comma - 3));
    }
    if (field->is_repeated()) out = {{"type", "array"}, {"items", std::move(out)}};
  }
  if (key.fallback == schema::kAuto && key.range != "path") out = {{"anyOf", {std::move(out), {{"const", "auto"}}}}};
  out["description"] = key.doc;
  if (schema::HasDefault(key) && section.empty()) {
    Json value = Json::parse(key.fallback, nullptr, false);
    out["default"] = value.is_discarded() ? Json(key.fallback) : std::move(value);
  }
  return out;
}

Json SectionSchema(std::string_view section) {
  Json out = {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  for (const Key* key : schema::KeysOf(section)) {
    out["properties"][std::string(key->name)] = KeySchema(*key);
    if (key->fallback == schema::kRequired && key->when.empty()) out["required"].push_back(key->name);
  }
  if (section == "Train") out["oneOf"] = {{{"required", {"epochs"}}}, {{"required", {"steps"}}}};
  return out;
}

Json LayerSchema() {
  Json names = Json::array();
  for (const Key* key : schema::KeysOf("Layer")) {
    bool needs_keys = false;
    for (const Key* inner : schema::KeysOf(schema::SectionOf(*key))) needs_keys |= inner->fallback == schema::kRequired;
    if (!needs_keys) names.push_back(key->name);
  }
  Json one = SectionSchema("Layer");
  one["minProperties"] = one["maxProperties"] = 1;
  return {{"oneOf", {{{"enum", std::move(names)}}, std::move(one)}}};
}

}  // namespace

std::string EffectiveConfig(const LoadedJob& job) {
  YamlWriter writer([&](const std::string& path) { return SourceText(job, path); });
  writer.Section(FileJson(job.spec), "", 0);
  return writer.out;
}

std::string EffectiveConfigJson(const LoadedJob& job) {
  Json sources = Json::object();
  const std::function<void(const Json&, const std::string&)> walk = [&](const Json& section, const std::string& path) {
    for (const auto& [key, value] : section.items()) {
      const std::string child = path.empty() ? key : path + "." + key;
      if (value.is_object() || (value.is_array() && key == "layers")) {
        walk(value, child);
      } else {
        sources[child] = SourceText(job, child);
      }
    }
  };
  const Json file = FileJson(job.spec);
  walk(file, "");
  return Json{{"config", file}, {"sources", std::move(sources)}}.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string JobSpecToYaml(const v1::JobSpec& spec) {
  YamlWriter writer([](const std::string&) { return ""; });
  writer.Section(FileJson(spec), "", 0);
  return writer.out;
}

StatusOr<std::string> ExplainJobKey(const std::string& given) {
  std::string path = given == "." ? "" : given;
  if (!path.empty() && schema::FindKey("File", path.substr(0, path.find('.'))) == nullptr) path = "spec." + path;
  std::string out;
  if (const auto section = schema::SectionAt(path)) {
    out = fmt::format("{}\n", path.empty() ? "A job file" : path);
    for (const Key* key : schema::KeysOf(*section)) ExplainKey(*key, &out);
    if (schema::KeysOf(*section).empty()) out += "  (no keys)\n";
    return out;
  }
  const size_t dot = path.rfind('.');
  const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot),
                    name = path.substr(dot == std::string::npos ? 0 : dot + 1);
  const auto section = schema::SectionAt(parent);
  if (!section) return NotFound("no section '{}' in a job file; `tutti explain spec` lists them", parent);
  const Key* key = schema::FindKey(*section, name);
  if (key == nullptr)
    return NotFound("no key '{}' in {}{}", name, parent.empty() ? "a job file" : parent,
                    schema::Suggest(*section, name));
  out = fmt::format("{}\n", path);
  ExplainKey(*key, &out);
  return out;
}

std::string JobFileJsonSchema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Tutti training job"}};
  root.update(SectionSchema("File"));
  Json defs = Json::object();
  for (const Key& key : schema::AllKeys()) {
    const std::string section(key.section);
    const std::string opened(schema::SectionOf(key));
    if (!opened.empty() && opened != "Layer") defs[opened] = SectionSchema(opened);
    if (section == "Layer") defs["Layer"] = LayerSchema();
  }
  root["$defs"] = std::move(defs);
  return root.dump(2);
}

}  // namespace tutti
