// Processes below one of ours, found in /proc: also those that left their group and session.
#pragma once

#include <sys/types.h>

#include <vector>

namespace tutti::worker {

// Children, their children and so on, zombies left out; empty where /proc shows another PID namespace. A subreaper sees
// every orphan of its tree here.
std::vector<pid_t> Descendants(pid_t root);

}  // namespace tutti::worker
