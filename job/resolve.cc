#include "job/resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"

namespace tutti {
namespace {

constexpr int kMaxRunDirectories = 100'000;

void ResolvePools(google::protobuf::RepeatedPtrField<v1::Layer>* layers) {
  for (v1::Layer& layer : *layers) {
    if (layer.has_residual()) ResolvePools(layer.mutable_residual()->mutable_layers());
    v1::Pool* pool = layer.has_max_pool()   ? layer.mutable_max_pool()
                     : layer.has_avg_pool() ? layer.mutable_avg_pool()
                                            : nullptr;
    if (pool != nullptr && pool->stride() == 0) pool->set_stride(pool->size());
  }
}

}  // namespace

std::string DefaultRunDirectory(const std::string& working_directory, const std::string& name, bool fresh,
                                bool resume) {
  const std::string base = JoinPath(JoinPath(working_directory, "runs"), name);
  if (!fresh || !FileExists(base)) return base;
  std::string last = base;
  for (int i = 2; i < kMaxRunDirectories; ++i) {
    std::string next = fmt::format("{}-{}", base, i);
    if (!FileExists(next)) return resume ? last : next;
    last = std::move(next);
  }
  return last;
}

void ResolveAutomatic(const JobFileOptions& options, const std::function<bool(const std::string&)>& is_auto,
                      v1::JobSpec* spec) {
  ResolvePools(spec->mutable_model()->mutable_layers());
  const int64_t ranks = spec->resources().ranks();
  auto* numerics = spec->mutable_numerics();
  if (is_auto("spec.numerics.shards")) numerics->set_shards(ranks);
  if (is_auto("spec.numerics.threads")) {
    const int per_rank = spec->resources().cores_per_rank();
    numerics->set_threads(
        per_rank > 0 ? per_rank
                     : static_cast<int>(std::max<int64_t>(1, options.cores_available / std::max<int64_t>(1, ranks))));
  }
  if (const int64_t shards = numerics->shards(), global = spec->batch().global();
      is_auto("spec.batch.micro") && shards > 0 && global % shards == 0) {
    spec->mutable_batch()->set_micro(global / shards);
  }
  if (is_auto("spec.train.evaluateAtEnd")) spec->mutable_train()->set_evaluate_at_end(spec->data().has_eval());
  if (is_auto("spec.checkpoint.directory")) {
    const bool resume = spec->checkpoint().resume() == v1::RESUME_MODE_AUTO;
    spec->mutable_checkpoint()->set_directory(
        DefaultRunDirectory(options.working_directory, spec->metadata().name(), options.fresh_run_directory, resume));
  }
}

}  // namespace tutti
