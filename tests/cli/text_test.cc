#include "cli/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/completion.h"
#include "cli/json.h"
#include "tutti/v1/cluster.pb.h"

namespace tutti::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Text, DurationsAndRanks) {
  EXPECT_EQ(DurationText(47.91), "47.9 s");
  EXPECT_EQ(DurationText(123), "2m03s");
  EXPECT_EQ(DurationText(3 * 3600 + 7 * 60), "3h07m");
  EXPECT_EQ(DurationText(std::nan("")), "unknown");
  EXPECT_EQ(RankList(std::vector<int32_t>{0, 1, 2, 4}), "ranks 0-2, 4");
  EXPECT_EQ(RankList(std::vector<int32_t>{3}), "rank 3");
  EXPECT_EQ(RankList(std::vector<int32_t>{0, 1, 5, 6, 7}), "ranks 0, 1, 5-7");
}

TEST(Text, ColumnsLineUpAndUntrustedTextCannotSteerATerminal) {
  EXPECT_EQ(Table({{"A", "BB"}, {"ccc", "d"}, {"é", "x"}}), "A    BB\nccc  d\né    x\n");
  EXPECT_EQ(Printable("a\x1b[31mb\r\nc\td\x7f"), "a[31mbc  d");
  EXPECT_EQ(Clip("añb", 2), "añ");
  EXPECT_EQ(Clip("ab", 5), "ab");
}

TEST(MessageText, NumbersStayNumbersAndNanIsNull) {  // LOG-01
  v1::StepRecord step;
  step.set_step(int64_t{1} << 60);
  step.set_loss(std::nan(""));
  step.set_accuracy(std::numeric_limits<double>::infinity());
  step.set_learning_rate(0.1);
  step.set_skip_cause("a\xFF\"b");  // not UTF-8: must not end the program
  const auto json = nlohmann::json::parse(MessageText(step, Format::kJson));
  EXPECT_EQ(json["step"].get<int64_t>(), int64_t{1} << 60);
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["accuracy"].is_null());
  EXPECT_EQ(json["learningRate"].get<double>(), 0.1);
  const std::string list = ListText({&step, &step}, Format::kJson);
  EXPECT_EQ(nlohmann::json::parse(list).size(), 2u);
  EXPECT_THAT(list, Not(HasSubstr("nan")));
}

TEST(MessageText, ZeroIsAFactAndYamlHasBlocks) {  // API-06
  v1::RankStatus status;
  status.set_node("x: y");
  status.add_cores(3);
  const auto json = nlohmann::json::parse(MessageText(status, Format::kJson));
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["exitCode"], 0);
  EXPECT_EQ(json["victim"], false);
  EXPECT_FALSE(json.contains("message"));
  v1::JobSpec spec;
  spec.mutable_metadata()->set_name("job");
  (*spec.mutable_metadata()->mutable_labels())["a b"] = "c";
  spec.mutable_restart()->add_no_retry_exit_codes(2);
  spec.mutable_restart()->set_grace_ms(5);
  EXPECT_EQ(
      MessageText(spec, Format::kYaml),
      "metadata:\n  name: \"job\"\n  labels:\n    \"a b\": \"c\"\nrestart:\n  maxUserFailures: 0\n  "
      "maxNodeFailures: 0\n"
      "  backoffMs: 0\n  noRetryExitCodes:\n    - 2\n  graceMs: 5\n  collectiveTimeoutMs: 0\n  startTimeoutMs: 0\n");
}

TEST(CompletionScript, NamesEveryVerbForBothShells) {
  for (const char* shell : {"bash", "zsh"}) {
    for (const std::string& verb : VerbNames()) EXPECT_THAT(CompletionScript(shell), HasSubstr(verb + ")")) << shell;
  }
  EXPECT_EQ(CompletionScript("fish"), "");
}

}  // namespace
}  // namespace tutti::cli
