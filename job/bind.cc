#include "job/bind.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/check.h"

namespace tutti {
namespace {

using google::protobuf::FieldDescriptor;

std::string Child(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

// What stands there, for messages.
std::string Found(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing (null)";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMapping:
      return "a section";
    case YamlNode::Kind::kScalar:
      break;
  }
  const std::string shown = node.text.size() > 60 ? node.text.substr(0, 57) + "..." : node.text;
  return node.quoted ? fmt::format("the text \"{}\"", shown) : fmt::format("'{}'", shown);
}

// The word of the section's `type`, "" where there is none or it is not known.
std::string TypeWord(const google::protobuf::Message& message) {
  const FieldDescriptor* kind = message.GetDescriptor()->FindFieldByName("kind");
  if (kind == nullptr || kind->enum_type() == nullptr) return "";
  return schema::WordOf(*kind->enum_type(), message.GetReflection()->GetEnumValue(message, kind));
}

YamlNode DefaultNode(const schema::Key& key, const YamlPosition& at) {
  if (key.fallback == "{}") return {.kind = YamlNode::Kind::kMapping, .at = at};
  if (key.fallback.front() != '[')
    return {.kind = YamlNode::Kind::kScalar, .text = std::string(key.fallback), .at = at};
  auto list = ParseYaml(key.fallback);
  TUTTI_CHECK_OK(list.status());
  return *std::move(list);
}

}  // namespace

void Binder::Refuse(const YamlPosition& at, const std::string& path, std::string what) {
  errors.push_back({at, path, std::move(what)});
  refused.insert(path);
}

void Binder::BindSection(const YamlNode& node, const std::string& path, std::string_view section, Message* out) {
  if (node.kind != YamlNode::Kind::kMapping) {
    std::string names;
    for (const Key* key : schema::KeysOf(section)) names += fmt::format("{}{}", names.empty() ? "" : ", ", key->name);
    return Refuse(node.at, path, fmt::format("found {}; expected a section with the keys {}", Found(node), names));
  }
  FillDefaults(node, path, section, BindEntries(node, path, section, out), out);
}

std::set<const schema::Key*> Binder::BindEntries(const YamlNode& node, const std::string& path,
                                                 std::string_view section, Message* out) {
  std::set<const Key*> seen;
  std::map<std::string, const YamlEntry*> first;
  for (const bool type_pass : {true, false})
    for (const YamlEntry& entry : node.entries) {
      if ((entry.key == "type") != type_pass) continue;
      if (const auto [it, fresh] = first.try_emplace(entry.key, &entry); !fresh) {
        const YamlPosition& at = it->second->at;
        const std::string where = at.line > 0 ? fmt::format("first at line {}", at.line) : "first by --set";
        errors.push_back({entry.at, path, fmt::format("duplicate key '{}' ({})", entry.key, where)});
        refused.insert(Child(path, entry.key));
        continue;
      }
      const Key* key = schema::FindKey(section, entry.key);
      if (key == nullptr) {
        const std::string_view shown = std::string_view(entry.key).substr(0, 60);
        errors.push_back(
            {entry.at, path, fmt::format("unknown key '{}'{}", shown, schema::Suggest(section, entry.key))});
        if (const Key* meant = schema::NearestKey(section, entry.key)) {
          seen.insert(meant);
          refused.insert(Child(path, meant->name));
        }
        continue;
      }
      seen.insert(key);
      const std::string child = Child(path, entry.key);
      given[child] = entry.value.at;
      if (const std::string type = TypeWord(*out); !type.empty() && !schema::Applies(*key, type)) {
        Refuse(entry.at, child,
               fmt::format("has no meaning with type {}; expected only with {}", type, schema::WhenText(*key)));
        continue;
      }
      BindValue(entry.value, child, *key, out);
    }
  return seen;
}

void Binder::FillDefaults(const YamlNode& node, const std::string& path, std::string_view section,
                          const std::set<const Key*>& seen, Message* out) {
  const std::string type = TypeWord(*out);
  for (const Key* key : schema::KeysOf(section)) {
    const std::string child = Child(path, key->name);
    if (seen.count(key) > 0 || section == "Layer" ||
        (!key->when.empty() && (type.empty() || !schema::Applies(*key, type))))
      continue;
    if (key->fallback == schema::kRequired) {
      errors.push_back(
          {node.at, path, fmt::format("missing key '{}'; expected {}", key->name, schema::Expected(*key))});
      refused.insert(child);
    } else if (key->fallback == schema::kAuto) {
      automatic.insert(child);
    } else if (schema::HasDefault(*key)) {
      BindValue(DefaultNode(*key, node.at), child, *key, out);
    }
  }
}

void Binder::BindValue(const YamlNode& node, const std::string& path, const Key& key, Message* out) {
  const FieldDescriptor* field = schema::FieldOf(key);
  if (field == nullptr) {
    if (key.name == "spec") return BindSection(node, path, "JobSpec", out);
    if (node.kind != YamlNode::Kind::kScalar || node.text != schema::Expected(key)) {
      Refuse(node.at, path, fmt::format("found {}; expected {}", Found(node), schema::Expected(key)));
    }
    return;
  }
  if (field->is_map()) return BindLabels(node, path);
  if (schema::SectionOf(key) == "Layer") {
    auto* layers_out = key.section == "Model" ? dynamic_cast<v1::Model&>(*out).mutable_layers()
                                              : dynamic_cast<v1::Residual&>(*out).mutable_layers();
    return BindLayers(node, path, engine_path_, layers_out);
  }
  if (field->is_repeated()) return BindIntegers(node, path, key, out);
  if (field->message_type() != nullptr) {
    return BindSection(node, path, field->message_type()->name(), out->GetReflection()->MutableMessage(out, field));
  }
  BindScalar(node, path, key, out);
}

void Binder::BindScalar(const YamlNode& node, const std::string& path, const Key& key, Message* out) {
  const FieldDescriptor& field = *schema::FieldOf(key);
  const auto& reflection = *out->GetReflection();
  std::string hint, problem;
  if (node.kind != YamlNode::Kind::kScalar) {
    problem = " ";
  } else if (key.fallback == schema::kAuto && key.range != "path" && node.text == schema::kAuto) {
    automatic.insert(path);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    if (node.text.empty()) problem = " ";
    const std::string& base = node.at.override_index >= 0 ? paths_.working_directory : paths_.folder;
    const bool is_path = key.range == "path" && !node.text.empty();
    reflection.SetString(out, &field,
                         is_path ? (std::filesystem::path(base) / node.text).lexically_normal().string() : node.text);
  } else if (const auto* type = field.enum_type()) {
    const auto number = schema::NumberOf(*type, node.text);
    if (number) return reflection.SetEnumValue(out, &field, *number);
    const std::string near = schema::NearestWord(node.text, schema::WordsOf(*type));
    if (!near.empty()) hint = fmt::format("; did you mean '{}'?", near);
    problem = " ";
  } else {
    problem = node.quoted ? " " : SetNumber(node.text, key, field, out);
  }
  if (problem.empty()) return;
  Refuse(node.at, path,
         fmt::format("found {}{}; expected {}{}", Found(node), problem == " " ? "" : fmt::format(", which {}", problem),
                     schema::Expected(key), hint));
}

std::string Binder::SetNumber(std::string_view text, const Key& key, const FieldDescriptor& field, Message* out) {
  const auto& reflection = *out->GetReflection();
  const auto range = [&](double value) { return schema::InRange(key, value) ? "" : "is out of range"; };
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    bool value = false;
    if (auto reading = schema::ReadBool(text, &value); !reading.ok()) return " ";
    reflection.SetBool(out, &field, value);
    return "";
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
    uint64_t value = 0;
    if (auto reading = schema::ReadUint(text, &value); !reading.ok()) return reading.problem;
    reflection.SetUInt64(out, &field, value);
    return "";
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    double value = 0;
    if (auto reading = schema::ReadDouble(text, &value); !reading.ok()) return reading.problem;
    reflection.SetDouble(out, &field, value);
    return range(value);
  }
  int64_t value = 0;
  if (auto reading = schema::ReadInt(text, &value); !reading.ok()) return reading.problem;
  if (std::string problem = range(static_cast<double>(value)); !problem.empty()) return problem;
  if (field.is_repeated()) {
    reflection.AddInt32(out, &field, static_cast<int32_t>(value));
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    reflection.SetInt32(out, &field, static_cast<int32_t>(value));
  } else {
    reflection.SetInt64(out, &field, value);
  }
  return "";
}

