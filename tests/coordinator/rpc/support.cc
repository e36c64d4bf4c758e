#include "tests/coordinator/rpc/fixture.h"

namespace tutti::coordinator {

v1::JobSpec ValidSpec(int64_t ranks) {
  v1::JobSpec spec;
  spec.mutable_metadata()->set_name("tiny");
  (*spec.mutable_metadata()->mutable_labels())["team"] = "vision";
  (*spec.mutable_metadata()->mutable_labels())["stage"] = "test";
  spec.mutable_model()->add_layers()->mutable_flatten();
  spec.mutable_model()->add_layers()->mutable_dense()->set_units(10);
  spec.mutable_model()->set_loss(v1::LOSS_SOFTMAX_CROSS_ENTROPY);
  spec.mutable_data()->mutable_train()->set_format(v1::DATA_FORMAT_IDX);
  spec.mutable_data()->mutable_train()->set_images("/data/images");
  spec.mutable_data()->mutable_train()->set_labels("/data/labels");
  spec.mutable_data()->set_std(1);
  spec.mutable_data()->set_classes(10);
  spec.mutable_data()->set_threads(1);
  spec.mutable_data()->set_prefetch(2);
  spec.mutable_batch()->set_global(8 * ranks);
  spec.mutable_batch()->set_micro(8);
  spec.mutable_numerics()->set_shards(ranks);
  spec.mutable_numerics()->set_threads(1);
  spec.mutable_numerics()->set_mode(v1::NUMERICS_MODE_EXACT);
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.mutable_optimizer()->set_learning_rate(0.1);
  spec.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_CONSTANT);
  spec.mutable_train()->set_steps(100);
  spec.mutable_train()->set_max_skipped_steps(10);
  spec.mutable_train()->set_log_every_steps(100);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  spec.mutable_checkpoint()->set_directory("/runs/tiny");
  spec.mutable_checkpoint()->set_keep(2);
  spec.mutable_checkpoint()->set_resume(v1::RESUME_MODE_AUTO);
  spec.mutable_checkpoint()->set_on_error(v1::DISK_FULL_POLICY_FAIL);
  spec.mutable_restart()->set_max_user_failures(3);
  spec.mutable_restart()->set_max_node_failures(10);
  spec.mutable_restart()->set_backoff_ms(100);
  spec.mutable_restart()->set_grace_ms(1000);
  spec.mutable_restart()->set_collective_timeout_ms(30000);
  spec.mutable_restart()->set_start_timeout_ms(120000);
  return spec;
}

grpc::Status Create(const Coordinator& c, const std::string& uid, const v1::JobSpec& spec,
                    v1::CreateJobResponse* response) {
  v1::CreateJobRequest request;
  request.set_uid(uid);
  *request.mutable_spec() = spec;
  request.mutable_data()->set_train_samples(1000);
  Call call(&c);
  return c.Jobs()->CreateJob(&call, request, response);
}
std::string CreateOk(const Coordinator& c, const std::string& uid, const v1::JobSpec& spec) {
  v1::CreateJobResponse response;
  const grpc::Status status = Create(c, uid, spec, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job().id();
}
v1::Job Get(const Coordinator& c, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  v1::GetJobResponse response;
  Call call(&c);
  const grpc::Status status = c.Jobs()->GetJob(&call, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}
v1::Job WaitForJob(const Coordinator& c, const std::string& id, const std::function<bool(const v1::Job&)>& wanted) {
  v1::WatchJobsRequest request;
  request.set_id(id);
  Call call(&c);
  const auto stream = c.Jobs()->WatchJobs(&call, request);
  v1::WatchJobsResponse response;
  v1::Job last;
  while (stream->Read(&response)) {
    if (response.has_snapshot()) last = response.snapshot();
    if (response.has_changed()) last = response.changed();
    if (wanted(last)) {
      call.TryCancel();
      return last;
    }
  }
  ADD_FAILURE() << "the job never came there: " << last.status().ShortDebugString();
  return last;
}
std::function<bool(const v1::Job&)> InState(v1::JobState state) {
  return [state](const v1::Job& job) { return job.status().state() == state; };
}

}  // namespace tutti::coordinator
