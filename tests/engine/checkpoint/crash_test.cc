// SIGKILL at random points of real saves: whatever is left, the next generation goes on from a complete step.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <random>

#include "base/process.h"
#include "engine/checkpoint/layout.h"
#include "tests/engine/checkpoint/crash_state.h"

namespace tutti {
namespace {

// Bytes under `directory` that belong to no committed step, and the highest committed step.
struct Progress {
  int64_t committed = 0;
  int64_t open_bytes = 0;
};
Progress Look(const std::string& directory) {
  Progress progress;
  const auto names = ListDirectory(directory);
  if (!names.ok()) return progress;
  for (const std::string& name : *names) {
    const auto folder = ParseFolderName(name);
    if (!folder) continue;
    const std::string path = JoinPath(directory, name);
    if (FileExists(JoinPath(path, kManifestName))) {
      progress.committed = std::max(progress.committed, folder->step.value());
      continue;
    }
    for (int32_t rank : {0, 1}) progress.open_bytes += FileSize(JoinPath(path, SliceName(Rank(rank)))).value_or(0);
  }
  return progress;
}

SpawnOptions Process(const std::string& directory, int64_t generation, int64_t last_step) {
  SpawnOptions options;
  options.argv = {CHECKPOINT_TEST_WRITER, directory, fmt::format("{}", generation), fmt::format("{}", last_step)};
  options.environment = CurrentEnvironment();
  options.descriptors = {{1, 1}, {2, 2}};
  return options;
}

TEST(Crash, KilledAtTwentyRandomPointsAlwaysResumesACompleteStep) {  // CKP-01
  const TempDirectory temporary = testing::NewDirectory();
  const std::string directory = JoinPath(temporary.path(), "run");
  const CheckpointStore store = CheckpointStore::Open(directory).value();
  std::mt19937 random(20);
  int64_t newest = 0, leftovers = 0;
  constexpr int64_t kKills = 20;
  for (int64_t generation = 1; generation <= kKills; ++generation) {
    const pid_t pid = Spawn(Process(directory, generation, 1 << 20)).value();
    // Kill while the write of the first or second new step has come so far: in a slice, before the manifest, in
    // retention.
    const int64_t steps = static_cast<int64_t>(random() % 2), bytes = static_cast<int64_t>(random() % 50'000'000);
    const int64_t before = newest;
    const bool reached = testing::WaitFor([&] {
      const Progress now = Look(directory);
      return now.committed > before + steps || (now.committed == before + steps && now.open_bytes > bytes);
    });
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(reached && WIFSIGNALED(status)) << "the writer ended by itself";
    const Progress left = Look(directory);
    leftovers += left.open_bytes > 0;
    std::vector<std::string> notices;
    const auto latest = store.Latest("job-a", {}, &notices).value();
    ASSERT_EQ(latest.has_value(), left.committed > 0);
    if (!latest) continue;
    EXPECT_EQ(latest->step, Step(left.committed));  // what was committed is complete
    EXPECT_GE(latest->step, Step(newest));
    newest = latest->step.value();
    if (generation % 5 == 0)
      testing::ExpectStateOf(newest, LoadCheckpoint(latest->path).value(), testing::CrashState());
  }
  EXPECT_GT(newest, 5);
  EXPECT_GT(leftovers, 5) << "the kills missed the saves";
  // An undisturbed generation removes what the dead ones left.
  const pid_t pid = Spawn(Process(directory, kKills + 1, newest + 3)).value();
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::vector<int64_t> steps;
  for (const std::string& name : testing::NamesIn(directory)) {
    if (const auto folder = ParseFolderName(name)) steps.push_back(folder->step.value());
    EXPECT_FALSE(name.starts_with("trash.")) << name;
  }
  std::sort(steps.begin(), steps.end());
  EXPECT_EQ(steps, (std::vector<int64_t>{newest, newest + 2, newest + 3}));  // its base and the newest two
}

}  // namespace
}  // namespace tutti
