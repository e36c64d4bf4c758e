// The IDX format: two zero bytes, a type code, the number of axes, each axis as a big-endian uint32, then the elements,
// big-endian, last axis fastest (the MNIST database's file format).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti {

enum class IdxType : uint8_t { kU8 = 0x08, kI8 = 0x09, kI16 = 0x0B, kI32 = 0x0C, kF32 = 0x0D, kF64 = 0x0E };
int64_t SizeOf(IdxType type);
std::string_view NameOf(IdxType type);

struct IdxHeader {
  IdxType type = IdxType::kU8;
  std::vector<int64_t> dims;  // each >= 1
  int64_t header_bytes = 0;
  int64_t payload_bytes = 0;  // product of dims x element size
};

struct IdxArray {
  IdxHeader header;
  std::string bytes;  // the file's content, decompressed
  std::string_view payload() const { return std::string_view(bytes).substr(static_cast<size_t>(header.header_bytes)); }
};

// Only the first bytes of the file are read. INVALID_ARGUMENT: not IDX, or axes that no file can have.
StatusOr<IdxHeader> ReadIdxHeader(const std::string& path);
// The whole file, plain or gzip, exactly as long as its header says: DATA_LOSS when shorter, INVALID_ARGUMENT when
// longer.
StatusOr<IdxArray> ReadIdx(const std::string& path);
// The same from the file's bytes; `path` is for messages.
StatusOr<IdxArray> ParseIdx(std::string raw, const std::string& path);

}  // namespace tutti
