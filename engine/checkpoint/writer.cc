#include "engine/checkpoint/writer.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/digest.h"
#include "base/files.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/receipt.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/data/dataset.h"
#include "tutti/v1/checkpoint.pb.h"

namespace tutti {
namespace {

constexpr int64_t kMaxReceiptBytes = int64_t{256} << 20;
constexpr auto kFirstPoll = std::chrono::milliseconds(1), kLongestPoll = std::chrono::milliseconds(20);

int64_t Elements(const TensorRef& tensor) {
  int64_t elements = 1;
  for (int64_t dim : tensor.shape) elements *= dim;
  return elements;
}

void SortByName(std::vector<TensorRef>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorRef& a, const TensorRef& b) { return a.name < b.name; });
}

std::vector<int32_t> Owners(const std::vector<TensorRef>& sorted, int32_t ranks) {
  std::vector<int64_t> bytes;
  for (const TensorRef& tensor : sorted) bytes.push_back(Elements(tensor) * int64_t{sizeof(float)});
  return PartitionTensors(bytes, ranks);
}

bool IsWeight(int role) { return role == v1::TENSOR_ROLE_PARAMETER || role == v1::TENSOR_ROLE_STATISTIC; }

class Writer final : public AsyncCheckpointWriter {
 public:
  Writer(const CheckpointStore& store, const Options& options, std::vector<TensorRef> sorted)
      : store_(store),
        options_(options),
        clock_(options.clock != nullptr ? *options.clock : SystemClock()),
        tensors_(std::move(sorted)),
        owners_(Owners(tensors_, options.world_size)) {
    int64_t elements = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      offsets_.push_back(elements);
      if (Mine(i)) elements += Elements(tensors_[i]);
    }
    staging_.resize(static_cast<size_t>(elements));
    thread_ = std::thread([this] { Serve(); });
  }

  ~Writer() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Begin(const v1::Manifest& manifest, const Ledger& ledger, bool wait_for_commit) override {
    TUTTI_CHECK(manifest.step() == ledger.steps(), "step {}, ledger of {} steps", manifest.step(), ledger.steps());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !in_flight_; });
    lock.unlock();  // the thread sleeps until in_flight_ rises: staging and job are ours
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (Mine(i)) tensors_[i].copy_to_plain(staging_.data() + offsets_[i]);
    }
    start_ = clock_.Monotonic();
    manifest_ = manifest;
    ledger_ = ledger;
    wait_for_commit_ = wait_for_commit;
    lock.lock();
    in_flight_ = true;
    changed_.notify_all();
  }

  bool busy() const override {
    std::lock_guard lock(mutex_);
    return in_flight_;
  }

  std::optional<CheckpointResult> Poll() override {
    std::lock_guard lock(mutex_);
    if (results_.empty()) return std::nullopt;
    CheckpointResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

  std::optional<CheckpointResult> Finish() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !in_flight_; });
    if (results_.empty()) return std::nullopt;
    CheckpointResult result = std::move(results_.back());
    results_.clear();
    return result;
  }

  void SetBest(std::optional<int64_t> step) override {
    std::lock_guard lock(mutex_);
    options_.retention.best_step = step;
  }

  void Abort() override {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  bool Mine(size_t i) const { return owners_[i] == options_.rank.value(); }
  bool IsRoot() const { return options_.rank == Rank(0); }

  void Serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || in_flight_; });
      if (!in_flight_) return;  // one in flight is finished before the end
      lock.unlock();
      CheckpointResult result = Run();
      lock.lock();
      results_.push_back(std::move(result));
      in_flight_ = false;
      changed_.notify_all();
    }
  }

  CheckpointResult Run() {
    CheckpointResult result;
    // What an earlier attempt left may be the space that this one needs.
    if (IsRoot()) Note(store_.Retain(options_.self, CurrentRetention()), &result);
    result.step = Step(manifest_.step());
    result.path = store_.StepFolder(options_.self, result.step);
    auto receipt = WritePart(result.path);
    if (!receipt.ok()) {
      result.status = receipt.status();
      if (!IsRoot()) Note(LeaveFailure(result.path, result.status), &result);
    } else {
      result.bytes = receipt->bytes;
      if (IsRoot()) {
        result.status = Commit(&result);
      } else if (wait_for_commit_) {
        result.status = AwaitCommit(result.path);
        result.committed = result.status.ok();
      }
    }
    if (!result.status.ok() && !result.committed) Note(GiveUp(result), &result);
    result.seconds = std::chrono::duration<double>(clock_.Monotonic() - start_).count();
    return result;
  }

  CheckpointStore::Retention CurrentRetention() const {
    std::lock_guard lock(mutex_);
    return options_.retention;
  }

  // Frees what a write that failed took.
  Status GiveUp(const CheckpointResult& result) const {
    if (IsRoot()) return store_.Discard(options_.self, result.step, result.status.ToString());
    if (result.status.code() == absl::StatusCode::kAlreadyExists) return OkStatus();  // not ours
    TUTTI_RETURN_IF_ERROR(RemoveFile(JoinPath(result.path, SliceName(options_.rank))));
    return RemoveFile(JoinPath(result.path, ReceiptName(options_.rank)));
  }

  static void Note(const Status& status, CheckpointResult* result) {
    if (!status.ok()) result->notices.push_back(Message(status));
  }

  // This rank's tensors and its receipt, durable.
  StatusOr<Receipt> WritePart(const std::string& folder) {
    TUTTI_RETURN_IF_ERROR(store_.CheckCurrent(options_.self));
    TUTTI_RETURN_IF_ERROR(MakeDirectories(folder));
    TUTTI_RETURN_IF_ERROR(FsyncDirectory(store_.directory()));
    if (FileExists(JoinPath(folder, FailureName(Rank(0))))) return RootGaveUp();
    Receipt receipt{.file = SliceName(options_.rank), .bytes = 0, .xxh3 = 0, .tensors = {}};
    const std::string path = JoinPath(folder, receipt.file);
    const Status written = WriteSlice(path, &receipt);
    if (!written.ok()) {
      if (written.code() != absl::StatusCode::kAlreadyExists) TUTTI_RETURN_IF_ERROR(RemoveFile(path));
      return written;
    }
    TUTTI_RETURN_IF_ERROR(CreateFileExclusive(JoinPath(folder, ReceiptName(options_.rank)), FormatReceipt(receipt)));
    return receipt;
  }

  Status WriteSlice(const std::string& path, Receipt* receipt) {
    std::vector<SafetensorsEntry> entries;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (Mine(i)) entries.push_back({.name = tensors_[i].name, .dtype = "F32", .shape = tensors_[i].shape});
    }
    const std::map<std::string, std::string> metadata = {
        {"format", "pt"},
        {"job", options_.self.job_id},
        {"generation", fmt::format("{}", options_.self.generation.value())},
        {"step", fmt::format("{}", manifest_.step())},
        {"rank", fmt::format("{}", options_.rank.value())}};
    TUTTI_ASSIGN_OR_RETURN(SafetensorsWriter file, SafetensorsWriter::Create(path, std::move(entries), metadata));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!Mine(i)) continue;
      const std::span<const float> data(staging_.data() + offsets_[i], static_cast<size_t>(Elements(tensors_[i])));
      TUTTI_RETURN_IF_ERROR(file.Append(std::as_bytes(data)));
      if (!IsWeight(tensors_[i].role)) continue;
      Sha256 sha;
      sha.Update(data.data(), data.size_bytes());
      receipt->tensors.push_back({tensors_[i].name, tensors_[i].role, tensors_[i].shape, sha.Hex()});
    }
    TUTTI_RETURN_IF_ERROR(file.Finish());
    receipt->bytes = file.bytes();
    receipt->xxh3 = file.digest();
    return OkStatus();
  }

  // Tells rank 0, so that it need not wait for the deadline. A disk that is full may refuse this too: the deadline
  // holds.
  Status LeaveFailure(const std::string& folder, const Status& status) {
    if (status.code() == absl::StatusCode::kAborted || !FileExists(folder)) return OkStatus();
    return CreateFileExclusive(JoinPath(folder, FailureName(options_.rank)), status.ToString());
  }

  // Polls `done` until it says yes, an error comes, the deadline passes or Abort is called.
  template <typename Done>
  Status Await(Done done, const std::function<std::string()>& what) {
    const Nanos deadline = clock_.Monotonic() + std::chrono::milliseconds(options_.receipt_timeout_ms);
    auto poll = std::chrono::duration_cast<std::chrono::milliseconds>(kFirstPoll);
    while (true) {
      TUTTI_ASSIGN_OR_RETURN(const bool is_done, done());
      if (is_done) return OkStatus();
      if (clock_.Monotonic() >= deadline) {
        return DeadlineExceeded("checkpoint of step {}: no {} within {} ms", manifest_.step(), what(),
                                options_.receipt_timeout_ms);
      }
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, poll, [this] { return aborted_; })) {
        return Aborted("checkpoint of step {} was given up while it waited for {}", manifest_.step(), what());
      }
      poll = std::min(2 * poll, kLongestPoll);
    }
  }

  Status RootGaveUp() const { return Unavailable("checkpoint of step {}: rank 0 gave it up", manifest_.step()); }

  Status AwaitCommit(const std::string& folder) {
    const std::string manifest = JoinPath(folder, kManifestName), failure = JoinPath(folder, FailureName(Rank(0)));
    return Await(
        [&]() -> StatusOr<bool> {
          if (FileExists(manifest)) return true;
          if (FileExists(failure) || !FileExists(folder)) return RootGaveUp();
          return false;
        },
        [] { return std::string("manifest of rank 0"); });
  }

  StatusOr<std::vector<Receipt>> AwaitReceipts(const std::string& folder) {
    std::vector<std::optional<Receipt>> found(static_cast<size_t>(options_.world_size));
    const auto missing = [&] {
      std::string ranks;
      for (size_t r = 0; r < found.size(); ++r) {
        if (!found[r]) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
      }
      return "receipt of rank " + ranks;
    };
    const auto collect = [&]() -> StatusOr<bool> {
      for (size_t r = 0; r < found.size(); ++r) {
        if (found[r]) continue;
        TUTTI_ASSIGN_OR_RETURN(found[r], FindReceipt(folder, Rank(static_cast<int32_t>(r))));
      }
      return std::all_of(found.begin(), found.end(), [](const auto& receipt) { return receipt.has_value(); });
    };
    TUTTI_RETURN_IF_ERROR(Await(collect, missing));
    std::vector<Receipt> receipts;
    for (auto& receipt : found) receipts.push_back(*std::move(receipt));
    return receipts;
  }

  StatusOr<std::optional<Receipt>> FindReceipt(const std::string& folder, Rank rank) {
    const std::string failure = JoinPath(folder, FailureName(rank)), path = JoinPath(folder, ReceiptName(rank));
    if (FileExists(failure)) {
      TUTTI_ASSIGN_OR_RETURN(const std::string reason, ReadFile(failure, kMaxReceiptBytes));
      return Unavailable("checkpoint of step {}: rank {} failed: {}", manifest_.step(), rank.value(), reason);
    }
    if (!FileExists(path)) return std::optional<Receipt>();
    TUTTI_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxReceiptBytes));
    TUTTI_ASSIGN_OR_RETURN(Receipt receipt, ParseReceipt(json, path));
    const std::string slice = JoinPath(folder, SliceName(rank));
    const auto size = FileSize(slice);
    if (!size.ok()) return std::optional<Receipt>();  // on a shared file system names appear one by one
    if (receipt.file != SliceName(rank) || *size != receipt.bytes) {
      return DataLoss("{} has {} bytes, its rank wrote {} to {}", slice, *size, receipt.bytes, receipt.file);
    }
    return std::optional<Receipt>(std::move(receipt));
  }

  Status Commit(CheckpointResult* result) {
    const std::string ledger = ledger_.Serialize();
    TUTTI_RETURN_IF_ERROR(CreateFileExclusive(JoinPath(result->path, kLedgerName), ledger));
    TUTTI_ASSIGN_OR_RETURN(const std::vector<Receipt> receipts, AwaitReceipts(result->path));
    CompleteManifest(receipts, ledger, result);
    std::string json;
    google::protobuf::util::JsonPrintOptions options;
    options.add_whitespace = true;
    TUTTI_CHECK(google::protobuf::util::MessageToJsonString(manifest_, &json, options).ok());
    TUTTI_RETURN_IF_ERROR(store_.CheckCurrent(options_.self));
    TUTTI_RETURN_IF_ERROR(CreateFileExclusive(JoinPath(result->path, kManifestName), json));
    result->committed = true;
    Note(store_.LinkFriendlyName(options_.self, result->step), result);
    Note(store_.Retain(options_.self, CurrentRetention()), result);
    return OkStatus();
  }

  void CompleteManifest(const std::vector<Receipt>& receipts, const std::string& ledger, CheckpointResult* result) {
    manifest_.set_format_version(1);
    manifest_.set_job_id(options_.self.job_id);
    manifest_.set_generation(options_.self.generation.value());
    manifest_.set_world_size(options_.world_size);
    manifest_.clear_files();
    manifest_.clear_tensors();
    std::vector<TensorDigest> digests;
    const auto add_file = [&](const std::string& name, int64_t bytes, uint64_t xxh3, int32_t rank) {
      v1::SliceFile* file = manifest_.add_files();
      file->set_name(name);
      file->set_bytes(bytes);
      file->set_xxh3(DigestText(xxh3));
      file->set_rank(rank);
      result->bytes += bytes;
    };
    result->bytes = 0;
    for (size_t r = 0; r < receipts.size(); ++r) {
      add_file(receipts[r].file, receipts[r].bytes, receipts[r].xxh3, static_cast<int32_t>(r));
      digests.insert(digests.end(), receipts[r].tensors.begin(), receipts[r].tensors.end());
    }
    add_file(std::string(kLedgerName), static_cast<int64_t>(ledger.size()), Xxh3(ledger), 0);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      v1::TensorEntry* entry = manifest_.add_tensors();
      entry->set_name(tensors_[i].name);
      entry->set_file(SliceName(Rank(owners_[i])));
      entry->set_role(static_cast<v1::TensorRole>(tensors_[i].role));
      entry->mutable_shape()->Add(tensors_[i].shape.begin(), tensors_[i].shape.end());
    }
    result->weights_sha256 = WeightsSha256(std::move(digests));
    manifest_.set_weights_sha256(result->weights_sha256);
    manifest_.mutable_ledger()->set_chain(DigestText(ledger_.chain()));
    manifest_.mutable_ledger()->set_segment(std::string(kLedgerName));
    manifest_.mutable_ledger()->set_steps(ledger_.steps());
  }

  const CheckpointStore store_;
  Options options_;  // retention.best_step is guarded by mutex_
  const Clock& clock_;
  const std::vector<TensorRef> tensors_;  // by name
  const std::vector<int32_t> owners_;
  std::vector<int64_t> offsets_;  // in staging_, of own tensors

  // The write in flight: the caller's while in_flight_ is false, the thread's while it is true.
  std::vector<float> staging_;
  v1::Manifest manifest_;
  Ledger ledger_;
  bool wait_for_commit_ = false;
  Nanos start_{};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool in_flight_ = false, stopping_ = false, aborted_ = false;
  std::deque<CheckpointResult> results_;
  std::thread thread_;
};

}  // namespace

