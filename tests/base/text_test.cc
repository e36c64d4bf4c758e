#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace tutti {
namespace {

TEST(Text, NumbersAreGroupedByThree) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1407), "1,407");
  EXPECT_EQ(WithCommas(-1234567), "-1,234,567");
  EXPECT_EQ(WithCommas(-123), "-123");
  EXPECT_EQ(WithCommas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Text, SizesTakeTheGreatestUnitBelowThem) {
  EXPECT_EQ(MemoryText(512), "512 B");
  EXPECT_EQ(MemoryText(30'723'072), "29.3 MiB");
  EXPECT_EQ(MemoryText(int64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace tutti
