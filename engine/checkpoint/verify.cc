#include "engine/checkpoint/verify.h"

#include "base/files.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/writer.h"
#include "engine/data/dataset.h"
#include "tutti/v1/checkpoint.pb.h"
#include "tutti/v1/job.pb.h"

namespace tutti {
namespace {

StatusOr<std::string> FindFolder(const std::string& directory, const std::string& job_id,
                                 std::vector<std::string>* notices) {
  if (FileExists(JoinPath(directory, kManifestName))) return directory;
  TUTTI_ASSIGN_OR_RETURN(const CheckpointStore store, CheckpointStore::OpenExisting(directory));
  TUTTI_ASSIGN_OR_RETURN(const auto latest, store.Latest(job_id, Fence(), notices));
  if (!latest)
    return NotFound("{} holds no complete checkpoint{}", store.directory(), job_id.empty() ? "" : " of job " + job_id);
  return latest->path;
}

// The size of the data set, from the data itself where it can be had.
int64_t DataSetSize(const v1::Manifest& manifest, std::vector<std::string>* problems) {
  const v1::Data& data = manifest.spec().data();
  const auto dataset = OpenDataset(data.train(), data.classes());
  if (!dataset.ok()) {
    problems->push_back(fmt::format("the training data cannot be checked: {}", Message(dataset.status())));
    return manifest.data_set_size();
  }
  if (DigestText((*dataset)->digest()) != manifest.data_digest()) {
    problems->push_back(fmt::format("the training data has digest {}, the run used {}",
                                    DigestText((*dataset)->digest()), manifest.data_digest()));
  }
  return (*dataset)->size();
}

}  // namespace

StatusOr<VerifyReport> VerifyRun(const std::string& directory, const std::string& job_id) {
  VerifyReport report;
  TUTTI_ASSIGN_OR_RETURN(const std::string folder, FindFolder(directory, job_id, &report.notices));
  TUTTI_ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(folder));
  const v1::Manifest& manifest = *loaded.info.manifest;
  report.checkpoint = loaded.info.path;
  report.job_id = manifest.job_id();
  report.weights_sha256 = WeightsSha256(loaded.tensors);
  if (report.weights_sha256 != manifest.weights_sha256()) {
    report.problems.push_back(fmt::format("the weights have SHA-256 {}, the manifest says {}", report.weights_sha256,
                                          manifest.weights_sha256()));
  }
  const v1::JobSpec& spec = manifest.spec();
  const auto counts = CountSteps({.epochs = spec.train().epochs(),
                                  .steps = spec.train().steps(),
                                  .global_batch = spec.batch().global(),
                                  .data_set_size = DataSetSize(manifest, &report.problems)});
  if (!counts.ok()) {
    report.problems.push_back(fmt::format("the order cannot be replayed: {}", Message(counts.status())));
    return report;
  }
  report.ledger = VerifyLedger({.seed = spec.train().seed(), .shuffle = spec.data().shuffle(), .counts = *counts},
                               loaded.ledger.entries());
  report.problems.insert(report.problems.end(), report.ledger.problems.begin(), report.ledger.problems.end());
  if (manifest.position() != report.ledger.samples) {
    report.problems.push_back(fmt::format("the manifest's position is {}, the ledger has {} samples",
                                          manifest.position(), report.ledger.samples));
  }
  report.exact = report.ledger.exact && report.problems.empty();
  return report;
}

}  // namespace tutti