std::vector<int32_t> PartitionTensors(std::span<const int64_t> bytes, int32_t ranks) {
  TUTTI_CHECK(ranks >= 1);
  double total = 0, before = 0;
  for (int64_t size : bytes) total += static_cast<double>(size);
  std::vector<int32_t> owners;
  for (int64_t size : bytes) {  // by the middle of each tensor in the row of all bytes
    const double middle = before + static_cast<double>(size) / 2;
    owners.push_back(total > 0 ? std::min(ranks - 1, static_cast<int32_t>(middle / total * ranks)) : 0);
    before += static_cast<double>(size);
  }
  return owners;
}

int64_t AsyncCheckpointWriter::StagingBytes(const std::vector<TensorRef>& tensors, Rank rank, int32_t world_size) {
  std::vector<TensorRef> sorted = tensors;
  SortByName(&sorted);
  const std::vector<int32_t> owners = Owners(sorted, world_size);
  int64_t bytes = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (owners[i] == rank.value()) bytes += Elements(sorted[i]) * int64_t{sizeof(float)};
  }
  return bytes;
}

StatusOr<std::unique_ptr<AsyncCheckpointWriter>> AsyncCheckpointWriter::Create(const CheckpointStore& store,
                                                                               const Options& options,
                                                                               std::vector<TensorRef> tensors) {
  TUTTI_CHECK(options.rank.value() >= 0 && options.rank.value() < options.world_size);
  SortByName(&tensors);
  for (size_t i = 0; i + 1 < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i + 1].name) return InvalidArgument("tensor {} is named twice", tensors[i].name);
  }
  return std::make_unique<Writer>(store, options, std::move(tensors));
}

}  // namespace tutti
