// A server stream that follows the state: one write in flight, the next message is chosen when it is done, on the
// strand. Made on a gRPC thread, lives until gRPC is done with the call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/shell.h"

namespace tutti::coordinator {

template <typename Response>
class StreamCall : public grpc::ServerWriteReactor<Response>, public Follower {
 public:
  // Call once, right after the making.
  void Start(const grpc::Status& allowed) {
    if (!allowed.ok()) {
      shell_->Post([this, allowed] { End(allowed); });
      return;
    }
    shell_->Post([this] {
      if (shell_->closing()) return Close(Unavailable("the coordinator is shutting down"));
      shell_->AddFollower(this);
      Begin();
      Pump();
    });
  }

  void OnRecord(const std::string&, const v1::SeriesRecord&) override {}
  void OnLog(const v1::LogChunk&) override {}
  void OnBatch(const State&) override { Pump(); }
  void Close(const Status& status) override { End(ToGrpc(status)); }

 protected:
  explicit StreamCall(Shell* shell) : shell_(shell) {}

  virtual void Begin() = 0;                    // may End
  virtual std::optional<Response> Next() = 0;  // what to write now, if anything; may End

  void End(grpc::Status status) {
    if (ended_) return;
    ended_ = true;
    shell_->RemoveFollower(this);
    last_ = std::move(status);
    if (!writing_) this->Finish(last_);
  }
  bool ended() const { return ended_; }
  Shell* shell() const { return shell_; }

  void Pump() {
    if (writing_ || ended_) return;
    std::optional<Response> next = Next();
    if (!next || ended_) return;
    buffer_ = *std::move(next);
    writing_ = true;
    this->StartWrite(&buffer_);
  }

 private:
  void OnWriteDone(bool ok) override {
    shell_->Post([this, ok] {
      writing_ = false;
      if (ended_) {
        this->Finish(last_);
      } else if (!ok) {
        End(grpc::Status::CANCELLED);
      } else {
        Pump();
      }
    });
  }
  void OnCancel() override {
    shell_->Post([this] { End(grpc::Status::CANCELLED); });
  }
  void OnDone() override {
    shell_->Post([this] {
      shell_->RemoveFollower(this);
      delete this;
    });
  }

  Shell* const shell_;
  Response buffer_;
  bool writing_ = false;
  bool ended_ = false;
  grpc::Status last_;
};

}  // namespace tutti::coordinator
