#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "base/files.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/store.h"
#include "engine/data/dataset.h"
#include "tutti/v1/checkpoint.pb.h"
#include "tutti/v1/job.pb.h"

namespace tutti {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;
constexpr int32_t kFormatVersion = 1;

StatusOr<uint64_t> FileDigest(const std::string& path, int64_t bytes) {
  TUTTI_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path));
  std::vector<char> buffer(static_cast<size_t>(std::clamp<int64_t>(bytes, 1, 4 << 20)));
  Xxh3Stream digest;
  for (int64_t at = 0; at < bytes;) {
    const auto part = static_cast<size_t>(std::min<int64_t>(bytes - at, static_cast<int64_t>(buffer.size())));
    TUTTI_RETURN_IF_ERROR(ReadAt(fd.get(), buffer.data(), part, at, path));
    digest.Update(buffer.data(), part);
    at += static_cast<int64_t>(part);
  }
  return digest.Digest();
}

// " (it is of step 10, generation 1)" where the file says so: someone mixed folders by hand.
std::string Origin(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return "";
  const auto& metadata = file->header().metadata;
  const auto step = metadata.find("step"), generation = metadata.find("generation");
  if (step == metadata.end() || generation == metadata.end()) return "";
  return fmt::format(" (it is of step {}, generation {})", step->second, generation->second);
}

Status CheckManifest(const v1::Manifest& manifest, const std::string& folder, const std::string& path) {
  if (manifest.format_version() != kFormatVersion) {
    return InvalidArgument("{}: format version {}, this program reads {}", path, manifest.format_version(),
                           kFormatVersion);
  }
  const auto name = ParseFolderName(Basename(folder));
  if (name && (name->step.value() != manifest.step() || name->generation.value() != manifest.generation() ||
               name->tag != JobTag(manifest.job_id()))) {
    return DataLoss("{} is of step {}, generation {}, job {}: it does not belong into {}", path, manifest.step(),
                    manifest.generation(), manifest.job_id(), Basename(folder));
  }
  for (const v1::SliceFile& file : manifest.files()) {
    if (file.name().empty() || file.name()[0] == '.' || file.name().find('/') != std::string::npos) {
      return DataLoss("{}: '{}' is no name of a file of this folder", path, file.name());
    }
  }
  return OkStatus();
}

// Every tensor of the manifest that `slice` holds.
Status ReadTensors(const v1::Manifest& manifest, const std::string& folder, const std::string& slice,
                   std::map<std::string, LoadedTensor>* tensors) {
  TUTTI_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(JoinPath(folder, slice)));
  std::map<std::string_view, const SafetensorsEntry*> by_name;
  for (const SafetensorsEntry& entry : file.header().entries) by_name[entry.name] = &entry;
  for (const v1::TensorEntry& wanted : manifest.tensors()) {
    if (wanted.file() != slice) continue;
    const auto found = by_name.find(wanted.name());
    LoadedTensor tensor{.role = wanted.role(), .shape = {wanted.shape().begin(), wanted.shape().end()}, .data = {}};
    if (found == by_name.end() || found->second->shape != tensor.shape) {
      return DataLoss("{}: {} is absent or has another shape than the manifest says", file.path(), wanted.name());
    }
    tensor.data.resize(static_cast<size_t>(found->second->elements()));
    TUTTI_RETURN_IF_ERROR(file.ReadF32(*found->second, tensor.data));
    if (!tensors->emplace(wanted.name(), std::move(tensor)).second) {
      return DataLoss("{}: the manifest names {} twice", folder, wanted.name());
    }
  }
  return OkStatus();
}

StatusOr<Ledger> ReadLedger(const v1::Manifest& manifest, const std::string& folder) {
  const std::string path = JoinPath(folder, manifest.ledger().segment());
  TUTTI_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  auto ledger = Ledger::Parse(bytes);
  if (!ledger.ok()) return Annotate(ledger.status(), path);
  if (ledger->steps() != manifest.step() || DigestText(ledger->chain()) != manifest.ledger().chain()) {
    return DataLoss("{}: {} steps with chain {}, the manifest says {} with {}", path, ledger->steps(),
                    DigestText(ledger->chain()), manifest.step(), manifest.ledger().chain());
  }
  return ledger;
}

}  // namespace

