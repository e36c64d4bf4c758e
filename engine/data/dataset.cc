#include "engine/data/dataset.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/digest.h"
#include "engine/data/idx.h"
#include "tutti/v1/job.pb.h"

namespace tutti {
namespace {

uint64_t ContentDigest(const IdxArray& array, uint64_t seed) {
  std::string head = fmt::format("{}", NameOf(array.header.type));
  for (int64_t dim : array.header.dims) head += fmt::format(" {}", dim);
  return Xxh3(array.payload(), Xxh3(head, seed));
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(IdxArray images, std::vector<int32_t> labels, std::vector<int64_t> shape, int64_t classes, uint64_t digest)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        shape_(std::move(shape)),
        classes_(classes),
        digest_(digest),
        row_bytes_(images_.header.payload_bytes / images_.header.dims[0]) {}

  int64_t size() const override { return images_.header.dims[0]; }
  const std::vector<int64_t>& sample_shape() const override { return shape_; }
  SampleType sample_type() const override {
    return images_.header.type == IdxType::kU8 ? SampleType::kU8 : SampleType::kF32;
  }
  int64_t classes() const override { return classes_; }
  uint64_t digest() const override { return digest_; }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(images_.bytes.size() + labels_.size() * sizeof(int32_t));
  }

  Status Read(int64_t row, std::span<std::byte> sample, int32_t* label) const override {
    TUTTI_CHECK(row >= 0 && row < size() && static_cast<int64_t>(sample.size()) == row_bytes_, "row {}", row);
    std::memcpy(sample.data(), images_.payload().data() + row * row_bytes_, sample.size());
    *label = labels_[static_cast<size_t>(row)];
    return OkStatus();
  }

 private:
  const IdxArray images_;
  const std::vector<int32_t> labels_;
  const std::vector<int64_t> shape_;
  const int64_t classes_;
  const uint64_t digest_;
  const int64_t row_bytes_;
};

StatusOr<std::vector<int64_t>> SampleShape(const IdxHeader& header, const std::string& path) {
  if (header.type != IdxType::kU8 && header.type != IdxType::kF32) {
    return InvalidArgument("{}: samples must be uint8 or float32, found {}", path, NameOf(header.type));
  }
  const std::vector<int64_t>& dims = header.dims;
  switch (dims.size()) {
    case 2:
      return std::vector<int64_t>{dims[1]};
    case 3:
      return std::vector<int64_t>{1, dims[1], dims[2]};
    case 4:
      return std::vector<int64_t>{dims[1], dims[2], dims[3]};
    default:
      return InvalidArgument(
          "{}: samples need 2 axes (N, D), 3 (N, H, W) or 4 (N, C, H, W), found {}; is it the labels' file?", path,
          dims.size());
  }
}

Status CheckLabelHeader(const IdxHeader& labels, const std::string& path, const IdxHeader& images,
                        const std::string& images_path) {
  if (labels.dims.size() != 1) {
    return InvalidArgument("{}: labels need 1 axis, found {}; is it the images' file?", path, labels.dims.size());
  }
  if (labels.type == IdxType::kF32 || labels.type == IdxType::kF64) {
    return InvalidArgument("{}: labels must be integers, found {}", path, NameOf(labels.type));
  }
  if (labels.dims[0] != images.dims[0]) {
    return InvalidArgument("{} has {} labels, but {} has {} samples", path, labels.dims[0], images_path,
                           images.dims[0]);
  }
  return OkStatus();
}

int32_t DecodeLabel(IdxType type, const char* at) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(at[i])); };
  switch (type) {
    case IdxType::kU8:
      return static_cast<int32_t>(byte(0));
    case IdxType::kI8:
      return static_cast<int8_t>(at[0]);
    case IdxType::kI16:
      return static_cast<int16_t>(byte(0) << 8 | byte(1));
    default:
      return static_cast<int32_t>(byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3));
  }
}

