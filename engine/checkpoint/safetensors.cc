#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 2> kWrapperPrefixes = {"module.", "_orig_mod."};
constexpr int64_t kLengthBytes = 8;

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return text.size() > 2000 ? text.substr(0, 2000) + "..." : text;
}

}  // namespace

StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  TUTTI_ASSIGN_OR_RETURN(file.fd_, OpenFile(path));
  TUTTI_ASSIGN_OR_RETURN(const int64_t size, FileSize(path));
  if (size < kLengthBytes)
    return DataLoss("{}: truncated: a safetensors file has at least 8 bytes, found {}", path, size);
  uint64_t length = 0;
  TUTTI_RETURN_IF_ERROR(ReadAt(file.fd_.get(), &length, sizeof length, 0, path));
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return InvalidArgument("{}: the header's length is {}, at most {} is read", path, length,
                           kMaxSafetensorsHeaderBytes);
  }
  file.data_offset_ = kLengthBytes + static_cast<int64_t>(length);
  if (file.data_offset_ > size)
    return DataLoss("{}: truncated: the header ends at byte {}, the file has {}", path, file.data_offset_, size);
  std::string json(length, '\0');
  TUTTI_RETURN_IF_ERROR(ReadAt(file.fd_.get(), json.data(), json.size(), kLengthBytes, path));
  auto header = ParseSafetensorsHeader(json, size - file.data_offset_);
  if (!header.ok()) return Annotate(header.status(), path);
  file.header_ = *std::move(header);
  return file;
}

const SafetensorsEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found =
      std::find_if(header_.entries.begin(), header_.entries.end(), [&](const auto& e) { return e.name == name; });
  return found == header_.entries.end() ? nullptr : &*found;
}

Status SafetensorsFile::ReadF32(const SafetensorsEntry& entry, std::span<float> out) const {
  if (entry.dtype != "F32") return InvalidArgument("{}: {} is {}, expected F32", path_, entry.name, entry.dtype);
  TUTTI_CHECK(static_cast<int64_t>(out.size()) == entry.elements(), "{}", entry.name);
  return ReadAt(fd_.get(), out.data(), out.size_bytes(), data_offset_ + entry.begin, path_);
}

StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<SafetensorsEntry> entries,
                                                      const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little);
  nlohmann::json json = nlohmann::json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t next = 0;
  for (SafetensorsEntry& entry : entries) {
    TUTTI_CHECK(!json.contains(entry.name) && entry.name != "__metadata__", "{} twice", entry.name);
    entry.begin = next;
    entry.end = next += entry.elements() * SafetensorsElementBytes(entry.dtype);
    json[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts 8-byte aligned, as the format asks
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeaderBytes)
    return ResourceExhausted("{}: the header has {} bytes", path, text.size());
  SafetensorsWriter writer;
  writer.path_ = path;
  TUTTI_ASSIGN_OR_RETURN(writer.fd_, CreateFile(path));
  const uint64_t length = text.size();
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  writer.expected_bytes_ = static_cast<int64_t>(head.size() + text.size()) + next;
  TUTTI_RETURN_IF_ERROR(writer.Write(head + text));
  return writer;
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  return Write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Status SafetensorsWriter::Write(std::string_view bytes) {
  bytes_ += static_cast<int64_t>(bytes.size());
  TUTTI_CHECK(bytes_ <= expected_bytes_, "{}", path_);
  TUTTI_RETURN_IF_ERROR(Annotate(WriteAll(fd_.get(), bytes), path_));
  digest_.Update(bytes.data(), bytes.size());
  return OkStatus();
}

Status SafetensorsWriter::Finish() {
  TUTTI_CHECK(bytes_ == expected_bytes_, "{}: {} of {} bytes", path_, bytes_, expected_bytes_);
  return Fsync(fd_.get(), path_);
}

StatusOr<std::vector<std::string>> CanonicalNames(const std::vector<std::string>& names) {
  std::vector<std::string> result = names;
  for (bool stripped = true; stripped && !result.empty();) {
    stripped = false;
    for (const std::string_view prefix : kWrapperPrefixes) {
      std::vector<std::string> with, without;
      for (const std::string& name : result) (name.starts_with(prefix) ? with : without).push_back(name);
      if (with.empty()) continue;
      if (!without.empty()) {
        return InvalidArgument("some names start with '{}' and others do not; with: {}; without: {}", prefix,
                               Listed(with), Listed(without));
      }
      for (std::string& name : result) name.erase(0, prefix.size());
      stripped = true;
    }
  }
  return result;
}

}  // namespace tutti
