// A data set: N samples of one shape, each with a class label, read by row in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tutti::v1 {
class DataSource;
}

namespace tutti {

enum class SampleType { kU8, kF32 };
inline constexpr int64_t SizeOf(SampleType type) { return type == SampleType::kU8 ? 1 : 4; }

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;                              // N >= 1
  virtual const std::vector<int64_t>& sample_shape() const = 0;  // of one sample: (1, 28, 28)
  virtual SampleType sample_type() const = 0;
  virtual int64_t classes() const = 0;       // every label is in [0, classes): checked when it was opened
  virtual uint64_t digest() const = 0;       // XXH3 over the content: the same for plain and gzip files
  virtual int64_t memory_bytes() const = 0;  // kept in memory for the data set's life

  // Copies row `row` in [0, N) as sample_bytes() bytes of sample_type() (host byte order) and its label. Thread-safe.
  virtual Status Read(int64_t row, std::span<std::byte> sample, int32_t* label) const = 0;

  int64_t sample_elements() const {
    int64_t elements = 1;
    for (int64_t dim : sample_shape()) elements *= dim;
    return elements;
  }
  int64_t sample_bytes() const { return sample_elements() * SizeOf(sample_type()); }
};

// Opens what the job names and checks all of it before the first step. IDX (LeCun's MNIST format), plain or gzip, told
// apart by content. Images: unsigned bytes or f32, axes (N, H, W) give samples of shape (1, H, W), (N, C, H, W) give
// (C, H, W), (N, D) give (D). Labels: one axis of (un)signed bytes, int16 or int32, each in [0, classes).
//   NOT_FOUND, PERMISSION_DENIED   a file cannot be opened
//   DATA_LOSS                      truncated or damaged: file, bytes expected, bytes found
//   INVALID_ARGUMENT               not IDX, unusable axes or types, counts that differ, a label out of range: file,
//   row, value, range
StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source, int64_t classes);

// Size and shape from the headers alone, for planning: reads a few bytes of each file.
struct DatasetShape {
  int64_t size = 0;
  std::vector<int64_t> sample_shape;
  int64_t memory_bytes = 0;
};
StatusOr<DatasetShape> InspectDataset(const v1::DataSource& source);

// The canonical text of a digest in manifests and events: 16 hexadecimal digits.
std::string DigestText(uint64_t digest);

}  // namespace tutti
