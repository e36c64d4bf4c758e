#include "worker/probe/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>

#include "base/unique_fd.h"

namespace tutti::worker {
namespace {

std::string Numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return ::inet_ntop(address->sa_family, bytes, text, sizeof text) != nullptr ? text : "";
}

struct HostPort {
  std::string host, port;
};
HostPort Split(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos) return {endpoint, ""};
  std::string host = endpoint.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, endpoint.substr(colon + 1)};
}

bool NameMatches(const std::string& name, const std::string& item) {
  return name.compare(0, item.size(), item) == 0 &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(item.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

bool PatternTakes(const std::string& pattern, const std::string& name) {
  const bool exclude = pattern[0] == '^';
  std::istringstream items(exclude ? pattern.substr(1) : pattern);
  for (std::string item; std::getline(items, item, ',');) {
    if (!item.empty() && NameMatches(name, item)) return !exclude;
  }
  return exclude;
}

std::string Listed(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& i : interfaces) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", i.name, i.address);
  return text.empty() ? "none" : text;
}

}  // namespace

StatusOr<std::vector<Interface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return ErrnoStatus(errno, "list network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family || (entry->ifa_flags & IFF_UP) == 0)
        continue;
      const auto same = [&](const Interface& i) { return i.name == entry->ifa_name; };
      if (std::any_of(interfaces.begin(), interfaces.end(), same)) continue;
      interfaces.push_back({entry->ifa_name, Numeric(entry->ifa_addr), (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return interfaces;
}

bool IsLoopbackAddress(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1" || address == "localhost";
}

bool IsLocalEndpoint(const std::string& endpoint) {
  return endpoint.rfind("unix:", 0) == 0 || IsLoopbackAddress(Split(endpoint).host);
}

std::string RoutedAddress(const std::string& endpoint) {
  const HostPort target = Split(endpoint);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const UniqueFd socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    if (socket.valid() && ::connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0) {
      return Numeric(reinterpret_cast<const sockaddr*>(&local));
    }
  }
  return "";
}

StatusOr<std::string> ChooseAdvertiseAddress(const AdvertiseInputs& inputs) {
  const bool local = IsLocalEndpoint(inputs.coordinator);
  std::string chosen = inputs.advertise;
  if (chosen.empty() && !inputs.pattern.empty()) {
    for (const Interface& i : inputs.interfaces) {
      if (!PatternTakes(inputs.pattern, i.name)) continue;
      if (chosen.empty() || i.address == inputs.routed) chosen = i.address;
    }
    if (chosen.empty()) {
      return InvalidArgument(
          "--net-interface '{}' takes none of this host's interfaces: {}. Forms: eth0 or eth0,ib0 (these), ^lo,docker "
          "(all but these)",
          inputs.pattern, Listed(inputs.interfaces));
    }
  }
  if (chosen.empty()) chosen = inputs.routed;
  if (local) return chosen.empty() ? "127.0.0.1" : chosen;
  if (!chosen.empty() && !IsLoopbackAddress(chosen)) return chosen;
  return FailedPrecondition(
      "the coordinator {} is on another host, but {}: ranks elsewhere could not connect to this node. Give the "
      "address that they reach with --advertise ADDRESS or --net-interface NAME; interfaces here: {}",
      inputs.coordinator,
      chosen.empty() ? std::string("no address of this host routes to it")
                     : fmt::format("this node would advertise the loopback address {}", chosen),
      Listed(inputs.interfaces));
}

}  // namespace tutti::worker
