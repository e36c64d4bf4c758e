#include "job/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "tutti/v1/job.pb.h"

namespace tutti::schema {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = true;
  bool open_high = true;
};

Interval ParseInterval(std::string_view text) {
  if (text.empty() || text == "path") return {};
  const size_t comma = text.find(", ");
  Interval r{.open_low = text.front() == '(', .open_high = text.back() == ')'};
  const auto low = text.substr(1, comma - 1), high = text.substr(comma + 2, text.size() - comma - 3);
  TUTTI_CHECK(std::from_chars(low.data(), low.data() + low.size(), r.low).ec == std::errc(), "{}", text);
  TUTTI_CHECK(std::from_chars(high.data(), high.data() + high.size(), r.high).ec == std::errc(), "{}", text);
  return r;
}

bool IsInteger(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_INT32 || field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
         field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
}

bool HasWord(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const size_t space = std::min(words.find(' '), words.size());
    if (words.substr(0, space) == word) return true;
    words.remove_prefix(std::min(space + 1, words.size()));
  }
  return false;
}

std::string TypeText(const Key& key) {
  const FieldDescriptor* field = FieldOf(key);
  if (field == nullptr) return key.name == "apiVersion" ? "tutti/v1" : key.name == "kind" ? "TrainingJob" : "a section";
  if (field->is_map()) return "a section with text values";
  if (SectionOf(key) == "Layer") return "a list of layers";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    std::vector<std::string_view> names;
    for (const Key* k : KeysOf(SectionOf(key))) names.push_back(k->name);
    return names.empty() ? "a layer without keys" : fmt::format("a section with the keys {}", fmt::join(names, ", "));
  }
  if (const EnumDescriptor* type = field->enum_type()) {
    const auto words = WordsOf(*type);
    return words.size() == 1 ? words[0] : fmt::format("one of {}", fmt::join(words, ", "));
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "true or false";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return key.range == "path" ? "a path" : "text";
  const std::string number = IsInteger(*field) ? "integer" : "number";
  const std::string range = key.range.empty() ? "" : fmt::format(" in {}", key.range);
  if (field->is_repeated()) return fmt::format("a list of {}s{}", number, range);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) return "an integer in [0, 18446744073709551615]";
  return fmt::format("{} {}{}", number == "integer" ? "an" : "a", number, range);
}

// Optimal string alignment: insertions, deletions, replacements and swaps of neighbours.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

// "num-epochs", "num_epochs" and "numEpochs" are one word.
std::string Plain(std::string_view word) {
  std::string out;
  for (char c : word)
    if (c != '_' && c != '-' && c != ' ') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool SameWord(const Key& key, const std::string& plain) {
  if (Plain(key.name) == plain) return true;
  std::string_view words = key.synonyms;
  while (!words.empty()) {
    const size_t space = std::min(words.find(' '), words.size());
    if (Plain(words.substr(0, space)) == plain) return true;
    words.remove_prefix(std::min(space + 1, words.size()));
  }
  return false;
}

// Two mistakes in a long word, one in a short one.
bool Near(size_t distance, size_t length) { return distance <= (length >= 6 ? 2u : length >= 3 ? 1u : 0u); }

// Where a section stands in the file, for people.
std::string PathOf(std::string_view section) {
  if (section == "File") return "the top level";
  if (section == "Metadata") return "metadata";
  if (section == "JobSpec") return "spec";
  if (section == "Layer" || section == "Residual") return "spec.model.layers";
  for (const Key& key : AllKeys())
    if (SectionOf(key) == section && key.section != "File") {
      if (key.section == "Layer") return fmt::format("a {} layer", key.name);
      return fmt::format("{}.{}", PathOf(key.section), key.name);
    }
  return std::string(section);
}

Reading Shape(std::string_view text, bool point_allowed) {
  std::string_view t = text;
  if (!t.empty() && (t[0] == '+' || t[0] == '-')) t.remove_prefix(1);
  size_t digits = 0;
  while (digits < t.size() && std::isdigit(static_cast<unsigned char>(t[digits]))) ++digits;
  if (digits > 1 && t[0] == '0') return {"has a leading zero, which some readers take for octal"};
  const std::string_view rest = t.substr(digits);
  if (rest.empty() && digits > 0) return {};
  if (digits == 1 && t[0] == '0' && (rest[0] == 'x' || rest[0] == 'o' || rest[0] == 'b')) return {"is not decimal"};
  return {point_allowed ? "" : digits > 0 ? "is not an integer" : "is not a number"};
}

}  // namespace

