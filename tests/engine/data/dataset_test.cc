#include "engine/data/dataset.h"

#include <gmock/gmock.h>

#include <array>
#include <bit>

#include "engine/data/idx.h"
#include "tests/engine/data/data_testing.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Gzip;
using ::testing::HasSubstr;
using testing::IdxBytes;
using testing::IdxFolder;

constexpr uint8_t kU8 = 0x08, kI8 = 0x09, kI16 = 0x0B, kI32 = 0x0C, kF32 = 0x0D;

// 3 images of 2 x 2 with bytes 0 .. 11, labels 2, 0, 1.
std::string ThreeImages() { return IdxBytes(kU8, {3, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}); }
std::string ThreeLabels() { return IdxBytes(kU8, {3}, {2, 0, 1}); }

std::vector<uint8_t> RowBytes(const Dataset& dataset, int64_t row, int32_t* label) {
  std::vector<std::byte> sample(static_cast<size_t>(dataset.sample_bytes()));
  EXPECT_TRUE(dataset.Read(row, sample, label).ok());
  std::vector<uint8_t> bytes;
  for (std::byte b : sample) bytes.push_back(static_cast<uint8_t>(b));
  return bytes;
}

void ExpectError(const StatusOr<std::unique_ptr<Dataset>>& dataset, absl::StatusCode code,
                 const std::vector<std::string>& parts) {
  ASSERT_FALSE(dataset.ok());
  EXPECT_EQ(dataset.status().code(), code) << dataset.status();
  for (const std::string& part : parts) EXPECT_THAT(Message(dataset.status()), HasSubstr(part));
}

TEST(IdxDataset, PlainFilesGiveRowsAndLabels) {
  IdxFolder folder;
  folder.Images(ThreeImages());
  folder.Labels(ThreeLabels());
  const auto dataset = folder.Open(3).value();
  EXPECT_EQ(dataset->size(), 3);
  EXPECT_THAT(dataset->sample_shape(), ElementsAre(1, 2, 2));
  EXPECT_EQ(dataset->classes(), 3);
  int32_t label = -1;
  EXPECT_THAT(RowBytes(*dataset, 1, &label), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(label, 0);
  EXPECT_THAT(RowBytes(*dataset, 2, &label), ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(label, 1);
  const DatasetShape shape = InspectDataset(folder.source()).value();
  EXPECT_EQ(shape.size, 3);
  EXPECT_EQ(shape.sample_shape, dataset->sample_shape());
  EXPECT_EQ(shape.memory_bytes, dataset->memory_bytes());
}

TEST(IdxDataset, GzipIsFoundByContentAndHasTheSameDigest) {
  IdxFolder plain, gzip;
  plain.Images(ThreeImages());
  plain.Labels(ThreeLabels());
  // RFC 1952: members may follow each other.
  gzip.Images(Gzip(ThreeImages().substr(0, 7)) + Gzip(ThreeImages().substr(7)));
  gzip.Labels(Gzip(ThreeLabels()));
  const auto a = plain.Open(3).value(), b = gzip.Open(3).value();
  EXPECT_EQ(a->digest(), b->digest());
  int32_t label = -1;
  EXPECT_THAT(RowBytes(*b, 0, &label), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(InspectDataset(gzip.source()).value().size, 3);
  plain.Labels(IdxBytes(kU8, {3}, {2, 0, 2}));
  EXPECT_NE(plain.Open(3).value()->digest(), a->digest());
}

TEST(IdxDataset, AxesDecideTheSampleShape) {
  IdxFolder folder;
  folder.Labels(IdxBytes(kU8, {2}, {0, 1}));
  folder.Images(IdxBytes(kU8, {2, 3}, std::string(6, 'x')));
  EXPECT_THAT(folder.Open(2).value()->sample_shape(), ElementsAre(3));
  folder.Images(IdxBytes(kU8, {2, 3, 1, 2}, std::string(12, 'x')));
  EXPECT_THAT(folder.Open(2).value()->sample_shape(), ElementsAre(3, 1, 2));
  folder.Images(IdxBytes(kF32, {2, 1}, std::string("\x3F\x80\x00\x00\xC0\x00\x00\x00", 8)));  // 1.0f, -2.0f
  const auto floats = folder.Open(2).value();
  float value = 0;
  int32_t label = 0;
  ASSERT_TRUE(floats->Read(1, std::as_writable_bytes(std::span(&value, 1)), &label).ok());
  EXPECT_EQ(value, -2.0f);
  folder.Images(IdxBytes(kF32, {2, 1}, std::string("\x3F\x80\x00\x00\x7F\x80\x00\x00", 8)));  // infinity
  ExpectError(folder.Open(2), absl::StatusCode::kInvalidArgument, {"row 1", "element 0", "not finite"});
  folder.Images(IdxBytes(kI16, {2, 1}, std::string(4, '\0')));
  ExpectError(folder.Open(2), absl::StatusCode::kInvalidArgument, {folder.source().images(), "int16"});
}

TEST(IdxDataset, LabelOutOfRangeNamesFileRowValueAndRange) {  // DAT-02
  IdxFolder folder;
  folder.Images(IdxBytes(kU8, {10, 1}, std::string(10, 'x')));
  folder.Labels(IdxBytes(kU8, {10}, {0, 1, 2, 0, 1, 2, 0, 3, 1, 2}));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument,
              {folder.source().labels(), "row 7", "label 3", "0..2"});
  folder.Labels(IdxBytes(kI8, {10}, {0, 1, 2, 0, -4, 2, 0, 1, 1, 2}));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument,
              {folder.source().labels(), "row 4", "label -4", "0..2"});
  std::string wide(40, '\0');
  wide[4 * 9 + 1] = 1;  // 0x00010000 in row 9
  folder.Labels(IdxBytes(kI32, {10}, wide));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"row 9", "label 65536"});
  EXPECT_TRUE(folder.Open(65537).ok());
}

