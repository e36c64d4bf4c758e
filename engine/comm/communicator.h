// How ranks exchange numbers. One interface, three implementations (local: threads of one process; shm: processes of
// one host; gloo: TCP across hosts) and one conformance suite that runs on all of them.
//
// All calls are collective: every rank of the world makes the same calls in the same order. Each call carries its
// sequence number (counted by the communicator) and its size; a peer that is in another call, or in the same one with
// another size, is found out and both sides are named in an INVALID_ARGUMENT error on every rank; no result is
// delivered.
//
// Errors that every call may return, and what the caller does then:
//   UNAVAILABLE        a peer ended or its connection broke: park, wait for a new generation. Names the peer's rank
//   DEADLINE_EXCEEDED  no progress for the communicator's timeout: park. Names the ranks that were waited for
//   ABORTED            Abort was called on this rank, or a peer called it
//   INVALID_ARGUMENT   ranks disagree on what is called: a bug, or different programs
// BlamedRank(status) is that rank. After any error the communicator is poisoned: every later call returns it at once.
//
// Thread-safety: one call at a time, from any thread; Abort from any thread at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace tutti {

enum class ReduceOp { kSum, kMax };
enum class CommType { kF32, kI64, kU8 };  // kU8 cannot be reduced
int64_t SizeOf(CommType type);

class TreeReducer;  // engine/comm/tree_reduce.h

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual Rank rank() const = 0;
  virtual int32_t world_size() const = 0;

  // In place: every rank ends with the reduction of all ranks' `data`. The backend's own order of summation.
  virtual Status AllReduce(void* data, ElementCount count, CommType type, ReduceOp op) = 0;
  // The sum of the numerics contract: `partials` are this rank's subtrees in the order of tree.partials(), `count`
  // floats each; every rank ends with the sum of all ranks' partials in tree order in `result` (which may be one of the
  // partials; the others keep their values). The bits depend on tree.shards() alone, not on the world or the backend.
  virtual Status TreeAllReduce(const TreeReducer& tree, std::span<const float* const> partials, float* result,
                               ElementCount count) = 0;
  // `send` has world_size * count elements; rank r ends with the reduction of everybody's r-th part in `receive`.
  virtual Status ReduceScatter(const void* send, void* receive, ElementCount count, CommType type, ReduceOp op) = 0;
  // `receive` has world_size * count elements, by rank.
  virtual Status AllGather(const void* send, void* receive, ElementCount count, CommType type) = 0;
  // Variable sizes: rank r gets send[r]; receive[r] gets what rank r sent to us. Byte counts must match pairwise.
  virtual Status AllToAll(std::span<const std::span<const std::byte>> send,
                          std::span<const std::span<std::byte>> receive) = 0;
  virtual Status Broadcast(void* data, ElementCount count, CommType type, Rank root) = 0;
  // Both at once with one peer each (they may differ); an empty span: nothing in that direction.
  virtual Status SendRecv(std::span<const std::byte> send, Rank to, std::span<std::byte> receive, Rank from) = 0;
  virtual Status Barrier() = 0;
  // Ends the running call and poisons the communicator on every rank that can still be reached. `reason` is in their
  // errors.
  virtual void Abort(const std::string& reason) = 0;

  // Number of the running or last call, from 1: "#31" in messages.
  virtual int64_t sequence() const = 0;
};

// The first rank that an error of a communicator names as its cause (the dead, stopped or aborting one); none when it
// names nobody.
std::optional<Rank> BlamedRank(const Status& status);

// Compares `hash` of what each rank plans to call (program ids included) across the world, before the first step.
// INVALID_ARGUMENT on every rank when two differ; the message names both ranks with their `description` (cut to 160
// bytes).
Status CompareSequenceHash(Communicator& comm, uint64_t hash, std::string_view description);

}  // namespace tutti
