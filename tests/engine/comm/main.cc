#include <gtest/gtest.h>

#include <string_view>

#include "tests/engine/comm/process_test.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--rank-process") return tutti::RunRankProcess(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
