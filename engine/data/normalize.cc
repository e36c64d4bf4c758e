#include "engine/data/normalize.h"

#include <cstring>

#include "base/check.h"

namespace tutti {

SampleReader::SampleReader(const Dataset& dataset, Normalization normalization)
    : dataset_(&dataset), normalization_(normalization), raw_(static_cast<size_t>(dataset.sample_bytes())) {
  TUTTI_CHECK(normalization.std != 0);
  for (size_t value = 0; value < table_.size(); ++value) {
    table_[value] = static_cast<float>((static_cast<double>(value) / 255.0 - normalization.mean) / normalization.std);
  }
}

Status SampleReader::Read(int64_t row, float* x, int32_t* label) {
  TUTTI_RETURN_IF_ERROR(dataset_->Read(row, raw_, label));
  if (dataset_->sample_type() == SampleType::kU8) {
    for (const std::byte value : raw_) *x++ = table_[static_cast<uint8_t>(value)];
    return OkStatus();
  }
  for (size_t at = 0; at < raw_.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &raw_[at], sizeof value);
    *x++ = static_cast<float>((static_cast<double>(value) - normalization_.mean) / normalization_.std);
  }
  return OkStatus();
}

}  // namespace tutti
