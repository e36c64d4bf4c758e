#include "cli/json.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace tutti::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

Json ToJson(const Message& message);

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json Singular(const Message& message, const FieldDescriptor* field) {
  const auto& r = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(r.GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(r.GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return r.GetEnum(message, field)->name();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(r.GetMessage(message, field));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = r.GetString(message, field);
      return field->type() == FieldDescriptor::TYPE_BYTES ? Json(Hex(value)) : Json(value);
    }
  }
  return nullptr;
}

Json Element(const Message& message, const FieldDescriptor* field, int i) {
  const auto& r = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetRepeatedInt32(message, field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetRepeatedInt64(message, field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetRepeatedUInt32(message, field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetRepeatedUInt64(message, field, i);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(r.GetRepeatedFloat(message, field, i));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(r.GetRepeatedDouble(message, field, i));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetRepeatedBool(message, field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return r.GetRepeatedEnum(message, field, i)->name();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(r.GetRepeatedMessage(message, field, i));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = r.GetRepeatedString(message, field, i);
      return field->type() == FieldDescriptor::TYPE_BYTES ? Json(Hex(value)) : Json(value);
    }
  }
  return nullptr;
}

// Numbers and booleans also where they are zero (an exit code of 0 is a fact); all else only where it is set.
bool IsShown(const Message& message, const FieldDescriptor* field) {
  if (field->is_repeated()) return message.GetReflection()->FieldSize(message, field) > 0;
  const bool is_value = field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE &&
                        field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
                        field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM;
  return message.GetReflection()->HasField(message, field) || (is_value && field->containing_oneof() == nullptr);
}

Json ToJson(const Message& message) {
  const auto& r = *message.GetReflection();
  Json out = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (!IsShown(message, field)) continue;
    if (field->is_map()) {
      std::map<std::string, Json> sorted;
      for (int i = 0; i < r.FieldSize(message, field); ++i) {
        const Message& entry = r.GetRepeatedMessage(message, field, i);
        const Json key = Singular(entry, entry.GetDescriptor()->map_key());
        sorted[key.is_string() ? key.get<std::string>() : key.dump()] =
            Singular(entry, entry.GetDescriptor()->map_value());
      }
      for (auto& [key, value] : sorted) out[field->json_name()][key] = std::move(value);
    } else if (field->is_repeated()) {
      Json list = Json::array();
      for (int i = 0; i < r.FieldSize(message, field); ++i) list.push_back(Element(message, field, i));
      out[field->json_name()] = std::move(list);
    } else {
      out[field->json_name()] = Singular(message, field);
    }
  }
  return out;
}

std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// JSON's scalars are YAML's; containers become blocks.
void WriteYaml(const Json& value, size_t indent, std::string* out) {
  const std::string blanks(indent, ' ');
  const auto write_child = [&](const Json& child, size_t deeper) {
    if (child.is_structured() && !child.empty()) {
      *out += "\n";
      WriteYaml(child, deeper, out);
    } else {
      *out += " " + Dump(child, -1) + "\n";
    }
  };
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, child] : value.items()) {
      *out +=
          blanks +
          (key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos
               ? key
               : Dump(key, -1)) +
          ":";
      write_child(child, indent + 2);
    }
  } else if (value.is_array() && !value.empty()) {
    for (const Json& child : value) {
      *out += blanks + "-";
      write_child(child, indent + 2);
    }
  } else {
    *out += blanks + Dump(value, -1) + "\n";
  }
}

std::string Text(const Json& value, Format format) {
  if (format == Format::kJson) return Dump(value, 2) + "\n";
  std::string out;
  WriteYaml(value, 0, &out);
  return out;
}

}  // namespace

std::string MessageText(const Message& message, Format format) { return Text(ToJson(message), format); }

std::string ListText(const std::vector<const Message*>& messages, Format format) {
  Json list = Json::array();
  for (const Message* message : messages) list.push_back(ToJson(*message));
  return Text(list, format);
}

std::string JsonToYaml(const std::string& json) { return Text(Json::parse(json), Format::kYaml); }

}  // namespace tutti::cli
