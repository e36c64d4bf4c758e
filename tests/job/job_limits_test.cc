// SEC-07: what a file may cost before it is refused, and constructs that job files do not have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ctime>

#include "base/files.h"
#include "job/job_file.h"
#include "tests/job/job_text.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

std::string Repeat(std::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

int64_t PeakResidentKiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(JobFileLimits, HostileInputIsRefusedFastAndCheaply) {  // SEC-07
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{}: &a{} [{}]\n", i, i, Repeat(fmt::format("*a{}, ", i - 1), 8) + fmt::format("*a{}", i - 1));
  }
  const std::pair<const char*, std::string> cases[] = {
      {"100000 opening brackets", std::string(100'000, '[')},
      {"1 MiB of opening brackets", std::string(1 << 20, '[')},
      {"1 MiB of opening braces", Repeat("{a: ", (1 << 20) / 4)},
      {"1 MiB of nested dashes", Repeat("- ", 1 << 19)},
      {"1 MiB of nested question marks", Repeat("? ", 1 << 19)},
      {"brackets over many lines", Repeat("[\n", 1 << 19)},
      {"alias bomb", bomb},
      {"self-reference", "&x [*x]"},
      {"64 MB of keys", Repeat("a: ", 64'000'000 / 3)},
      {"1 MiB of keys on a line", Repeat("a: ", (1 << 20) / 3)},
      {"1 MiB of keys", Repeat("a:\n", (1 << 20) / 3)},
      {"1 MiB of list items", "a:\n" + Repeat("- b\n", (1 << 18) - 1)},
      {"1 MiB of quotes", std::string(1 << 20, '"')},
      {"deep indentation",
       [] {
         std::string text;
         for (int i = 0; i < 1000; ++i) text += std::string(static_cast<size_t>(i), ' ') + "a:\n";
         return text;
       }()},
      {"one long line", "a: " + std::string((1 << 20) - 3, 'x')},
  };
  [[maybe_unused]] const int64_t before = PeakResidentKiB();
  for (const auto& [what, text] : cases) {
    const std::clock_t start = std::clock();  // processor time: other programs do not count
    const std::string error = Errors(text);
    EXPECT_THAT(error, HasSubstr("job.yaml:")) << what;
    EXPECT_LT(error.size(), 100'000u) << what;
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC) << what;
  }
#ifndef __SANITIZE_ADDRESS__  // which keeps what was freed
  EXPECT_LT(PeakResidentKiB() - before, 100 * 1024);
#endif
}

TEST(JobFileLimits, LargeFileIsRefusedBeforeItIsRead) {  // SEC-07
  auto folder = TempDirectory::Create("tutti-job");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = folder->path() + "/job.yaml";
  ASSERT_TRUE(WriteFileAtomic(path, Repeat("a: ", 64'000'000 / 3)).ok());
  const int64_t before = PeakResidentKiB();
  const auto job = LoadJobFile(path, {});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(job.status()), HasSubstr("at most 1048576 bytes"));
  EXPECT_LT(PeakResidentKiB() - before, 16 * 1024);
}

TEST(JobFileLimits, AnchorsAliasesTagsAndSecondDocumentsAreRefused) {
  const auto with = [](const char* value) {
    return Errors(Replace(kJob, "global: 128", fmt::format("global: {}", value)));
  };
  EXPECT_EQ(with("&b 128"), "job.yaml:13:13: anchor '&b'; job files have no anchors and aliases");
  EXPECT_THAT(with("*b"), HasSubstr("job.yaml:13:1"));
  EXPECT_THAT(with("!!int 128"), HasSubstr("tag 'tag:yaml.org,2002:int'; job files have no tags"));
  EXPECT_THAT(with("!int 128"), HasSubstr("job files have no tags"));
  EXPECT_THAT(Errors(std::string(kJob) + "---\na: b\n"), HasSubstr("a second document"));
  EXPECT_THAT(Errors(Replace(kJob, "  batch:", "  ? [a, b]\n  : 1\n  batch:")), HasSubstr("keys are plain text"));
  EXPECT_THAT(Errors(Replace(kJob, "  batch:", "  <<: {a: b}\n  batch:")), HasSubstr("unknown key '<<'"));
}

TEST(JobFileLimits, BytesThatAreNoTextAreLocated) {
  EXPECT_EQ(Errors(Replace(kJob, "{name: job}", "{name: j\xFFob}")), "job.yaml:3:19: not UTF-8 text");
  EXPECT_EQ(Errors(Replace(kJob, "{name: job}", std::string("{name: j\0ob}", 12))),
            "job.yaml:3:19: control character 0x00");
  EXPECT_THAT(Errors("a: [b\n"), HasSubstr("not YAML"));
  EXPECT_THAT(Errors(""), HasSubstr("found no sections"));
  EXPECT_THAT(Errors("- a\n"), HasSubstr("found no sections"));
  EXPECT_EQ(Errors(std::string(kJob) + "# it's a comment with [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ brackets\n"),
            "");
}

}  // namespace
}  // namespace tutti
