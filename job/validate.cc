#include "job/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "job/schema.h"

namespace tutti {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using schema::Key;

constexpr int kMaxLayers = 10'000;
constexpr int kMaxResidualDepth = 8;
constexpr size_t kMaxTextBytes = 4096;

class ValueChecker {
 public:
  void Section(const std::string& path, std::string_view section, const Message& message) {
    const std::string type = TypeWord(message);
    for (const Key* key : schema::KeysOf(section)) Value(path + "." + std::string(key->name), *key, type, message);
  }

  void Layers(const std::string& path, const google::protobuf::RepeatedPtrField<v1::Layer>& layers, int depth) {
    if (layers.empty()) Add(path, "no layers; expected at least one");
    if (depth > kMaxResidualDepth)
      return Add(path, fmt::format("residual blocks nested deeper than {}", kMaxResidualDepth));
    for (int i = 0; i < layers.size(); ++i) {
      const std::string item = fmt::format("{}.{}", path, i);
      if (++layers_ > kMaxLayers) return Add(item, fmt::format("more than {} layers", kMaxLayers));
      const FieldDescriptor* field =
          layers[i].GetReflection()->GetOneofFieldDescriptor(layers[i], layers[i].GetDescriptor()->oneof_decl(0));
      if (field == nullptr) {
        Add(item, "a layer of no kind that this version knows");
      } else if (layers[i].has_activation()) {
        if (!v1::ActivationKind_IsValid(layers[i].activation().kind()) || layers[i].activation().kind() == 0) {
          Add(item, "an activation of no kind that this version knows");
        }
      } else if (layers[i].has_residual()) {
        Layers(item + ".residual.layers", layers[i].residual().layers(), depth + 1);
      } else {
        const Key* key = schema::FindField("Layer", field->name());
        Section(fmt::format("{}.{}", item, key->name), field->message_type()->name(),
                layers[i].GetReflection()->GetMessage(layers[i], field));
      }
    }
  }

  std::vector<SpecIssue> issues;

 private:
  void Add(std::string path, std::string message) { issues.push_back({std::move(path), std::move(message)}); }

  static std::string TypeWord(const Message& message) {
    const FieldDescriptor* kind = message.GetDescriptor()->FindFieldByName("kind");
    if (kind == nullptr || kind->enum_type() == nullptr) return "";
    return schema::WordOf(*kind->enum_type(), message.GetReflection()->GetEnumValue(message, kind));
  }

  void Value(const std::string& path, const Key& key, const std::string& type, const Message& message) {
    const FieldDescriptor* field = schema::FieldOf(key);
    const auto& reflection = *message.GetReflection();
    if (field->is_map() || (field->is_repeated() && field->message_type() != nullptr)) {
      if (field->name() == "layers") Layers(path, dynamic_cast<const v1::Model&>(message).layers(), 0);
      return;  // labels have rules of their own
    }
    if (field->message_type() != nullptr) {
      if (reflection.HasField(message, field))
        return Section(path, field->message_type()->name(), reflection.GetMessage(message, field));
      if (key.fallback != schema::kAbsent) Add(path, fmt::format("missing; expected {}", schema::Expected(key)));
      return;
    }
    if (!schema::Applies(key, type)) {
      if (reflection.HasField(message, field))
        Add(path, fmt::format("has no meaning with type {}; expected only with {}", type, schema::WhenText(key)));
      return;
    }
    if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i)
        Number(path, key, reflection.GetRepeatedInt32(message, field, i));
      return;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Number(path, key, reflection.GetInt32(message, field));
      case FieldDescriptor::CPPTYPE_INT64:
        return Number(path, key, static_cast<double>(reflection.GetInt64(message, field)));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Number(path, key, reflection.GetDouble(message, field));
      case FieldDescriptor::CPPTYPE_ENUM:
        if (schema::WordOf(*field->enum_type(), reflection.GetEnumValue(message, field)).empty()) {
          Add(path, fmt::format("not set to a known word; expected {}", schema::Expected(key)));
        }
        return;
      case FieldDescriptor::CPPTYPE_STRING:
        return Text(path, key, reflection.GetString(message, field));
      default:
        return;  // every value of a bool or of an unsigned integer is legal
    }
  }

  void Number(const std::string& path, const Key& key, double value) {
    if (key.fallback == schema::kAbsent && value == 0) return;
    if (!schema::InRange(key, value)) Add(path, fmt::format("found {}; expected {}", value, schema::Expected(key)));
  }

  void Text(const std::string& path, const Key& key, const std::string& value) {
    if (value.empty()) {
      if (key.fallback != schema::kAbsent) Add(path, fmt::format("empty; expected {}", schema::Expected(key)));
    } else if (value.size() > kMaxTextBytes) {
      Add(path, fmt::format("{} bytes long; expected at most {}", value.size(), kMaxTextBytes));
    } else if (value.find('\0') != std::string::npos) {
      Add(path, "contains a zero byte");
    } else if (key.range == "path" && value[0] != '/') {
      Add(path, fmt::format("'{}' is not an absolute path", value));
    }
  }

  int layers_ = 0;
};

