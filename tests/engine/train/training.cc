#include "tests/engine/train/training.h"

#include <sstream>

namespace tutti::testing {
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

void AddLayer(const std::string& word, v1::Layer* layer) {
  const std::vector<std::string> parts = Split(word, ':');
  if (parts[0] == "conv") {
    v1::Conv2d* conv = layer->mutable_conv2d();
    conv->set_channels(std::stoi(parts[1]));
    conv->set_kernel(std::stoi(parts[2]));
    conv->set_padding(std::stoi(parts[3]));
    conv->set_stride(1);
  } else if (parts[0] == "bn") {
    layer->mutable_batch_norm()->set_epsilon(1e-5);
    layer->mutable_batch_norm()->set_momentum(0.1);
  } else if (parts[0] == "relu") {
    layer->mutable_activation()->set_kind(v1::ACTIVATION_KIND_RELU);
  } else if (parts[0] == "pool") {
    layer->mutable_max_pool()->set_size(2);
    layer->mutable_max_pool()->set_stride(2);
  } else if (parts[0] == "dropout") {
    layer->mutable_dropout()->set_rate(std::stod(parts[1]));
  } else if (parts[0] == "flatten") {
    layer->mutable_flatten();
  } else if (parts[0] == "dense") {
    layer->mutable_dense()->set_units(std::stoi(parts[1]));
    layer->mutable_dense()->set_bias(true);
  } else if (parts[0] == "res") {
    AddLayer("dense:" + parts[1], layer->mutable_residual()->add_layers());
    AddLayer("relu", layer->mutable_residual()->add_layers());
  } else {
    TUTTI_CHECK(false, "layer {}", word);
  }
}

}  // namespace

void AddLayers(const std::string& text, v1::Model* model) {
  for (const std::string& word : Split(text, ' ')) AddLayer(word, model->add_layers());
  model->set_loss(v1::LOSS_SOFTMAX_CROSS_ENTROPY);
}

v1::JobSpec SmallJob(const IdxFolder& data, const std::string& layers, const std::string& directory) {
  v1::JobSpec spec;
  spec.mutable_metadata()->set_name("small");
  AddLayers(layers, spec.mutable_model());
  *spec.mutable_data()->mutable_train() = data.source();
  *spec.mutable_data()->mutable_eval() = data.source();
  spec.mutable_data()->set_mean(0.5);
  spec.mutable_data()->set_std(0.5);
  spec.mutable_data()->set_classes(4);
  spec.mutable_data()->set_threads(1);
  spec.mutable_data()->set_prefetch(2);
  spec.mutable_batch()->set_global(16);
  spec.mutable_batch()->set_micro(16);
  spec.mutable_numerics()->set_shards(1);
  spec.mutable_numerics()->set_threads(1);
  spec.mutable_numerics()->set_mode(v1::NUMERICS_MODE_EXACT);
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.mutable_optimizer()->set_learning_rate(0.1);
  spec.mutable_optimizer()->set_momentum(0.9);
  spec.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_CONSTANT);
  spec.mutable_train()->set_steps(5);
  spec.mutable_train()->set_seed(1);
  spec.mutable_train()->set_evaluate_at_end(true);
  spec.mutable_train()->set_max_skipped_steps(10);
  spec.mutable_resources()->set_ranks(1);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  spec.mutable_checkpoint()->set_directory(directory);
  spec.mutable_checkpoint()->set_keep(3);
  spec.mutable_checkpoint()->set_resume(v1::RESUME_MODE_AUTO);
  spec.mutable_checkpoint()->set_on_error(v1::DISK_FULL_POLICY_FAIL);
  return spec;
}

std::vector<v1::StepRecord> RankRun::steps() const {
  std::vector<v1::StepRecord> records;
  for (const v1::RankEvent& event : events) {
    if (event.has_step()) records.push_back(event.step());
  }
  return records;
}

std::vector<v1::EvalRecord> RankRun::evaluations() const {
  std::vector<v1::EvalRecord> records;
  for (const v1::RankEvent& event : events) {
    if (event.has_evaluation()) records.push_back(event.evaluation());
  }
  return records;
}

v1::RankConfig MakeConfig(const v1::JobSpec& spec, const WorldOptions& options, int rank) {
  v1::RankConfig config;
  config.set_job_id("01JOB");
  *config.mutable_spec() = spec;
  config.mutable_spec()->mutable_resources()->set_ranks(options.ranks);
  config.set_generation(options.generation);
  config.set_base_step(options.base_step);
  for (const auto& [generation, base] : options.bases) {
    v1::GenerationBase* entry = config.add_bases();
    entry->set_generation(generation);
    entry->set_base_step(base);
  }
  config.set_rank(rank);
  config.set_world_size(options.ranks);
  const std::vector<int> cores = AllowedCores();
  if (options.ranks > 1) config.add_cores(cores[rank % cores.size()]);  // one lane; a single rank uses all cores
  return config;
}

std::vector<RankRun> RunWorld(const v1::JobSpec& spec, const WorldOptions& options) {
  std::vector<RankRun> runs(options.ranks);
  auto world = CreateLocalWorld({.world_size = options.ranks, .timeout = Millis(60'000)});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      RankRun& run = runs[rank];
      run.events.reserve(1024);  // no growth while allocations are counted
      auto trainer = Trainer::Create(MakeConfig(spec, options, rank));
      if (!trainer.ok()) {
        run.result = trainer.status();
        world[rank]->Abort("no trainer");
        return;
      }
      ControlBox control;
      TrainerHooks hooks;
      hooks.control = &control;
      hooks.emit = [&](v1::RankEvent event) {
        if (options.on_event) options.on_event(rank, event, *world[rank], control);
        if (!event.has_heartbeat()) run.events.push_back(std::move(event));
      };
      run.result = (*trainer)->Run(*world[rank], hooks);
      run.failed_in_collective = (*trainer)->failed_in_collective();
      run.where = (*trainer)->where();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return runs;
}

}  // namespace tutti::testing
