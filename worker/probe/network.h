// Which address other nodes reach us at.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tutti::worker {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric, IPv4 first
  bool loopback = false;
};
// Interfaces that are up and have an address, in the system's order.
StatusOr<std::vector<Interface>> ListInterfaces();

// True for "unix:...", "localhost:...", "127.x.y.z:..." and "[::1]:...".
bool IsLocalEndpoint(const std::string& endpoint);
bool IsLoopbackAddress(const std::string& address);

// The local address from which packets to HOST:PORT leave (a UDP socket is connected, nothing is sent). Empty when HOST
// has no route or does not resolve now.
std::string RoutedAddress(const std::string& endpoint);

struct AdvertiseInputs {
  std::string coordinator;  // endpoint as given
  std::string routed;       // RoutedAddress(coordinator)
  std::vector<Interface> interfaces;
  std::string pattern;    // --net-interface, or empty
  std::string advertise;  // --advertise, or empty
};

// In order: the given address; the address of the first interface that the pattern takes (the routed one before
// others); the address that routes to the coordinator; 127.0.0.1 with a coordinator on this host. FAILED_PRECONDITION
// when only loopback is left although the coordinator is elsewhere, INVALID_ARGUMENT for a pattern that takes no
// interface; both say what there is and what to do.
//
// Pattern: "eth0,ib" takes interfaces of these names, "^lo,docker" all but these. A name also stands for itself
// followed by digits: "docker" for docker0. No other forms.
StatusOr<std::string> ChooseAdvertiseAddress(const AdvertiseInputs& inputs);

}  // namespace tutti::worker