bool IsName(std::string_view text, std::string_view extra) {
  const auto inner = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || extra.find(c) != std::string_view::npos;
  };
  const auto edge = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !text.empty() && text.size() <= 63 && edge(text.front()) && edge(text.back()) &&
         std::all_of(text.begin(), text.end(), inner);
}

// Labels also take capitals, so that values such as "ResNet" can be told apart.
bool IsLabel(std::string_view text, bool empty_allowed) {
  const auto inner = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' || c == '/';
  };
  return text.size() <= 63 && (empty_allowed || !text.empty()) && std::all_of(text.begin(), text.end(), inner);
}

// "96, 104": the multiples of `unit` around `value`.
std::string NearestMultiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{}, {}", below, below + unit);
}

// The divisors of `whole` around `value`.
std::string NearestDivisors(int64_t value, int64_t whole) {
  std::vector<int64_t> near;
  for (int64_t d = std::min(value, whole); d >= 1; --d)
    if (whole % d == 0) {
      near.push_back(d);
      break;
    }
  for (int64_t d = value; d <= whole; ++d)
    if (whole % d == 0) {
      near.push_back(d);
      break;
    }
  return fmt::format("{}", fmt::join(near, ", "));
}

class CombinationChecker {
 public:
  CombinationChecker(const v1::JobSpec& spec, const std::function<bool(const std::string&)>& usable)
      : spec_(spec), usable_(usable) {}

  std::vector<SpecIssue> Run() {
    Names();
    BatchSplit();
    OptimizerRules();
    Duration();
    Checkpoints();
    PoolPadding("spec.model.layers", spec_.model().layers(), 0);
    return std::move(issues_);
  }

 private:
  bool Usable(std::initializer_list<const char*> paths) const {
    return std::all_of(paths.begin(), paths.end(), [&](const char* path) { return usable_(path); });
  }
  void Add(std::string path, std::string message) { issues_.push_back({std::move(path), std::move(message)}); }

  void Names() {
    const auto& metadata = spec_.metadata();
    if (usable_("metadata.name") && !IsName(metadata.name(), "-.")) {
      Add("metadata.name",
          fmt::format("found '{:.80}'; expected 1 to 63 of a-z, 0-9, '-', '.', with a letter or digit at both ends",
                      metadata.name()));
    }
    if (metadata.labels_size() > 64)
      Add("metadata.labels", fmt::format("{} labels; expected at most 64", metadata.labels_size()));
    for (const auto& [name, value] : metadata.labels()) {
      if (IsLabel(name, false) && IsLabel(value, true)) continue;
      Add("metadata.labels." + name,
          fmt::format("found '{:.80}: {:.80}'; expected at most 63 each of letters, digits, '-', '.', '_', '/'", name,
                      value));
    }
  }

  std::string AllNumbers() const {
    return fmt::format("batch.global {}, numerics.shards {}, batch.micro {}, resources.ranks {}",
                       spec_.batch().global(), spec_.numerics().shards(),
                       spec_.batch().micro() > 0 ? fmt::to_string(spec_.batch().micro()) : "auto",
                       spec_.resources().ranks());
  }

  void BatchSplit() {
    const int64_t global = spec_.batch().global(), shards = spec_.numerics().shards(), micro = spec_.batch().micro();
    const int64_t ranks = spec_.resources().ranks();
    if (Usable({"spec.resources.ranks", "spec.numerics.shards"}) && ranks > shards) {
      Add("spec.resources.ranks",
          fmt::format(
              "{} ranks need at least as many numerics.shards, found {} ({}); nearest valid: ranks {} or shards {}",
              ranks, shards, AllNumbers(), shards, ranks));
    }
    if (!Usable({"spec.batch.global", "spec.numerics.shards"}) || shards <= 0) return;
    if (global % shards != 0) {
      return Add("spec.batch.global", fmt::format("{} is not divisible by numerics.shards {} ({}); nearest valid: {}",
                                                  global, shards, AllNumbers(), NearestMultiples(global, shards)));
    }
    if (!Usable({"spec.batch.micro"}) || micro <= 0) return;
    if (const int64_t per_shard = global / shards; per_shard % micro != 0) {
      Add("spec.batch.micro", fmt::format("{} does not divide the {} samples of a shard ({}); nearest valid: {}", micro,
                                          per_shard, AllNumbers(), NearestDivisors(micro, per_shard)));
    }
  }