TEST(IdxDataset, TruncatedFilesSayWhereAndHowMuch) {
  IdxFolder folder;
  folder.Labels(ThreeLabels());
  folder.Images(ThreeImages().substr(0, 16 + 9));
  ExpectError(folder.Open(3), absl::StatusCode::kDataLoss,
              {folder.source().images(), "3 x 2 x 2", "need 12 bytes", "found 9", "row 2 of 3"});
  folder.Images(Gzip(ThreeImages().substr(0, 16 + 5)));
  ExpectError(folder.Open(3), absl::StatusCode::kDataLoss, {"need 12 bytes", "found 5", "row 1 of 3"});
  const std::string gzip = Gzip(ThreeImages());
  for (size_t keep : {size_t{0}, size_t{3}, size_t{11}, gzip.size() / 2}) {
    folder.Images(gzip.substr(0, keep));
    ExpectError(folder.Open(3), absl::StatusCode::kDataLoss, {folder.source().images(), "truncated"});
  }
  folder.Images(ThreeImages().substr(0, 10));
  ExpectError(folder.Open(3), absl::StatusCode::kDataLoss, {"header of 3 axes has 16 bytes, found 10"});
  std::string damaged = Gzip(ThreeImages() + std::string(5000, 'y'));
  damaged[12] = static_cast<char>(damaged[12] ^ 0xFF);
  folder.Images(damaged);
  EXPECT_FALSE(folder.Open(3).ok());
}

TEST(IdxDataset, WhatIsNotIdxIsRefused) {
  IdxFolder folder;
  folder.Labels(ThreeLabels());
  folder.Images("\x89PNG\r\n\x1a\n");
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"not an IDX file", "0x89"});
  folder.Images(IdxBytes(0x07, {3, 2, 2}, std::string(12, 'x')));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"element type", "0x07"});
  folder.Images(IdxBytes(kU8, {3, 1, 1, 1, 1}, std::string(3, 'x')));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"number of axes", "found 5"});
  folder.Images(IdxBytes(kU8, {3, 0, 2}, ""));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"axis 1 has length 0", "offset 8"});
  folder.Images(ThreeImages() + "zz");
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"end at byte 28", "2 more bytes"});
  folder.Images(Gzip(ThreeImages() + "zz"));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"end at byte 28", "more bytes"});
  EXPECT_EQ(InspectDataset(folder.source()).value().size, 3);
}

