// Where rows live. One writer; rows of one Commit appear together or not at all and are durable on return.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tutti/v1/journal.pb.h"

namespace tutti::coordinator {

struct Rows {
  v1::MetaRow meta;
  std::vector<v1::JobRow> jobs;    // by id, ascending
  std::vector<v1::NodeRow> nodes;  // by name, ascending
};

class Journal {
 public:
  virtual ~Journal() = default;

  // Everything kept; an empty journal gives zeros. DATA_LOSS: the file is damaged, FAILED_PRECONDITION: of another
  // version.
  virtual StatusOr<Rows> Load() = 0;

  // Inserts or replaces by id and name. RESOURCE_EXHAUSTED: no room, nothing was changed, may be tried again; any other
  // error: the caller must stop serving, for what is on disk is not known.
  virtual Status Commit(const Rows& rows) = 0;
};

// Keeps rows in memory: the reference of the conformance suite, and the simulator's disk.
std::unique_ptr<Journal> NewMemoryJournal();

// SQLite in `directory`/journal.db (WAL, synchronous=FULL, exclusive). Not thread-safe. Call LockStateDirectory first.
// `max_pages` > 0 bounds the file (4 KiB each) as a full disk would.
StatusOr<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& directory, int64_t max_pages = 0);

// Takes `directory` (created 0700) for the life of this process. FAILED_PRECONDITION with the holder's pid when another
// coordinator has it, or when it lies on a network file system, whose locks and flushes cannot be trusted.
class StateLock;
StatusOr<std::shared_ptr<StateLock>> LockStateDirectory(const std::string& directory);

// "NFS", ... for the `f_type` of statfs(2) of a file system on the network; nullptr for others.
const char* NetworkFileSystemName(int64_t magic);

}  // namespace tutti::coordinator
