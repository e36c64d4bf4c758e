#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/checkpoint/safetensors.h"

namespace tutti {
namespace {

constexpr size_t kMaxAxes = 16;
constexpr size_t kMaxNameBytes = 4096;

// Receives the JSON tokens of a header. The shape of the document is fixed and shallow, so a state per depth is enough:
// { name: { "dtype": s, "shape": [n...], "data_offsets": [n, n] }, "__metadata__": { key: s } }.
class HeaderSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool null() override { return Fail("null is not allowed"); }
  bool boolean(bool) override { return Fail("a boolean is not allowed"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Fail(fmt::format("{} is not an integer", text));
  }
  bool binary(binary_t&) override { return Fail("binary is not allowed"); }
  bool number_integer(number_integer_t value) override { return Fail(fmt::format("{} is negative", value)); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return Fail(fmt::format("the number {} is not expected", value));
    if (value > uint64_t{1} << 62) return Fail(fmt::format("{}: the number {} is too large", entry_.name, value));
    std::vector<int64_t>& list = field_ == "shape" ? entry_.shape : offsets_;
    if (list.size() >= kMaxAxes)
      return Fail(fmt::format("{}: '{}' has more than {} numbers", entry_.name, field_, kMaxAxes));
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      if (!header.metadata.emplace(field_, value).second)
        return Fail(fmt::format("duplicate key '{}' in __metadata__", field_));
      return true;
    }
    if (depth_ == 2 && !in_array_ && field_ == "dtype") {
      entry_.dtype = value;
      return true;
    }
    return Fail(fmt::format("the string '{}' is not expected", value.substr(0, 80)));
  }

  bool start_object(size_t) override {
    if (in_array_ || depth_ >= 2) return Fail("objects are nested too deeply");
    if (++depth_ == 2 && !in_metadata_) {
      offsets_.clear();
      fields_.clear();
    }
    return true;
  }

  bool key(string_t& name) override {
    if (name.size() > kMaxNameBytes) return Fail(fmt::format("a name has more than {} bytes", kMaxNameBytes));
    if (depth_ == 1) {
      if (!names_.insert(name).second) return Fail(fmt::format("duplicate tensor '{}'", name));
      if (std::cmp_greater(names_.size(), kMaxSafetensorsTensors)) return Fail("too many tensors");
      in_metadata_ = name == "__metadata__";
      entry_ = SafetensorsEntry{.name = name, .dtype = "", .shape = {}};
      return true;
    }
    field_ = name;
    if (in_metadata_) return true;
    if (name != "dtype" && name != "shape" && name != "data_offsets")
      return Fail(fmt::format("{}: unknown key '{}'", entry_.name, name));
    if (!fields_.insert(name).second) return Fail(fmt::format("{}: duplicate key '{}'", entry_.name, name));
    return true;
  }

  bool end_object() override {
    if (depth_-- == 2 && !in_metadata_) {
      if (fields_.size() != 3 || offsets_.size() != 2) {
        return Fail(fmt::format("{}: needs dtype, shape and two data_offsets", entry_.name));
      }
      entry_.begin = offsets_[0], entry_.end = offsets_[1];
      header.entries.push_back(std::move(entry_));
    }
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == "dtype") return Fail("an array is not expected");
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(fmt::format("not JSON at byte {}", at));
  }

 private:
  bool Fail(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }

  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
  std::set<std::string> names_, fields_;
  std::string field_;
  int depth_ = 0;
  bool in_array_ = false, in_metadata_ = false;
};

Status CheckEntry(const SafetensorsEntry& entry) {
  int64_t bytes = SafetensorsElementBytes(entry.dtype);
  if (bytes == 0) return InvalidArgument("{}: unknown dtype '{}'", entry.name, entry.dtype.substr(0, 80));
  for (int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return InvalidArgument("{}: the shape overflows", entry.name);
  }
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    return DataLoss("{}: dtype and shape need {} bytes, data_offsets [{}, {}) say otherwise", entry.name, bytes,
                    entry.begin, entry.end);
  }
  return OkStatus();
}

}  // namespace

int64_t SafetensorsElementBytes(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 14> kTypes = {{{"BOOL", 1},
                                                                                   {"U8", 1},
                                                                                   {"I8", 1},
                                                                                   {"F8_E5M2", 1},
                                                                                   {"F8_E4M3", 1},
                                                                                   {"I16", 2},
                                                                                   {"U16", 2},
                                                                                   {"F16", 2},
                                                                                   {"BF16", 2},
                                                                                   {"I32", 4},
                                                                                   {"U32", 4},
                                                                                   {"F32", 4},
                                                                                   {"F64", 8},
                                                                                   {"I64", 8}}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return dtype == "U64" ? 8 : 0;
}

StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes) {
  if (json.empty() || json.front() != '{') return DataLoss("the header does not start with '{{'");
  HeaderSax sax;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) {
    return DataLoss("bad header: {}", sax.error.empty() ? "not JSON" : sax.error);
  }
  SafetensorsHeader header = std::move(sax.header);
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t next = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    TUTTI_RETURN_IF_ERROR(CheckEntry(entry));
    if (entry.begin != next) {
      return DataLoss("{}: starts at data byte {}, expected {}: tensors {}", entry.name, entry.begin, next,
                      entry.begin < next ? "overlap" : "leave a hole");
    }
    next = entry.end;
  }
  if (next != data_bytes)
    return DataLoss("the tensors need {} bytes after the header, the file has {}", next, data_bytes);
  return header;
}

}  // namespace tutti