  void OptimizerRules() {
    const auto& optimizer = spec_.optimizer();
    if (Usable({"spec.optimizer.momentum", "spec.optimizer.nesterov"}) && optimizer.nesterov() &&
        optimizer.momentum() <= 0) {
      Add("spec.optimizer.nesterov",
          fmt::format("true needs optimizer.momentum above 0, found {}", optimizer.momentum()));
    }
  }

  void Duration() {
    const auto& train = spec_.train();
    if (Usable({"spec.train.epochs", "spec.train.steps"})) {
      if (train.epochs() > 0 && train.steps() > 0) {
        Add("spec.train.steps", fmt::format("both steps ({}) and epochs ({}) are given; expected one of them",
                                            train.steps(), train.epochs()));
      } else if (train.epochs() <= 0 && train.steps() <= 0) {
        Add("spec.train", "neither epochs nor steps is given; expected one of them");
      }
    }
    if (spec_.data().has_eval() || !usable_("spec.data.eval")) return;
    if (train.evaluate_every_steps() > 0)
      Add("spec.train.evaluateEverySteps", "there is nothing to evaluate on; expected data.eval");
    if (train.evaluate_at_end()) Add("spec.train.evaluateAtEnd", "there is nothing to evaluate on; expected data.eval");
  }

  void Checkpoints() {
    const auto& checkpoint = spec_.checkpoint();
    if (!Usable({"spec.checkpoint.resume", "spec.checkpoint.resumeFrom"})) return;
    const bool by_path = checkpoint.resume() == v1::RESUME_MODE_PATH;
    if (by_path && checkpoint.resume_from().empty()) Add("spec.checkpoint.resume", "path needs checkpoint.resumeFrom");
    if (!by_path && !checkpoint.resume_from().empty())
      Add("spec.checkpoint.resumeFrom", "has no effect; expected only with resume: path");
  }

  void PoolPadding(const std::string& path, const google::protobuf::RepeatedPtrField<v1::Layer>& layers, int depth) {
    if (depth > kMaxResidualDepth) return;
    for (int i = 0; i < layers.size(); ++i) {
      const v1::Layer& layer = layers[i];
      const std::string item = fmt::format("{}.{}", path, i);
      if (layer.has_residual()) PoolPadding(item + ".residual.layers", layer.residual().layers(), depth + 1);
      if (!layer.has_max_pool() && !layer.has_avg_pool()) continue;
      const v1::Pool& pool = layer.has_max_pool() ? layer.max_pool() : layer.avg_pool();
      const std::string at = item + (layer.has_max_pool() ? ".maxPool" : ".avgPool");
      if (usable_(at + ".padding") && usable_(at + ".size") && pool.padding() > pool.size() / 2) {
        Add(at + ".padding", fmt::format("{} is more than half of size {}; expected at most {}", pool.padding(),
                                         pool.size(), pool.size() / 2));
      }
    }
  }

  const v1::JobSpec& spec_;
  const std::function<bool(const std::string&)>& usable_;
  std::vector<SpecIssue> issues_;
};

}  // namespace

std::vector<SpecIssue> CheckValues(const v1::JobSpec& spec) {
  ValueChecker checker;
  checker.Section("metadata", "Metadata", spec.metadata());
  checker.Section("spec", "JobSpec", spec);
  return std::move(checker.issues);
}

std::vector<SpecIssue> CheckCombinations(const v1::JobSpec& spec,
                                         const std::function<bool(const std::string&)>& usable) {
  return CombinationChecker(spec, usable).Run();
}

Status ValidateJobSpec(const v1::JobSpec& spec) {
  std::vector<SpecIssue> issues = CheckValues(spec);
  const auto usable = [&, values = issues](const std::string& path) {
    return std::none_of(values.begin(), values.end(), [&](const SpecIssue& issue) { return issue.path == path; });
  };
  for (SpecIssue& issue : CheckCombinations(spec, usable)) issues.push_back(std::move(issue));
  if (issues.empty()) return OkStatus();
  std::string text;
  for (const SpecIssue& issue : issues)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", issue.path, issue.message);
  return InvalidArgument("{}", text);
}

}  // namespace tutti
