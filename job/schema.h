// The one table of the job file: every key with its section, range, default, words and meaning. The reader, --set, the
// effective config, the JSON Schema, `tutti explain`, suggestions and validation are driven by it. Types and
// enumeration words come from the messages of proto/tutti/v1/job.proto by reflection. No YAML here.
#pragma once

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::schema {

// `fallback` of a key that must be given, and of one that may stay away without a default value.
inline constexpr std::string_view kRequired = "<required>";
inline constexpr std::string_view kAbsent = "<absent>";
inline constexpr std::string_view kAuto = "auto";  // resolved once from the other values, see job/resolve.cc

struct Key {
  std::string_view
      section;  // message of job.proto ("Optimizer"); "File" and "Layer" are the two that are not a plain message
  std::string_view name;      // in the job file
  std::string_view field;     // of the message; for an activation layer "activation"
  std::string_view fallback;  // default as text, kRequired, kAbsent or kAuto
  std::string_view range;     // "[1, 64]", "(0, 1)"; "path" for file names; empty: any
  std::string_view when;      // words of `type` of the same section with which the key has a meaning; empty: always
  std::string_view synonyms;  // what people write elsewhere, for suggestions
  std::string_view doc;
};

std::span<const Key> AllKeys();
std::vector<const Key*> KeysOf(std::string_view section);
const Key* FindKey(std::string_view section, std::string_view name);
const Key* FindField(std::string_view section, std::string_view field);  // by field of the message

// The message of a section; nullptr for "File".
const google::protobuf::Descriptor* MessageOf(std::string_view section);
const google::protobuf::FieldDescriptor* FieldOf(const Key& key);  // nullptr in "File"
// The section that a key opens ("Optimizer"), or "" for a value. Lists of layers open "Layer".
std::string_view SectionOf(const Key& key);
// "spec.optimizer" -> "Optimizer"; "" -> "File"; list positions ("spec.model.layers.3.dense") are skipped. nullopt: no
// such section.
std::optional<std::string_view> SectionAt(std::string_view path);

// SOFTMAX_CROSS_ENTROPY <-> "softmaxCrossEntropy".
std::vector<std::string> WordsOf(const google::protobuf::EnumDescriptor& type);
std::string WordOf(const google::protobuf::EnumDescriptor& type, int number);  // "" when there is none
std::optional<int> NumberOf(const google::protobuf::EnumDescriptor& type, std::string_view word);

// "an integer in [1, 64] or auto", "one of sgd, adam, adamw", "true or false", "a section with the keys ...".
std::string Expected(const Key& key);
bool InRange(const Key& key, double value);
bool Applies(const Key& key, std::string_view type_word);  // `when` holds
std::string WhenText(const Key& key);                      // "adam or adamw"
// A fallback that stands for a value of its own: not required, absent or auto.
bool HasDefault(const Key& key);

// "; did you mean 'learningRate'?", "; it belongs to spec.train", or "" where nothing is near. Knows other spellings
// (snake_case, kebab-case), synonyms, small typing errors, and keys of other sections.
std::string Suggest(std::string_view section, std::string_view word);
// The key of this section that Suggest means, if it means one: its absence need not be reported as well.
const Key* NearestKey(std::string_view section, std::string_view word);
// The nearest of `words`, or "".
std::string NearestWord(std::string_view word, const std::vector<std::string>& words);

// Strict scalar readers. On failure: what is wrong, in words ("has a leading zero"), never a partial value.
struct Reading {
  std::string problem;  // empty: ok
  bool ok() const { return problem.empty(); }
};
Reading ReadInt(std::string_view text, int64_t* out);
Reading ReadUint(std::string_view text, uint64_t* out);
Reading ReadDouble(std::string_view text, double* out);
Reading ReadBool(std::string_view text, bool* out);

}  // namespace tutti::schema
