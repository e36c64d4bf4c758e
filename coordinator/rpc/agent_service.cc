#include <deque>
#include <utility>

#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/services.h"
#include "tutti/v1/agent.grpc.pb.h"

namespace tutti::coordinator {
namespace {

constexpr size_t kUnsentMost = 16384;

// One agent's stream. The next message is read when the last one was handled: an agent can never flood the strand.
class AgentCall : public grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>, public AgentSink {
 public:
  AgentCall(Shell* shell, const grpc::Status& allowed) : shell_(shell) {
    if (!allowed.ok()) {
      shell_->Post([this, allowed] { End(allowed); });
    } else {
      StartRead(&incoming_);
    }
  }

  void Send(v1::ConnectResponse message) override {
    if (ended_) return;
    if (unsent_.size() >= kUnsentMost)
      return Close(ResourceExhausted("{} messages wait for this agent: it reads too slowly", kUnsentMost));
    unsent_.push_back(std::move(message));
    WriteNext();
  }

  void Close(const Status& status) override { End(ToGrpc(status)); }

 private:
  void OnReadDone(bool ok) override {
    shell_->Post([this, ok] {
      if (ended_) return;
      if (!ok) return End(grpc::Status::OK);
      Handle();
      if (!ended_) StartRead(&incoming_);
    });
  }

  void Handle() {
    v1::ConnectRequest message = std::move(incoming_);
    incoming_.Clear();
    if (stream_ == 0) {
      if (!message.has_report())
        return Close(InvalidArgument("the first message of a stream must be the agent's report"));
      stream_ = shell_->AddAgent(this);
      if (!ended_) shell_->Apply(AgentConnected{stream_, std::move(*message.mutable_report())});
    } else if (message.has_log()) {
      shell_->RouteLog(message.log());
    } else {
      shell_->Apply(AgentSaid{stream_, std::move(message)});
    }
  }

  void WriteNext() {
    if (writing_ || unsent_.empty()) return;
    outgoing_ = std::move(unsent_.front());
    unsent_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    shell_->Post([this, ok] {
      writing_ = false;
      if (ended_) {
        Finish(last_);
      } else if (!ok) {
        End(grpc::Status::CANCELLED);
      } else {
        WriteNext();
      }
    });
  }

  void End(grpc::Status status) {
    if (ended_) return;
    ended_ = true;
    unsent_.clear();
    last_ = std::move(status);
    if (!writing_) Finish(last_);
  }

  void OnCancel() override {
    shell_->Post([this] { End(grpc::Status::CANCELLED); });
  }

  void OnDone() override {
    shell_->Post([this] {
      if (stream_ != 0) shell_->RemoveAgent(stream_);
      delete this;
    });
  }

  Shell* const shell_;
  v1::ConnectRequest incoming_;
  v1::ConnectResponse outgoing_;
  // The rest only on the strand.
  uint64_t stream_ = 0;
  std::deque<v1::ConnectResponse> unsent_;
  bool writing_ = false;
  bool ended_ = false;
  grpc::Status last_;
};

class AgentServiceImpl : public v1::AgentService::CallbackService {
 public:
  explicit AgentServiceImpl(const ServiceContext& context) : context_(context) {}

  grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* call) override {
    return new AgentCall(context_.shell, context_.authenticator->Check(*call));
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewAgentService(const ServiceContext& context) {
  return std::make_unique<AgentServiceImpl>(context);
}

}  // namespace tutti::coordinator
