#include "base/framing.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/unique_fd.h"

namespace tutti {
namespace {

struct SocketPair {
  UniqueFd a, b;
  SocketPair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    a.Reset(fds[0]);
    b.Reset(fds[1]);
  }
};

TEST(Framing, FramesArriveWholeAndInOrder) {
  SocketPair pair;
  ASSERT_TRUE(SendFrame(pair.a.get(), "one").ok());
  ASSERT_TRUE(SendFrame(pair.a.get(), "").ok());
  pair.a.Reset();
  EXPECT_EQ(ReceiveFrame(pair.b.get())->value(), "one");
  EXPECT_EQ(ReceiveFrame(pair.b.get())->value(), "");
  EXPECT_FALSE(ReceiveFrame(pair.b.get())->has_value());  // clean end
}

TEST(Framing, SendToAClosedPeerIsAnErrorNotASignal) {
  SocketPair pair;
  pair.b.Reset();
  EXPECT_EQ(SendFrame(pair.a.get(), "x").code(), absl::StatusCode::kUnavailable);
}

TEST(Framing, StreamThatEndsInsideAFrameIsDataLoss) {
  std::string bytes;
  AppendFrame("payload", &bytes);
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    SocketPair pair;
    ASSERT_EQ(send(pair.a.get(), bytes.data(), cut, 0), static_cast<ssize_t>(cut));
    pair.a.Reset();
    EXPECT_EQ(ReceiveFrame(pair.b.get()).status().code(), absl::StatusCode::kDataLoss) << cut;
  }
}

TEST(Framing, ParserTakesBytesOneByOneAndFindsDamage) {
  std::string bytes;
  AppendFrame("first", &bytes);
  AppendFrame("second", &bytes);
  FrameParser parser;
  std::vector<std::string> frames;
  for (const char c : bytes) {
    parser.Feed(std::string_view(&c, 1));
    const auto frame = parser.Next();
    ASSERT_TRUE(frame.ok());
    if (frame->has_value()) frames.push_back(**frame);
  }
  EXPECT_EQ(frames, (std::vector<std::string>{"first", "second"}));
  bytes[9] ^= 1;  // inside the first payload
  FrameParser damaged;
  damaged.Feed(bytes);
  EXPECT_EQ(damaged.Next().status().code(), absl::StatusCode::kDataLoss);
}

TEST(Framing, AbsurdLengthIsRefusedBeforeAllocation) {
  FrameParser parser;
  parser.Feed(std::string("\xff\xff\xff\x7f\0\0\0\0", 8));
  EXPECT_EQ(parser.Next().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tutti