std::vector<const Key*> KeysOf(std::string_view section) {
  std::vector<const Key*> keys;
  for (const Key& key : AllKeys())
    if (key.section == section) keys.push_back(&key);
  return keys;
}

const Key* FindKey(std::string_view section, std::string_view name) {
  for (const Key& key : AllKeys())
    if (key.section == section && key.name == name) return &key;
  return nullptr;
}

const Key* FindField(std::string_view section, std::string_view field) {
  for (const Key& key : AllKeys())
    if (key.section == section && key.field == field) return &key;
  return nullptr;
}

const Descriptor* MessageOf(std::string_view section) {
  return v1::JobSpec::descriptor()->file()->FindMessageTypeByName(std::string(section));
}

const FieldDescriptor* FieldOf(const Key& key) {
  const Descriptor* message = key.section == "File" ? v1::JobSpec::descriptor() : MessageOf(key.section);
  TUTTI_CHECK(message != nullptr, "{}", key.section);
  if (key.field.empty()) return nullptr;
  const FieldDescriptor* field = message->FindFieldByName(std::string(key.field));
  TUTTI_CHECK(field != nullptr, "{}.{}", key.section, key.field);
  return field;
}

std::string_view SectionOf(const Key& key) {
  if (key.section == "File" && key.name == "spec") return "JobSpec";
  const FieldDescriptor* field = FieldOf(key);
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) return "";
  return field->message_type()->name();
}

std::optional<std::string_view> SectionAt(std::string_view path) {
  std::string_view section = "File";
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string_view name = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    if (section == "Layer" && !name.empty() && std::all_of(name.begin(), name.end(), ::isdigit)) continue;
    const Key* key = FindKey(section, name);
    if (key == nullptr || SectionOf(*key).empty()) return std::nullopt;
    section = SectionOf(*key);
  }
  return section;
}

std::vector<std::string> WordsOf(const EnumDescriptor& type) {
  std::vector<std::string> words;
  for (int i = 1; i < type.value_count(); ++i) words.push_back(WordOf(type, type.value(i)->number()));
  return words;
}

std::string WordOf(const EnumDescriptor& type, int number) {
  const auto* value = type.FindValueByNumber(number);
  if (value == nullptr || number == 0) return "";
  // Enumerators are <TYPE_NAME>_<WORD>; the type's name is the zero's without _UNSPECIFIED.
  const size_t prefix = type.value(0)->name().size() - std::string_view("UNSPECIFIED").size();
  std::string word;
  bool upper = false;
  for (char c : value->name().substr(prefix)) {
    if (c == '_') {
      upper = true;
    } else {
      word += upper ? c : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      upper = false;
    }
  }
  return word;
}

std::optional<int> NumberOf(const EnumDescriptor& type, std::string_view word) {
  for (int i = 1; i < type.value_count(); ++i)
    if (WordOf(type, type.value(i)->number()) == word) return type.value(i)->number();
  return std::nullopt;
}

std::string Expected(const Key& key) {
  return TypeText(key) + (key.fallback == kAuto && key.range != "path" ? " or auto" : "");
}

bool InRange(const Key& key, double value) {
  const Interval r = ParseInterval(key.range);
  return std::isfinite(value) && (r.open_low ? value > r.low : value >= r.low) &&
         (r.open_high ? value < r.high : value <= r.high);
}