StatusOr<std::vector<int32_t>> DecodeLabels(const IdxArray& array, int64_t classes, const std::string& path) {
  std::vector<int32_t> labels;
  labels.reserve(static_cast<size_t>(array.header.dims[0]));
  const int64_t width = SizeOf(array.header.type);
  for (int64_t row = 0; row < array.header.dims[0]; ++row) {
    const int32_t label = DecodeLabel(array.header.type, array.payload().data() + row * width);
    if (label < 0 || label >= classes) {
      return InvalidArgument("{}: row {} (from 0): label {} is not in 0..{} (data.classes is {})", path, row, label,
                             classes - 1, classes);
    }
    labels.push_back(label);
  }
  return labels;
}

// Big-endian floats to the host's order, in place; every one must be finite.
Status DecodeFloats(IdxArray* array, const std::string& path) {
  char* payload = array->bytes.data() + array->header.header_bytes;
  const int64_t row_bytes = array->header.payload_bytes / array->header.dims[0];
  for (int64_t at = 0; at < array->header.payload_bytes; at += 4) {
    uint32_t word = 0;
    std::memcpy(&word, payload + at, 4);
    word = __builtin_bswap32(word);
    if (!std::isfinite(std::bit_cast<float>(word))) {
      return InvalidArgument("{}: row {} (from 0), element {}: the value is not finite", path, at / row_bytes,
                             at % row_bytes / 4);
    }
    std::memcpy(payload + at, &word, 4);
  }
  return OkStatus();
}

Status CheckFormat(const v1::DataSource& source) {
  if (source.format() == v1::DATA_FORMAT_IDX) return OkStatus();
  return InvalidArgument("data format {} is not known", static_cast<int>(source.format()));
}

}  // namespace

StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSource& source, int64_t classes) {
  static_assert(std::endian::native == std::endian::little);
  TUTTI_RETURN_IF_ERROR(CheckFormat(source));
  if (classes < 1) return InvalidArgument("data.classes must be at least 1, found {}", classes);
  TUTTI_ASSIGN_OR_RETURN(IdxArray images, ReadIdx(source.images()));
  TUTTI_ASSIGN_OR_RETURN(std::vector<int64_t> shape, SampleShape(images.header, source.images()));
  TUTTI_ASSIGN_OR_RETURN(const IdxArray label_array, ReadIdx(source.labels()));
  TUTTI_RETURN_IF_ERROR(CheckLabelHeader(label_array.header, source.labels(), images.header, source.images()));
  TUTTI_ASSIGN_OR_RETURN(std::vector<int32_t> labels, DecodeLabels(label_array, classes, source.labels()));
  const uint64_t digest = ContentDigest(label_array, ContentDigest(images, 0));
  if (images.header.type == IdxType::kF32) TUTTI_RETURN_IF_ERROR(DecodeFloats(&images, source.images()));
  return std::make_unique<IdxDataset>(std::move(images), std::move(labels), std::move(shape), classes, digest);
}

StatusOr<DatasetShape> InspectDataset(const v1::DataSource& source) {
  TUTTI_RETURN_IF_ERROR(CheckFormat(source));
  TUTTI_ASSIGN_OR_RETURN(const IdxHeader images, ReadIdxHeader(source.images()));
  TUTTI_ASSIGN_OR_RETURN(std::vector<int64_t> shape, SampleShape(images, source.images()));
  TUTTI_ASSIGN_OR_RETURN(const IdxHeader labels, ReadIdxHeader(source.labels()));
  TUTTI_RETURN_IF_ERROR(CheckLabelHeader(labels, source.labels(), images, source.images()));
  const int64_t memory =
      images.header_bytes + images.payload_bytes + images.dims[0] * static_cast<int64_t>(sizeof(int32_t));
  return DatasetShape{.size = images.dims[0], .sample_shape = std::move(shape), .memory_bytes = memory};
}

std::string DigestText(uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace tutti
