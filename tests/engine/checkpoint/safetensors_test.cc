#include "engine/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>

#include "base/files.h"
#include "engine/checkpoint/store.h"
#include "tests/engine/checkpoint/checkpoint_testing.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NewDirectory;

std::string FileBytes(const std::string& json, const std::string& data) {
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json + data;
}

TEST(Safetensors, ReadsAFileMadeByHandFromTheFormatsDescription) {
  const TempDirectory directory = NewDirectory();
  const std::string path = JoinPath(directory.path(), "a.safetensors");
  // 1.0f and -2.0f, then two int64; entries not in offset order; padded with spaces.
  const std::string json = R"({"ids":{"dtype":"I64","shape":[2],"data_offsets":[8,24]},"__metadata__":{"format":"pt"},)"
                           R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}   )";
  ASSERT_TRUE(
      WriteFileAtomic(path, FileBytes(json, std::string("\0\0\x80\x3F\0\0\0\xC0", 8) + std::string(16, '\1'))).ok());
  const SafetensorsFile file = SafetensorsFile::Open(path).value();
  ASSERT_EQ(file.header().entries.size(), 2u);
  EXPECT_EQ(file.header().entries[0].name, "w");
  EXPECT_THAT(file.header().entries[0].shape, ElementsAre(2, 1));
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  float values[2];
  ASSERT_TRUE(file.ReadF32(*file.Find("w"), values).ok());
  EXPECT_THAT(values, ElementsAre(1.0f, -2.0f));
  EXPECT_EQ(file.Find("absent"), nullptr);
}

TEST(Safetensors, WriterMakesWhatTheFormatSays) {
  const TempDirectory directory = NewDirectory();
  const std::string path = JoinPath(directory.path(), "b.safetensors");
  SafetensorsWriter writer = SafetensorsWriter::Create(path,
                                                       {{.name = "z", .dtype = "F32", .shape = {3}},
                                                        {.name = "scalar", .dtype = "F32", .shape = {}},
                                                        {.name = "empty", .dtype = "F32", .shape = {0, 4}}},
                                                       {{"step", "7"}})
                                 .value();
  const float z[3] = {1, 2, 3}, scalar = 9;
  ASSERT_TRUE(writer.Append(std::as_bytes(std::span(z))).ok());
  ASSERT_TRUE(writer.Append(std::as_bytes(std::span(&scalar, 1))).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const std::string bytes = ReadFile(path).value();
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ((8 + length) % 8, 0u);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), writer.bytes());
  EXPECT_EQ(bytes.size(), 8 + length + 16);
  EXPECT_EQ(writer.digest(), Xxh3(bytes));
  EXPECT_EQ(bytes.substr(8 + length, 12), std::string(reinterpret_cast<const char*>(z), 12));
  const SafetensorsFile file = SafetensorsFile::Open(path).value();
  EXPECT_EQ(file.header().metadata.at("step"), "7");
  float read = 0;
  ASSERT_TRUE(file.ReadF32(*file.Find("scalar"), std::span(&read, 1)).ok());
  EXPECT_EQ(read, 9.0f);
  EXPECT_EQ(SafetensorsWriter::Create(path, {}, {}).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(Safetensors, WrongHeadersAreRefusedWithTheReason) {
  const auto tensor = [](const std::string& rest) { return R"({"w":{"dtype":"F32","shape":[2],)" + rest + "}}"; };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not start with"},
      {"[1]", "does not start with"},
      {"{\"w\":", "not JSON"},
      {tensor(R"("data_offsets":[0,8]})"), "not JSON"},
      {R"({"w":1})", "not expected"},
      {R"({"w":"x"})", "not expected"},
      {R"({"w":{"dtype":"F32","shape":[2]}})", "needs dtype, shape"},
      {tensor(R"("data_offsets":[0,8],"extra":1)"), "unknown key 'extra'"},
      {tensor(R"("data_offsets":[0,8],"shape":[2])"), "duplicate key 'shape'"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}})",
       "duplicate tensor 'w'"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "duplicate key 'a'"},
      {R"({"__metadata__":{"a":1}})", "not expected"},
      {R"({"w":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", "unknown dtype 'F33'"},
      {R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "need 12 bytes"},
      {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "negative"},
      {R"({"w":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "not an integer"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387904,16],"data_offsets":[0,8]}})", "overflows"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "say otherwise"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", "two data_offsets"},
      {R"({"w":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "array is not expected"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"v":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "overlap"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "leave a hole"},
      {R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "the file has 8"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "the file has 8"}};
  for (const auto& [json, reason] : cases) {
    const auto header = ParseSafetensorsHeader(json, 8);
    ASSERT_FALSE(header.ok()) << json;
    EXPECT_THAT(Message(header.status()), HasSubstr(reason)) << json;
  }
  EXPECT_TRUE(ParseSafetensorsHeader(tensor(R"("data_offsets":[0,8])"), 8).ok());
}

