// Small data sets for tests: IDX bytes made by hand, and data sets in memory that count their reads.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "engine/data/dataset.h"
#include "tutti/v1/job.pb.h"

namespace tutti::testing {

// Calls of operator new in this test binary so far (counting_new.cc).
int64_t Allocations();

// The IDX header of the format's description: 0, 0, type, axes, big-endian lengths.
inline std::string IdxBytes(uint8_t type, const std::vector<uint32_t>& dims, const std::string& payload) {
  std::string bytes = {0, 0, static_cast<char>(type), static_cast<char>(dims.size())};
  for (uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dim >> shift & 0xFF);
  }
  return bytes + payload;
}

inline std::string Gzip(const std::string& plain) {
  z_stream stream{};
  TUTTI_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, plain.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  TUTTI_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

// A folder with images and labels, opened as a job would.
class IdxFolder {
 public:
  IdxFolder() : directory_(TempDirectory::Create("tutti-data-").value()) {
    source_.set_format(v1::DATA_FORMAT_IDX);
    source_.set_images(JoinPath(directory_.path(), "images"));
    source_.set_labels(JoinPath(directory_.path(), "labels"));
  }
  void Images(const std::string& bytes) { TUTTI_CHECK_OK(WriteFileAtomic(source_.images(), bytes)); }
  void Labels(const std::string& bytes) { TUTTI_CHECK_OK(WriteFileAtomic(source_.labels(), bytes)); }
  const v1::DataSource& source() const { return source_; }
  StatusOr<std::unique_ptr<Dataset>> Open(int64_t classes) const { return OpenDataset(source_, classes); }

 private:
  TempDirectory directory_;
  v1::DataSource source_;
};

// Row i is `elements` bytes of value i mod 256; its label is i mod classes. Counts reads of each row; row `bad_row`
// cannot be read.
class CountingDataset final : public Dataset {
 public:
  explicit CountingDataset(int64_t size, int64_t elements = 4) : shape_{elements}, reads_(static_cast<size_t>(size)) {}
  int64_t size() const override { return static_cast<int64_t>(reads_.size()); }
  const std::vector<int64_t>& sample_shape() const override { return shape_; }
  SampleType sample_type() const override { return SampleType::kU8; }
  int64_t classes() const override { return 1 << 20; }
  uint64_t digest() const override { return 0; }
  int64_t memory_bytes() const override { return 0; }
  Status Read(int64_t row, std::span<std::byte> sample, int32_t* label) const override {
    if (row == bad_row) return DataLoss("row {} is damaged", row);
    ++reads_[static_cast<size_t>(row)];
    std::memset(sample.data(), static_cast<int>(row % 256), sample.size());
    *label = static_cast<int32_t>(row);
    return OkStatus();
  }
  int64_t reads(int64_t row) const { return reads_[static_cast<size_t>(row)]; }
  int64_t total_reads() const {
    int64_t total = 0;
    for (const auto& reads : reads_) total += reads;
    return total;
  }
  int64_t bad_row = -1;

 private:
  std::vector<int64_t> shape_;
  mutable std::vector<std::atomic<int64_t>> reads_;
};

}  // namespace tutti::testing
