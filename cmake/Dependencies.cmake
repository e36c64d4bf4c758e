# Every library that Tutti links, found once. docs/ARCHITECTURE.md says which folder may use which.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(OpenMP REQUIRED)
add_compile_options(${OpenMP_CXX_FLAGS})  # see cmake/Precompiled.cmake; only targets that link it run threads of it
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# dnnl's own package file asks for OpenCL headers that a CPU build does not use.
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(tutti_dnnl INTERFACE)
target_link_libraries(tutti_dnnl INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX)
add_library(tutti::dnnl ALIAS tutti_dnnl)

find_library(GLOO_LIBRARY gloo REQUIRED)
add_library(tutti_gloo INTERFACE)
target_link_libraries(tutti_gloo INTERFACE ${GLOO_LIBRARY})
add_library(tutti::gloo ALIAS tutti_gloo)

find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(tutti_xxhash INTERFACE)
target_link_libraries(tutti_xxhash INTERFACE ${XXHASH_LIBRARY})
add_library(tutti::xxhash ALIAS tutti_xxhash)
