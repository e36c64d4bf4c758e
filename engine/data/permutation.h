// The order of an epoch as a function: a keyed bijection of [0, N), evaluated in constant time without an index file.
//
// Two levels keep reads local. The data set, rotated by a keyed offset, is cut into windows of kShuffleWindow rows (the
// last one may be shorter); an epoch visits the windows in a keyed order and the rows of each window in a keyed order
// of their own. A reader thus needs one window (plus a batch of the next) at a time, and a data set of at most one
// window is shuffled as a whole. The rotation gives every epoch other neighbours. Both orders are alternating Feistel
// networks over the next power of two with Philox4x32-10 as the round function, and cycle walking back into the range
// (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002): fewer than two walks on average. Integers
// only: the same on every machine, rank, thread and resume.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace tutti {

inline constexpr int64_t kShuffleWindow = 1 << 16;

// A keyed bijection of [0, size).
class KeyedPermutation {
 public:
  // `stream` separates the permutations of one key; size >= 1, at most 2^62.
  KeyedPermutation(PhiloxKey key, uint64_t stream, int64_t size);
  int64_t operator()(int64_t i) const;   // i in [0, size)
  int64_t Inverse(int64_t value) const;  // Inverse((*this)(i)) == i

 private:
  uint64_t Round(int round, uint64_t half) const;
  PhiloxKey key_;
  uint64_t stream_;
  uint64_t size_;
  int low_bits_, high_bits_;
};

// Row of position i in [0, N) of one epoch. shuffle == false: the identity.
class EpochOrder {
 public:
  struct Options {
    uint64_t seed = 0;  // train.seed
    int64_t epoch = 0;  // from 0
    int64_t size = 1;   // N >= 1
    bool shuffle = true;
  };
  explicit EpochOrder(const Options& options);
  int64_t operator()(int64_t i) const;
  int64_t epoch() const { return options_.epoch; }

 private:
  Options options_;
  PhiloxKey key_;
  int64_t windows_;   // full and partial ones
  int64_t rotation_;  // first row of window 0
  KeyedPermutation window_order_;
  int64_t short_slot_;  // when the partial window is visited
};

}  // namespace tutti
