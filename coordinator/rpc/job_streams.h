// The streaming methods of JobService. Each object belongs to gRPC and frees itself.
#pragma once

#include <grpcpp/grpcpp.h>

#include "coordinator/rpc/services.h"
#include "tutti/v1/api.pb.h"

namespace tutti::coordinator {

grpc::ServerWriteReactor<v1::WatchJobsResponse>* NewWatchCall(Shell* shell, const v1::WatchJobsRequest& request,
                                                              const grpc::Status& allowed);
grpc::ServerWriteReactor<v1::ReadLogsResponse>* NewLogsCall(Shell* shell, const v1::ReadLogsRequest& request,
                                                            const grpc::Status& allowed);
grpc::ServerWriteReactor<v1::ReadMetricsResponse>* NewMetricsCall(Shell* shell, Strand* background,
                                                                  const v1::ReadMetricsRequest& request,
                                                                  const grpc::Status& allowed);

}  // namespace tutti::coordinator
