#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

namespace tutti {
namespace {

class FilesTest : public testing::Test {
 protected:
  std::string Path(std::string_view name) const { return JoinPath(dir_.path(), name); }
  TempDirectory dir_ = *TempDirectory::Create("tutti-files-");
};

TEST_F(FilesTest, AtomicWriteReplacesAndLeavesNoTemporary) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "new", 0600).ok());
  EXPECT_EQ(*ReadFile(Path("f")), "new");
  EXPECT_EQ(*ListDirectory(dir_.path()), std::vector<std::string>{"f"});
  struct stat info {};
  ASSERT_EQ(stat(Path("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(FilesTest, ExclusiveCreationHasOneWinner) {
  constexpr int kThreads = 8;
  std::vector<Status> results(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { results[i] = CreateFileExclusive(Path("one"), std::to_string(i)); });
  }
  for (std::thread& t : threads) t.join();
  int winners = 0;
  for (int i = 0; i < kThreads; ++i) {
    if (results[i].ok()) {
      ++winners;
      EXPECT_EQ(*ReadFile(Path("one")), std::to_string(i));
    } else {
      EXPECT_EQ(results[i].code(), absl::StatusCode::kAlreadyExists);
    }
  }
  EXPECT_EQ(winners, 1);
}

TEST_F(FilesTest, ErrorsNameThePathAndSayWhatToDo) {
  const auto missing = ReadFile(Path("missing"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Message(missing.status()).find(Path("missing")), std::string::npos);
  ASSERT_TRUE(WriteFileAtomic(Path("big"), std::string(1000, 'x')).ok());
  EXPECT_EQ(ReadFile(Path("big"), 999).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(dir_.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FilesTest, FullDiskIsResourceExhausted) {
  UniqueFd full(open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full.valid());
  EXPECT_EQ(WriteAll(full.get(), "x").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FilesTest, OpenBeneathRefusesWhatLeavesTheFolder) {  // SEC-02
  ASSERT_TRUE(MakeDirectories(Path("root/sub")).ok());
  ASSERT_TRUE(WriteFileAtomic(Path("secret"), "s").ok());
  ASSERT_TRUE(WriteFileAtomic(Path("root/sub/log"), "l").ok());
  ASSERT_EQ(symlink("../secret", Path("root/out").c_str()), 0);
  UniqueFd root(open(Path("root").c_str(), O_RDONLY | O_DIRECTORY));
  EXPECT_TRUE(OpenBeneath(root.get(), "sub/log").ok());
  for (const std::string& bad : {std::string("../secret"), Path("secret"), std::string("out"),
                                 std::string("sub/../../secret"), std::string("sub/log\0x", 9)}) {
    EXPECT_EQ(OpenBeneath(root.get(), bad).status().code(), absl::StatusCode::kPermissionDenied) << bad;
  }
}

TEST_F(FilesTest, LockIsHeldUntilDroppedAndNamesItsHolder) {
  auto first = LockFile(Path("lock"));
  ASSERT_TRUE(first.ok());
  const auto second = LockFile(Path("lock"));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(second.status()).find(std::to_string(getpid())), std::string::npos);
  first->Reset();
  EXPECT_TRUE(LockFile(Path("lock")).ok());
}

TEST_F(FilesTest, TemporaryFolderIsRemovedWithItsContent) {
  std::string path;
  {
    const TempDirectory inner = *TempDirectory::Create("tutti-inner-");
    path = inner.path();
    ASSERT_TRUE(WriteFileAtomic(JoinPath(path, "f"), "x").ok());
  }
  EXPECT_FALSE(FileExists(path));
}

TEST(Paths, JoinAndSplit) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(Dirname("/a"), "/");
  EXPECT_EQ(Dirname("a"), ".");
  EXPECT_EQ(Dirname("/a/b"), "/a");
  EXPECT_EQ(Basename("/a/b"), "b");
  EXPECT_EQ(*AbsolutePath("/a/../b"), "/b");
}

}  // namespace
}  // namespace tutti
