// `tutti verify JOB`: proves from a run directory and the data alone that training saw every sample of each epoch
// exactly once.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/data/ledger.h"

namespace tutti {

struct VerifyReport {
  std::string checkpoint;  // absolute step folder that was checked
  std::string job_id;
  LedgerReport ledger;         // exact, epochs, steps, samples
  std::string weights_sha256;  // recomputed from the tensors
  bool exact = false;          // no problem of any kind
  std::vector<std::string> problems;
  std::vector<std::string> notices;  // checkpoints that were passed over, and why
};

// `directory` is a run folder or a step folder; `job_id` empty: whichever job's checkpoint is newest. Opens the data
// set that the manifest names and compares its digest; a manifest whose data set is gone is reported as a problem, and
// the ledger is still replayed. NOT_FOUND: no checkpoint.
StatusOr<VerifyReport> VerifyRun(const std::string& directory, const std::string& job_id = "");

}  // namespace tutti