bool Applies(const Key& key, std::string_view type_word) { return key.when.empty() || HasWord(key.when, type_word); }

std::string WhenText(const Key& key) {
  std::string text(key.when);
  for (size_t at; (at = text.find(' ')) != std::string::npos && text.find(" or ") != at;) text.replace(at, 1, " or ");
  return text;
}

bool HasDefault(const Key& key) {
  return key.fallback != kRequired && key.fallback != kAbsent && key.fallback != kAuto;
}

const Key* NearestKey(std::string_view section, std::string_view word) {
  const std::string plain = Plain(word);
  for (const Key* key : KeysOf(section))
    if (SameWord(*key, plain)) return key;
  const Key* best = nullptr;
  size_t best_distance = std::numeric_limits<size_t>::max();
  if (plain.size() > 64) return nullptr;
  for (const Key* key : KeysOf(section)) {
    const size_t distance = EditDistance(plain, Plain(key->name));
    if (distance < best_distance && Near(distance, std::max(plain.size(), key->name.size())))
      best = key, best_distance = distance;
  }
  return best;
}

std::string Suggest(std::string_view section, std::string_view word) {
  const auto belongs = [&](auto&& matches) -> std::string {
    std::vector<std::string> places;
    for (const Key& key : AllKeys())
      if (key.section != section && matches(key)) {
        const std::string place = PathOf(key.section) + (key.name == word ? "" : fmt::format(" as '{}'", key.name));
        if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
      }
    return places.empty() || places.size() > 4 ? "" : fmt::format("; it belongs to {}", fmt::join(places, " or "));
  };
  const std::string plain = Plain(word);
  for (const Key* key : KeysOf(section))
    if (SameWord(*key, plain)) return fmt::format("; did you mean '{}'?", key->name);
  if (auto text = belongs([&](const Key& key) { return key.name == word; }); !text.empty()) return text;
  if (const Key* key = NearestKey(section, word)) return fmt::format("; did you mean '{}'?", key->name);
  return belongs([&](const Key& key) { return SameWord(key, plain); });
}

std::string NearestWord(std::string_view word, const std::vector<std::string>& words) {
  const std::string plain = Plain(word);
  if (plain.size() > 64) return "";
  std::string best;
  size_t best_score = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : words) {
    const std::string other = Plain(candidate);
    const size_t distance = EditDistance(plain, other);
    const size_t score = 2 * distance + (plain.size() == other.size() ? 0 : 1);  // of two as near, the one as long
    if (score < best_score && Near(distance, std::max(plain.size(), other.size())))
      best = candidate, best_score = score;
  }
  return best;
}

Reading ReadInt(std::string_view text, int64_t* out) {
  if (auto shape = Shape(text, false); !shape.ok()) return shape;
  if (text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc::result_out_of_range) return {"is too large"};
  return {error == std::errc() && end == text.data() + text.size() ? "" : "is not an integer"};
}

Reading ReadUint(std::string_view text, uint64_t* out) {
  if (auto shape = Shape(text, false); !shape.ok()) return shape;
  if (text[0] == '+') text.remove_prefix(1);
  if (text[0] == '-') return {"is negative"};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc::result_out_of_range) return {"is too large"};
  return {error == std::errc() && end == text.data() + text.size() ? "" : "is not an integer"};
}

Reading ReadDouble(std::string_view text, double* out) {
  if (auto shape = Shape(text, true); !shape.ok()) return shape;
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  // from_chars also takes "inf" and "nan", which have no meaning in a job.
  const bool numeric = !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string_view::npos;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (!numeric || error == std::errc::invalid_argument || end != text.data() + text.size())
    return {"is not a finite decimal number"};
  return {error == std::errc() ? "" : "is outside what a double can hold"};
}

Reading ReadBool(std::string_view text, bool* out) {
  if (text != "true" && text != "false") return {"is neither true nor false"};
  *out = text == "true";
  return {};
}

}  // namespace tutti::schema