void Binder::BindLabels(const YamlNode& node, const std::string& path) {
  if (node.kind != YamlNode::Kind::kMapping)
    return Refuse(node.at, path, fmt::format("found {}; expected a section with text values", Found(node)));
  std::map<std::string, int> first;
  for (const YamlEntry& entry : node.entries) {
    const std::string child = Child(path, entry.key);
    if (const auto [it, fresh] = first.try_emplace(entry.key, entry.at.line); !fresh) {
      Refuse(entry.at, path, fmt::format("duplicate key '{}' (first at line {})", entry.key, it->second));
    } else if (entry.value.kind != YamlNode::Kind::kScalar) {
      Refuse(entry.value.at, child, fmt::format("found {}; expected text", Found(entry.value)));
    } else {
      given[child] = entry.value.at;
      (*spec.mutable_metadata()->mutable_labels())[entry.key] = entry.value.text;
    }
  }
}

void Binder::BindIntegers(const YamlNode& node, const std::string& path, const Key& key, Message* out) {
  if (node.kind != YamlNode::Kind::kSequence) {
    return Refuse(node.at, path, fmt::format("found {}; expected {}", Found(node), schema::Expected(key)));
  }
  for (const YamlNode& item : node.items) {
    const bool plain = item.kind == YamlNode::Kind::kScalar && !item.quoted;
    const std::string problem = plain ? SetNumber(item.text, key, *schema::FieldOf(key), out) : "is no number";
    if (!problem.empty())
      Refuse(item.at, path,
             fmt::format("found {}, which {}; expected {}", Found(item), problem, schema::Expected(key)));
  }
}

