// The safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes back to back
// (https://github.com/huggingface/safetensors). Strict: what is not exactly the format is refused, before anything
// large is allocated.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 64 << 20;
inline constexpr int64_t kMaxSafetensorsTensors = 1 << 20;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // in the data section

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    return n;
  }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // by `begin`
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Bytes of one element; 0 for a dtype that the format does not have.
int64_t SafetensorsElementBytes(std::string_view dtype);

// `json` is the header's text; `data_bytes` what follows it. DATA_LOSS or INVALID_ARGUMENT with the reason: not JSON,
// duplicate keys, unknown fields or dtypes, sizes that do not match dtype and shape, offsets that overlap, leave a hole
// or leave the file.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes);

class SafetensorsFile {
 public:
  // Reads and checks the header only. Errors name the file.
  static StatusOr<SafetensorsFile> Open(const std::string& path);
  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  const SafetensorsEntry* Find(std::string_view name) const;
  // `out` has entry.elements() floats. INVALID_ARGUMENT when it is not F32.
  Status ReadF32(const SafetensorsEntry& entry, std::span<float> out) const;

 private:
  UniqueFd fd_;
  std::string path_;
  SafetensorsHeader header_;
  int64_t data_offset_ = 0;
};

// Writes a new file front to back: the header first, then the tensors' bytes in the order of `entries`.
class SafetensorsWriter {
 public:
  // Fills begin and end of `entries`. ALREADY_EXISTS when the file is there.
  static StatusOr<SafetensorsWriter> Create(const std::string& path, std::vector<SafetensorsEntry> entries,
                                            const std::map<std::string, std::string>& metadata);
  Status Append(std::span<const std::byte> bytes);
  // fsync. Crashes when fewer or more bytes were appended than the header says.
  Status Finish();
  int64_t bytes() const { return bytes_; }              // of the whole file
  uint64_t digest() const { return digest_.Digest(); }  // XXH3 of the whole file

 private:
  Status Write(std::string_view bytes);
  UniqueFd fd_;
  std::string path_;
  int64_t bytes_ = 0, expected_bytes_ = 0;
  Xxh3Stream digest_;
};

// Names as a foreign file has them -> canonical ones. A wrapper's prefix ("module.", "_orig_mod.") is cut only where
// every name starts with it, and only at the front: "adapter.module.w" stays. INVALID_ARGUMENT with both lists where
// some names have it and others not.
StatusOr<std::vector<std::string>> CanonicalNames(const std::vector<std::string>& names);

}  // namespace tutti