TEST(IdxDataset, AbsurdSizesAreRefusedBeforeMemoryIsTaken) {
  IdxFolder folder;
  folder.Labels(ThreeLabels());
  folder.Images(IdxBytes(kU8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "x"));
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"4294967295"});
  // 60 GB cannot come out of a hundred compressed bytes.
  folder.Images(Gzip(IdxBytes(kU8, {60'000'000, 1000}, std::string(1000, '\0'))));
  ExpectError(folder.Open(3), absl::StatusCode::kDataLoss, {"cannot come out of"});
}

TEST(IdxDataset, FilesThatDoNotBelongTogetherAreNamed) {
  IdxFolder folder;
  folder.Images(ThreeImages());
  folder.Labels(IdxBytes(kU8, {4}, {0, 1, 2, 0}));
  for (const Status& status : {folder.Open(3).status(), InspectDataset(folder.source()).status()}) {
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("4 labels"), HasSubstr("3 samples"), HasSubstr(folder.source().images())));
  }
  folder.Labels(ThreeImages());
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"labels need 1 axis, found 3"});
  folder.Images(ThreeLabels());
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"found 1", "is it the labels' file?"});
  folder.Labels(IdxBytes(kF32, {3}, std::string(12, '\0')));
  folder.Images(ThreeImages());
  ExpectError(folder.Open(3), absl::StatusCode::kInvalidArgument, {"must be integers", "float32"});
}

TEST(IdxDataset, AbsentFileIsNotFoundByPath) {
  IdxFolder folder;
  folder.Images(ThreeImages());
  ExpectError(folder.Open(3), absl::StatusCode::kNotFound, {folder.source().labels()});
}

TEST(IdxDataset, RandomDamageNeverCrashes) {
  IdxFolder folder;
  folder.Labels(ThreeLabels());
  uint32_t state = 1;
  const auto next = [&state] { return state = state * 1664525u + 1013904223u, state >> 8; };
  for (const std::string& good : {ThreeImages(), Gzip(ThreeImages())}) {
    for (int run = 0; run < 300; ++run) {
      std::string bad = good.substr(0, next() % (good.size() + 1));
      for (uint32_t flips = next() % 4; flips > 0 && !bad.empty(); --flips)
        bad[next() % bad.size()] ^= static_cast<char>(1 << next() % 8);
      const auto array = ParseIdx(bad, "damaged");
      if (!array.ok()) {
        EXPECT_THAT(Message(array.status()), HasSubstr("damaged"));
      }
      if (array.ok()) {
        EXPECT_EQ(static_cast<int64_t>(array->payload().size()), array->header.payload_bytes);
      }
    }
  }
}

// Facts of the published data set: 60,000 images of 28 x 28, 6,000 of each of 10 classes; the first training label is 9
// (ankle boot).
TEST(IdxDataset, FashionMnistAsPublished) {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  if (!FileExists(folder)) GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  v1::DataSource source;
  source.set_format(v1::DATA_FORMAT_IDX);
  source.set_images(folder + "train-images-idx3-ubyte.gz");
  source.set_labels(folder + "train-labels-idx1-ubyte.gz");
  const auto dataset = OpenDataset(source, 10).value();
  EXPECT_EQ(dataset->size(), 60000);
  EXPECT_THAT(dataset->sample_shape(), ElementsAre(1, 28, 28));
  std::array<int, 10> count{};
  double sum = 0;
  for (int64_t row = 0; row < dataset->size(); ++row) {
    int32_t label = -1;
    const std::vector<uint8_t> bytes = RowBytes(*dataset, row, &label);
    ++count[static_cast<size_t>(label)];
    if (row == 0) {
      EXPECT_EQ(label, 9);
    }
    for (uint8_t b : bytes) sum += b;
  }
  EXPECT_THAT(count, ::testing::Each(6000));
  EXPECT_NEAR(sum / 255 / 784 / 60000, 0.2860, 0.0001);  // mean that users of the data set normalise with
}

}  // namespace
}  // namespace tutti