StatusOr<CheckpointInfo> ReadManifest(const std::string& folder) {
  TUTTI_ASSIGN_OR_RETURN(std::string absolute, AbsolutePath(folder));
  const std::string path = JoinPath(absolute, kManifestName);
  TUTTI_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxManifestBytes));
  auto manifest = std::make_shared<v1::Manifest>();
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, manifest.get(), options);
  if (!parsed.ok()) return DataLoss("{} is damaged: {}", path, parsed.ToString());
  TUTTI_RETURN_IF_ERROR(CheckManifest(*manifest, absolute, path));
  return CheckpointInfo{.path = std::move(absolute),
                        .step = Step(manifest->step()),
                        .generation = Generation(manifest->generation()),
                        .manifest = std::move(manifest)};
}

Status VerifyFiles(const CheckpointInfo& info) {
  for (const v1::SliceFile& file : info.manifest->files()) {
    const std::string path = JoinPath(info.path, file.name());
    const auto size = FileSize(path);
    if (!size.ok()) return DataLoss("{} is missing", path);
    if (*size != file.bytes()) {
      return DataLoss("{} has {} bytes, the manifest says {}{}", path, *size, file.bytes(), Origin(path));
    }
    TUTTI_ASSIGN_OR_RETURN(const uint64_t digest, FileDigest(path, file.bytes()));
    if (DigestText(digest) != file.xxh3()) {
      return DataLoss("{} has XXH3 {}, the manifest says {}{}", path, DigestText(digest), file.xxh3(), Origin(path));
    }
  }
  return OkStatus();
}

StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& folder) {
  LoadedCheckpoint loaded;
  TUTTI_ASSIGN_OR_RETURN(loaded.info, ReadManifest(folder));
  TUTTI_RETURN_IF_ERROR(VerifyFiles(loaded.info));
  const v1::Manifest& manifest = *loaded.info.manifest;
  for (const v1::SliceFile& file : manifest.files()) {
    if (file.name() == manifest.ledger().segment()) continue;
    TUTTI_RETURN_IF_ERROR(ReadTensors(manifest, loaded.info.path, file.name(), &loaded.tensors));
  }
  if (std::cmp_not_equal(loaded.tensors.size(), manifest.tensors_size())) {
    return DataLoss("{}: the manifest names {} tensors, its files hold {}", loaded.info.path, manifest.tensors_size(),
                    loaded.tensors.size());
  }
  TUTTI_ASSIGN_OR_RETURN(loaded.ledger, ReadLedger(manifest, loaded.info.path));
  return loaded;
}

StatusOr<std::map<std::string, LoadedTensor>> ImportTensors(const std::string& path) {
  TUTTI_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.header().entries) names.push_back(entry.name);
  auto canonical = CanonicalNames(names);
  if (!canonical.ok()) return Annotate(canonical.status(), path);
  std::map<std::string, LoadedTensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    const SafetensorsEntry& entry = file.header().entries[i];
    LoadedTensor& tensor = tensors[(*canonical)[i]];
    tensor.role = v1::TENSOR_ROLE_PARAMETER;
    tensor.shape = entry.shape;
    tensor.data.resize(static_cast<size_t>(entry.elements()));
    TUTTI_RETURN_IF_ERROR(file.ReadF32(entry, tensor.data));
  }
  return tensors;
}

Status CheckResumable(const v1::Manifest& manifest, const v1::JobSpec& spec, uint64_t data_digest) {
  const v1::JobSpec& before = manifest.spec();
  const auto differs = [&](std::string_view what, const auto& saved, const auto& now) {
    return InvalidArgument("the checkpoint of step {} was trained with {} {}, this job has {}: it cannot go on exactly",
                           manifest.step(), what, saved, now);
  };
  if (manifest.data_digest() != DigestText(data_digest)) {
    return differs("training data of digest", manifest.data_digest(), DigestText(data_digest));
  }
  if (before.train().seed() != spec.train().seed())
    return differs("train.seed", before.train().seed(), spec.train().seed());
  if (before.data().shuffle() != spec.data().shuffle())
    return differs("data.shuffle", before.data().shuffle(), spec.data().shuffle());
  if (before.batch().global() != spec.batch().global()) {
    return differs("batch.global", before.batch().global(), spec.batch().global());
  }
  return OkStatus();
}

}  // namespace tutti
