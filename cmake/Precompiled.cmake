# Parsing headers is most of what compiling this project costs: three precompiled sets, shared by all targets of a kind.
#   tutti_pch       the standard library, absl::Status, fmt, the message classes
#   tutti_pch_grpc  the same and gRPC, for targets whose dependencies name gRPC
#   tutti_pch_test  the first and googletest; tests are compiled with little optimisation: they are built more often than run
# gcc takes a precompiled header only where code generation flags agree, hence -fPIC and OpenMP's flag for every target
# (cmake/Toolchain.cmake). Kernels with flags of their own go without.
set(TUTTI_PCH_COMMON
  <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <deque> <functional> <map> <memory> <mutex> <optional> <set> <span>
  <string> <string_view> <thread> <tuple> <utility> <variant> <vector>
  <fmt/core.h> <absl/status/status.h> <absl/status/statusor.h>
  <tutti/v1/api.pb.h> <tutti/v1/agent.pb.h> <tutti/v1/checkpoint.pb.h> <tutti/v1/shim.pb.h>)
set(TUTTI_TEST_OPTIONS -O1)
file(WRITE ${CMAKE_BINARY_DIR}/pch.cc "")

function(tutti_pch name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS;OPTIONS" ${ARGN})
  add_library(${name} STATIC ${CMAKE_BINARY_DIR}/pch.cc)
  target_link_libraries(${name} PRIVATE tutti_proto absl::status absl::statusor fmt::fmt ${ARG_DEPS})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${TUTTI_PCH_COMMON} ${ARG_HEADERS})
endfunction()

tutti_pch(tutti_pch)
tutti_pch(tutti_pch_grpc HEADERS <grpcpp/grpcpp.h> <tutti/v1/api.grpc.pb.h> <tutti/v1/agent.grpc.pb.h> DEPS tutti_proto_grpc)
tutti_pch(tutti_pch_test HEADERS <gmock/gmock.h> <gtest/gtest.h> DEPS GTest::gtest GTest::gmock OPTIONS ${TUTTI_TEST_OPTIONS})
