# Compiler settings that hold for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)  # the tutti binaries find each other beside themselves
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # TUTTI_CHECK does not depend on NDEBUG

# -ffp-contract=off: whether a*b+c is fused must not depend on the target clone or the optimiser's mood (numerics contract).
# gcc 12 reports copies of short std::strings as out of bounds once the library's headers are precompiled (its bug 105651 and kin).
add_compile_options(-Wall -Wextra -Werror -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -ffp-contract=off -fPIC)

set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, comma separated")
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

include(CTest)