void Binder::BindLayers(const YamlNode& node, const std::string& path, const std::string& engine_path,
                        google::protobuf::RepeatedPtrField<v1::Layer>* out) {
  if (node.kind != YamlNode::Kind::kSequence || node.items.empty()) {
    const std::string found = node.kind == YamlNode::Kind::kSequence ? "an empty list" : Found(node);
    return Refuse(
        node.at, path,
        fmt::format("found {}; expected a list of layers, such as `- relu` and `- dense: {{units: 10}}`", found));
  }
  const std::string prefix = engine_path.empty() ? "layers" : engine_path + ".layers";
  for (size_t i = 0; i < node.items.size(); ++i) {
    BindLayer(node.items[i], fmt::format("{}.{}", path, i), fmt::format("{}.{}", prefix, i), out->Add());
  }
}

void Binder::BindLayer(const YamlNode& item, const std::string& path, const std::string& engine_path, v1::Layer* out) {
  given[path] = item.at;
  layers[engine_path] = item.at;
  static const YamlNode kNoArguments{.kind = YamlNode::Kind::kMapping};
  YamlNode arguments = kNoArguments;
  arguments.at = item.at;
  std::string name = item.text;
  YamlPosition at = item.at;
  if (item.kind == YamlNode::Kind::kMapping && item.entries.size() == 1) {
    name = item.entries[0].key;
    at = item.entries[0].at;
    if (item.entries[0].value.kind != YamlNode::Kind::kNull) arguments = item.entries[0].value;
  } else if (item.kind == YamlNode::Kind::kMapping && item.entries.size() > 1) {
    return Refuse(
        item.entries[1].at, path,
        fmt::format(
            "found '{}' beside '{}'; expected one layer in a list item, with its keys indented below it or in {{}}",
            item.entries[1].key, item.entries[0].key));
  } else if (item.kind != YamlNode::Kind::kScalar) {
    return Refuse(item.at, path,
                  fmt::format("found {}; expected a layer, such as `relu` or `dense: {{units: 10}}`", Found(item)));
  }
  const Key* key = schema::FindKey("Layer", name);
  if (key == nullptr) {
    std::string names;
    for (const Key* k : schema::KeysOf("Layer")) names += fmt::format("{}{}", names.empty() ? "" : ", ", k->name);
    return Refuse(
        at, path,
        fmt::format("unknown layer '{:.60}'; expected one of {}{}", name, names, schema::Suggest("Layer", name)));
  }
  const FieldDescriptor* field = schema::FieldOf(*key);
  if (field->message_type()->name() == "Activation") {
    out->mutable_activation()->set_kind(
        static_cast<v1::ActivationKind>(*schema::NumberOf(*v1::ActivationKind_descriptor(), name)));
  }
  const std::string outer = std::exchange(engine_path_, engine_path);
  BindSection(arguments, Child(path, name), field->message_type()->name(),
              out->GetReflection()->MutableMessage(out, field));
  engine_path_ = outer;
}

}  // namespace tutti
