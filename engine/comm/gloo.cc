#include "engine/comm/gloo.h"

#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <netdb.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/gloo_communicator.h"

namespace tutti {
namespace {

constexpr uint32_t kBlobMagic = 0x74746731;  // "ttg1"

struct BlobHeader {
  uint32_t magic = kBlobMagic;
  int32_t rank = 0, world_size = 0;
  uint32_t address_bytes = 0;  // of each of world_size addresses; the own one is zeros
  int64_t generation = 0;
};

// Runs gloo code; its exceptions become a status with `code`.
template <typename Fn>
Status Guard(absl::StatusCode code, const std::string& what, Fn fn) {
  try {
    fn();
  } catch (const std::exception& e) {
    return Status(code, fmt::format("{}: {}", what, e.what()));
  }
  return OkStatus();
}

// First address of `host` that this host can listen on, in numbers. gloo's own look-up crashes where there is none.
StatusOr<std::string> ResolveOwn(const std::string& host) {
  const addrinfo hints{.ai_flags = 0,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return Unavailable("address '{}' does not resolve: {}", host, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const UniqueFd socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    char text[NI_MAXHOST];
    if (!socket.valid() || ::bind(socket.get(), a->ai_addr, a->ai_addrlen) != 0) continue;
    if (::getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      return std::string(text);
  }
  return Unavailable("address '{}' is not one of this host's", host);
}

// Closes the connection being made when time is over; gloo's own wait has no deadline of the caller's.
class ConnectTimer {
 public:
  explicit ConnectTimer(Millis timeout) : thread_([this, timeout] { Run(timeout); }) {}
  ~ConnectTimer() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  bool Begin(gloo::transport::Pair* pair) {  // false: time is over
    const std::lock_guard lock(mutex_);
    pair_ = pair;
    return !expired_;
  }
  bool End() {  // true: time ran out meanwhile
    const std::lock_guard lock(mutex_);
    pair_ = nullptr;
    return expired_;
  }

 private:
  void Run(Millis timeout) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, timeout, [&] { return done_; })) return;
    expired_ = true;
    if (pair_ != nullptr) pair_->close();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false, expired_ = false;
  gloo::transport::Pair* pair_ = nullptr;
  std::thread thread_;
};

class Endpoint : public GlooEndpoint {
 public:
  explicit Endpoint(const GlooOptions& options) : options_(options) {}
  const std::string& blob() const override { return blob_; }
  Status Listen();
  StatusOr<std::unique_ptr<Communicator>> Connect(std::span<const std::string> blobs, Millis timeout) override;

 private:
  // The address inside `blob` that its owner made for us.
  StatusOr<std::vector<char>> AddressIn(const std::string& blob, int32_t owner) const;
  size_t BlobBytes() const { return sizeof(BlobHeader) + options_.world_size * address_bytes_; }

  const GlooOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  size_t address_bytes_ = 0;
  std::string blob_;
};

Status Endpoint::Listen() {
  const int32_t world = options_.world_size;
  std::vector<std::vector<char>> addresses(world);
  TUTTI_ASSIGN_OR_RETURN(const std::string address, ResolveOwn(options_.address));
  const BlockSigpipe block;  // for the device's thread
  TUTTI_RETURN_IF_ERROR(Guard(absl::StatusCode::kUnavailable,
                              fmt::format("rank {} cannot listen on '{}'", options_.rank.value(), options_.address),
                              [&] {
                                gloo::transport::tcp::attr attributes;
                                attributes.hostname = address;
                                device_ = gloo::transport::tcp::CreateDevice(attributes);
                                context_ = device_->createContext(options_.rank.value(), world);
                                context_->setTimeout(std::chrono::hours(24));
                                for (int32_t peer = 0; peer < world; ++peer) {
                                  if (peer == options_.rank.value()) continue;
                                  addresses[peer] = context_->createPair(peer)->address().bytes();
                                  address_bytes_ = addresses[peer].size();
                                }
                              }));
  const BlobHeader header{.rank = options_.rank.value(),
                          .world_size = world,
                          .address_bytes = static_cast<uint32_t>(address_bytes_),
                          .generation = options_.generation.value()};
  blob_.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  for (std::vector<char>& address : addresses) {
    address.resize(address_bytes_);
    blob_.append(address.begin(), address.end());
  }
  return OkStatus();
}

StatusOr<std::vector<char>> Endpoint::AddressIn(const std::string& blob, int32_t owner) const {
  BlobHeader header;
  if (blob.size() >= sizeof(header)) std::memcpy(&header, blob.data(), sizeof(header));
  if (blob.size() != BlobBytes() || header.magic != kBlobMagic || header.address_bytes != address_bytes_) {
    return InvalidArgument("peer blob of rank {} is damaged ({} bytes, expected {})", owner, blob.size(), BlobBytes());
  }
  if (header.rank != owner || header.world_size != options_.world_size ||
      header.generation != options_.generation.value()) {
    return InvalidArgument("peer blob of rank {} of {}, generation {}, where rank {} of {}, generation {} is expected",
                           header.rank, header.world_size, header.generation, owner, options_.world_size,
                           options_.generation.value());
  }
  const char* address = blob.data() + sizeof(header) + options_.rank.value() * address_bytes_;
  return std::vector<char>(address, address + address_bytes_);
}

StatusOr<std::unique_ptr<Communicator>> Endpoint::Connect(std::span<const std::string> blobs, Millis timeout) {
  if (context_ == nullptr) return FailedPrecondition("this endpoint is used up");
  if (static_cast<int32_t>(blobs.size()) != options_.world_size) {
    return InvalidArgument("{} peer blobs for {} ranks", blobs.size(), options_.world_size);
  }
  std::vector<std::vector<char>> addresses(blobs.size());
  for (int32_t peer = 0; peer < options_.world_size; ++peer) {
    if (peer == options_.rank.value()) continue;
    TUTTI_ASSIGN_OR_RETURN(addresses[peer], AddressIn(blobs[peer], peer));
  }
  const std::shared_ptr<gloo::transport::Context> context = std::move(context_);
  ConnectTimer timer(timeout);
  for (int32_t peer = 0; peer < options_.world_size; ++peer) {
    if (peer == options_.rank.value()) continue;
    gloo::transport::Pair* pair = context->getPair(peer).get();
    const std::string what = fmt::format("rank {} cannot connect to rank {}", options_.rank.value(), peer);
    const bool begun = timer.Begin(pair);
    const Status connected =
        begun ? Guard(absl::StatusCode::kUnavailable, what, [&] { pair->connect(addresses[peer]); }) : OkStatus();
    if (timer.End()) return WithBlame(DeadlineExceeded("{} within {} ms", what, timeout.count()), peer);
    if (!connected.ok()) return WithBlame(connected, peer);
  }
  return std::make_unique<GlooCommunicator>(std::make_unique<GlooLink>(context, device_, options_.timeout));
}

}  // namespace

StatusOr<std::unique_ptr<GlooEndpoint>> GlooEndpoint::Create(const GlooOptions& options) {
  if (options.address.empty() || options.world_size < 1 || options.rank.value() < 0 ||
      options.rank.value() >= options.world_size) {
    return InvalidArgument("gloo: address '{}', rank {} of {}", options.address, options.rank.value(),
                           options.world_size);
  }
  auto endpoint = std::make_unique<Endpoint>(options);
  TUTTI_RETURN_IF_ERROR(endpoint->Listen());
  return endpoint;
}

}  // namespace tutti
