#include "worker/rpc/coordinator_link.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/philox.h"
#include "tutti/v1/agent.grpc.pb.h"

namespace tutti::worker {
namespace {

constexpr Millis kFirstBackoff{50};
constexpr Millis kLastBackoff{1000};
constexpr int kMaxMessageBytes = 64 << 20;

gpr_timespec Soon() {
  return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(kLastBackoff.count(), GPR_TIMESPAN));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(kFirstBackoff.count()));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(kFirstBackoff.count()));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(kLastBackoff.count()));
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A ping each 400 s is slower than any server's limit (five minutes); its timeout makes TCP give up a silent peer
  // after 10 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 400'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

struct CoordinatorLink::Impl {
  explicit Impl(CoordinatorLinkOptions o) : options(std::move(o)), channel(MakeChannel(options.address)) {}

  using Stream = grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>;

  CoordinatorLinkOptions options;
  std::shared_ptr<grpc::Channel> channel;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool open = false;
  int64_t stream_number = 0;
  grpc::ClientContext* context = nullptr;  // of the open stream
  std::deque<v1::ConnectRequest> outgoing;
  std::vector<Incoming> incoming;
  std::thread thread;

  void Push(Incoming item) {
    {
      const std::lock_guard lock(mutex);
      incoming.push_back(std::move(item));
    }
    const uint64_t one = 1;
    while (::write(options.wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  void Write(Stream& stream) {
    while (true) {
      v1::ConnectRequest message;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return !open || stopping || !outgoing.empty(); });
        if (!open) return;
        if (outgoing.empty()) break;
        message = std::move(outgoing.front());
        outgoing.pop_front();
      }
      if (!stream.Write(message)) return;  // the reader learns why
    }
    stream.WritesDone();
  }

  // One stream from its start to its end. Returns whether the coordinator answered on it.
  bool Serve() {
    grpc::ClientContext call;
    if (!options.token.empty()) call.AddMetadata("authorization", "Bearer " + options.token);
    const auto stub = v1::AgentService::NewStub(channel);
    {
      const std::lock_guard lock(mutex);
      if (stopping) return false;
      context = &call;
      open = true;
      ++stream_number;
      outgoing.clear();
    }
    const std::unique_ptr<Stream> stream = stub->Connect(&call);
    Push({Incoming::Kind::kOpened, stream_number, {}, ""});
    std::thread writer([&] { Write(*stream); });
    bool answered = false;
    v1::ConnectResponse message;
    while (stream->Read(&message)) {
      answered = true;
      Push({Incoming::Kind::kMessage, stream_number, std::move(message), ""});
      message = {};
    }
    {
      const std::lock_guard lock(mutex);
      open = false;
      outgoing.clear();
    }
    changed.notify_all();
    call.TryCancel();  // a writer that waits for room would never come back
    writer.join();
    {
      const std::lock_guard lock(mutex);
      context = nullptr;
    }
    const grpc::Status status = stream->Finish();
    Push({Incoming::Kind::kClosed,
          stream_number,
          {},
          status.ok() ? "the coordinator ended the stream" : status.error_message()});
    return answered;
  }

  void Run() {
    const PhiloxKey key = MakePhiloxKey(Xxh3(NewUlid()), "reconnect");  // agents must not come back in step
    uint32_t attempt = 0;
    Millis backoff = kFirstBackoff;
    while (true) {
      const bool connected = channel->WaitForConnected(Soon());
      if (connected && Serve()) backoff = kFirstBackoff;
      std::unique_lock lock(mutex);
      const float jitter = UnitFloat(Philox4x32(key, {++attempt, 0, 0, 0})[0]);  // half to all of the backoff
      const Millis wait(static_cast<int64_t>(static_cast<float>(backoff.count()) * (1 + jitter) / 2));
      if (changed.wait_for(lock, connected ? wait : Millis(0), [&] { return stopping; }) || stopping) return;
      backoff = std::min(backoff * 2, kLastBackoff);
    }
  }
};

CoordinatorLink::CoordinatorLink(CoordinatorLinkOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

CoordinatorLink::~CoordinatorLink() {
  {
    std::unique_lock lock(impl_->mutex);
    impl_->stopping = true;
    impl_->changed.notify_all();
    impl_->changed.wait_for(lock, kLastBackoff, [&] { return !impl_->open; });
    if (impl_->context != nullptr) impl_->context->TryCancel();
  }
  impl_->thread.join();
}

void CoordinatorLink::Send(int64_t stream, v1::ConnectRequest message) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->open || stream != impl_->stream_number) return;
    impl_->outgoing.push_back(std::move(message));
  }
  impl_->changed.notify_all();
}

size_t CoordinatorLink::queued() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->outgoing.size();
}

void CoordinatorLink::CloseStream() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->context != nullptr) impl_->context->TryCancel();
}

std::vector<CoordinatorLink::Incoming> CoordinatorLink::Take() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->incoming, {});
}

}  // namespace tutti::worker
