// Philox, digests, ids: expected values are published ones.
#include <gtest/gtest.h>

#include <set>

#include "base/digest.h"
#include "base/philox.h"
#include "base/types.h"

namespace tutti {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswersOfRandom123) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UnitFloatStaysBelowOne) {
  EXPECT_EQ(UnitFloat(0), 0.0f);
  EXPECT_LT(UnitFloat(~0u), 1.0f);
  EXPECT_EQ(UnitFloat(0x80000000u), 0.5f);
}

TEST(Philox, KeysOfOtherPurposesDiffer) {
  EXPECT_NE(MakePhiloxKey(1, "layers.0"), MakePhiloxKey(1, "layers.1"));
  EXPECT_NE(MakePhiloxKey(1, "layers.0"), MakePhiloxKey(2, "layers.0"));
  EXPECT_EQ(MakePhiloxKey(1, "layers.0"), MakePhiloxKey(1, "layers.0"));
}

// FIPS 180-2, appendix B.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 pieces;
  pieces.Update("a", 1);
  pieces.Update("bc", 2);
  EXPECT_EQ(pieces.Hex(), Sha256Hex("abc"));
}

// xxHash's specification: XXH3_64bits of no bytes with seed 0.
TEST(Xxh3, PublishedVector) { EXPECT_EQ(Xxh3(""), 0x2D06800538D394C2u); }

TEST(Ulid, IsWellFormedAndUnique) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string ulid = NewUlid();
    ASSERT_EQ(ulid.size(), 26u);
    ASSERT_EQ(ulid.find_first_not_of("0123456789ABCDEFGHJKMNPQRSTVWXYZ"), std::string::npos) << ulid;
    ASSERT_TRUE(seen.insert(ulid).second) << ulid;
  }
}

TEST(StrongInt, ArithmeticStaysInItsKind) {
  EXPECT_EQ(Step(3) + Step(4), Step(7));
  EXPECT_LT(Generation(1), Generation(2));
  static_assert(!std::is_convertible_v<int, Rank>);
  static_assert(!std::is_convertible_v<Bytes, ElementCount>);
}

}  // namespace
}  // namespace tutti
