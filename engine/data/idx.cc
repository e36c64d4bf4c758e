#include "engine/data/idx.h"

#include <zlib.h>

#include <algorithm>

#include "base/files.h"

namespace tutti {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 36;
constexpr size_t kMaxAxes = 4;
constexpr size_t kMaxHeaderBytes = 4 + 4 * kMaxAxes;
constexpr int64_t kMaxDeflateRatio = 1032;  // deflate cannot do better (zlib's technical notes)

bool IsGzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// At most `want` bytes of the decompressed stream; fewer when the input ends before. Members may follow each other (RFC
// 1952).
StatusOr<std::string> Inflate(std::string_view input, size_t want, const std::string& path) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return ResourceExhausted("{}: no memory to decompress", path);
  std::string out(want, '\0');
  size_t in_used = 0, out_used = 0;
  int result = Z_OK;
  while (out_used < want && in_used < input.size()) {
    const size_t in_now = std::min<size_t>(input.size() - in_used, 1 << 30),
                 out_now = std::min<size_t>(want - out_used, 1 << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data() + in_used));
    stream.avail_in = static_cast<uInt>(in_now);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + out_used);
    stream.avail_out = static_cast<uInt>(out_now);
    result = inflate(&stream, Z_NO_FLUSH);
    in_used += in_now - stream.avail_in;
    out_used += out_now - stream.avail_out;
    if (result == Z_STREAM_END) {
      if (!IsGzip(input.substr(in_used)) || inflateReset(&stream) != Z_OK) break;
    } else if (result != Z_OK) {
      break;
    }
  }
  const std::string reason = stream.msg != nullptr ? stream.msg : "bad stream";
  inflateEnd(&stream);
  if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
    return DataLoss("{}: damaged gzip data at byte {}: {}", path, in_used, reason);
  }
  out.resize(out_used);
  return out;
}

std::string DimsText(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t dim : dims) text += fmt::format("{}{}", text.empty() ? "" : " x ", dim);
  return text;
}

StatusOr<IdxHeader> ParseHeader(std::string_view prefix, const std::string& path) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(prefix[i]); };
  if (prefix.size() < 4)
    return DataLoss("{}: truncated: an IDX file has at least 8 bytes, found {}", path, prefix.size());
  if (byte(0) != 0 || byte(1) != 0) {
    return InvalidArgument("{}: not an IDX file: bytes 0 and 1 must be zero, found 0x{:02x} 0x{:02x}", path, byte(0),
                           byte(1));
  }
  IdxHeader header;
  header.type = static_cast<IdxType>(byte(2));
  if (SizeOf(header.type) == 0) {
    return InvalidArgument(
        "{}: not an IDX file: byte 2 is the element type, 0x08, 0x09 or 0x0b to 0x0e, found 0x{:02x}", path, byte(2));
  }
  const size_t axes = byte(3);
  if (axes < 1 || axes > kMaxAxes) {
    return InvalidArgument("{}: byte 3 is the number of axes, 1 to {}, found {}", path, kMaxAxes, axes);
  }
  header.header_bytes = static_cast<int64_t>(4 + 4 * axes);
  if (static_cast<int64_t>(prefix.size()) < header.header_bytes) {
    return DataLoss("{}: truncated: the header of {} axes has {} bytes, found {}", path, axes, header.header_bytes,
                    prefix.size());
  }
  header.payload_bytes = SizeOf(header.type);
  for (size_t axis = 0; axis < axes; ++axis) {
    uint32_t dim = 0;
    for (size_t i = 0; i < 4; ++i) dim = dim << 8 | byte(4 + 4 * axis + i);
    header.dims.push_back(dim);
    if (dim == 0)
      return InvalidArgument("{}: axis {} has length 0 (offset {}), expected at least 1", path, axis, 4 + 4 * axis);
    if (__builtin_mul_overflow(header.payload_bytes, int64_t{dim}, &header.payload_bytes) ||
        header.payload_bytes > kMaxFileBytes) {
      return InvalidArgument("{}: the header says {} elements, more than {} bytes", path, DimsText(header.dims),
                             kMaxFileBytes);
    }
  }
  return header;
}

Status Truncated(const IdxHeader& header, int64_t found, const std::string& path) {
  const int64_t row_bytes = header.payload_bytes / header.dims[0];
  return DataLoss("{}: truncated: {} elements need {} bytes after the header, found {}: row {} of {} is incomplete",
                  path, DimsText(header.dims), header.payload_bytes, found, found / row_bytes, header.dims[0]);
}

}  // namespace

int64_t SizeOf(IdxType type) {
  switch (type) {
    case IdxType::kU8:
    case IdxType::kI8:
      return 1;
    case IdxType::kI16:
      return 2;
    case IdxType::kI32:
    case IdxType::kF32:
      return 4;
    case IdxType::kF64:
      return 8;
  }
  return 0;
}

std::string_view NameOf(IdxType type) {
  switch (type) {
    case IdxType::kU8:
      return "uint8";
    case IdxType::kI8:
      return "int8";
    case IdxType::kI16:
      return "int16";
    case IdxType::kI32:
      return "int32";
    case IdxType::kF32:
      return "float32";
    case IdxType::kF64:
      return "float64";
  }
  return "unknown";
}

StatusOr<IdxHeader> ReadIdxHeader(const std::string& path) {
  TUTTI_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path));
  TUTTI_ASSIGN_OR_RETURN(const int64_t size, FileSize(path));
  std::string prefix(static_cast<size_t>(std::min<int64_t>(size, 1 << 12)),
                     '\0');  // a gzip header has a name of at most a path
  TUTTI_RETURN_IF_ERROR(ReadAt(fd.get(), prefix.data(), prefix.size(), 0, path));
  if (!IsGzip(prefix)) return ParseHeader(prefix, path);
  TUTTI_ASSIGN_OR_RETURN(const std::string start, Inflate(prefix, kMaxHeaderBytes, path));
  return ParseHeader(start, path);
}

StatusOr<IdxArray> ReadIdx(const std::string& path) {
  auto raw = ReadFile(path, kMaxFileBytes);
  if (!raw.ok()) return raw.status();
  return ParseIdx(*std::move(raw), path);
}

StatusOr<IdxArray> ParseIdx(std::string raw, const std::string& path) {
  const bool gzip = IsGzip(raw);
  std::string start = raw.substr(0, kMaxHeaderBytes);
  if (gzip) {
    TUTTI_ASSIGN_OR_RETURN(start, Inflate(raw, kMaxHeaderBytes, path));
  }
  IdxArray array;
  TUTTI_ASSIGN_OR_RETURN(array.header, ParseHeader(start, path));
  const int64_t total = array.header.header_bytes + array.header.payload_bytes;
  const auto raw_bytes = static_cast<int64_t>(raw.size());
  if (gzip) {
    if (total / kMaxDeflateRatio > raw_bytes) {  // before anything is allocated for it
      return DataLoss("{}: truncated: {} elements cannot come out of {} compressed bytes", path,
                      DimsText(array.header.dims), raw_bytes);
    }
    TUTTI_ASSIGN_OR_RETURN(array.bytes, Inflate(raw, static_cast<size_t>(total) + 1, path));
  } else {
    array.bytes = std::move(raw);
  }
  const auto found = static_cast<int64_t>(array.bytes.size());
  if (found < total) return Truncated(array.header, found - array.header.header_bytes, path);
  if (found > total) {
    return InvalidArgument("{}: {} elements end at byte {}, but {} follow", path, DimsText(array.header.dims), total,
                           gzip ? std::string("more bytes") : fmt::format("{} more bytes", found - total));
  }
  return array;
}

}  // namespace tutti