int64_t PeakResidentKib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Safetensors, TruncatedAndAbsurdFilesAreRefusedAtOnce) {  // CKP-08
  const TempDirectory directory = NewDirectory();
  const std::string path = JoinPath(directory.path(), "c.safetensors");
  const std::string good =
      FileBytes(R"({"w":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}})", std::string(4000, 'x'));
  ASSERT_TRUE(WriteFileAtomic(path, good).ok());
  ASSERT_TRUE(SafetensorsFile::Open(path).ok());
  const int64_t before_kib = PeakResidentKib();
  const auto start = std::chrono::steady_clock::now();
  const auto refused = [&](const std::string& bytes) {
    EXPECT_TRUE(WriteFileAtomic(path, bytes).ok());
    const Status status = SafetensorsFile::Open(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), HasSubstr(path));
    return Message(status);
  };
  EXPECT_THAT(refused(good.substr(0, good.size() / 2)), HasSubstr("need 4000 bytes"));
  EXPECT_THAT(refused(good.substr(0, 20)), HasSubstr("truncated"));
  EXPECT_THAT(refused(good.substr(0, 5)), HasSubstr("at least 8"));
  EXPECT_THAT(refused(std::string("\0\0\0\0\0\0\0\x80", 8) + good.substr(8)), HasSubstr("9223372036854775808"));
  {
    // 200 MB of header, as a hole in the file.
    const uint64_t length = 200'000'000;
    ASSERT_TRUE(WriteFileAtomic(path, std::string(reinterpret_cast<const char*>(&length), 8)).ok());
    ASSERT_EQ(truncate(path.c_str(), 200'000'100), 0);
    EXPECT_THAT(Message(SafetensorsFile::Open(path).status()), AllOf(HasSubstr(path), HasSubstr("200000000")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // five files; each well below one
  EXPECT_LT(PeakResidentKib() - before_kib, 50'000);
}

TEST(Safetensors, RandomDamageNeverCrashes) {
  const std::string good =
      R"({"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"v":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})";
  uint32_t state = 5;
  const auto next = [&state] { return state = state * 1664525u + 1013904223u, state >> 8; };
  int64_t refused = 0;
  for (int run = 0; run < 5000; ++run) {
    std::string bad = good;
    for (uint32_t flips = 1 + next() % 3; flips > 0; --flips) bad[next() % bad.size()] = static_cast<char>(next());
    const auto header = ParseSafetensorsHeader(bad, 9);
    refused += !header.ok();
    if (header.ok()) {
      EXPECT_LE(header->entries.size(), 2u);
    }
  }
  EXPECT_GT(refused, 2500);
}

TEST(CanonicalNames, OnlyAPrefixOfAllNamesIsCut) {  // CKP-12
  EXPECT_THAT(CanonicalNames({"module.a", "module.b.module.w"}).value(), ElementsAre("a", "b.module.w"));
  EXPECT_THAT(CanonicalNames({"_orig_mod.module.a", "_orig_mod.module.b"}).value(), ElementsAre("a", "b"));
  EXPECT_THAT(CanonicalNames({"a", "adapter.module.w"}).value(), ElementsAre("a", "adapter.module.w"));
  EXPECT_THAT(CanonicalNames({"modules.a"}).value(), ElementsAre("modules.a"));
  EXPECT_TRUE(CanonicalNames({}).value().empty());
  const auto mixed = CanonicalNames({"module.a", "b", "adapter.module.w"});
  EXPECT_EQ(mixed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(mixed.status()), HasSubstr("with: module.a; without: b, adapter.module.w"));
}

TEST(ImportTensors, ReadsAWrappedExport) {  // CKP-12
  const TempDirectory directory = NewDirectory();
  const std::string path = JoinPath(directory.path(), "d.safetensors");
  SafetensorsWriter writer =
      SafetensorsWriter::Create(path, {{.name = "module.adapter.module.w", .dtype = "F32", .shape = {1}}}, {}).value();
  const float value = 4;
  ASSERT_TRUE(writer.Append(std::as_bytes(std::span(&value, 1))).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const auto tensors = ImportTensors(path).value();
  EXPECT_THAT(tensors.at("adapter.module.w").data, ElementsAre(4.0f));
}

}  // namespace
}  // namespace tutti
