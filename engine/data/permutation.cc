#include "engine/data/permutation.h"

#include <bit>

#include "base/check.h"

namespace tutti {
namespace {

constexpr int kRounds = 8;  // four per half
constexpr uint64_t kWindowOrderStream = 0;
constexpr uint32_t kRotationRound = 0xFFFFFFFF;  // no Feistel round has this number
constexpr int64_t kMaxEpochSize = int64_t{1} << 46;

uint64_t Mask(int bits) { return (uint64_t{1} << bits) - 1; }

// Stream 0 of an epoch orders its windows, stream w + 1 the rows of window w.
uint64_t StreamOf(int64_t epoch, uint64_t purpose) { return static_cast<uint64_t>(epoch) << 32 | purpose; }

PhiloxCounter CounterOf(uint64_t stream, uint32_t round, uint64_t half) {
  return {static_cast<uint32_t>(half), round, static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
}

int64_t Rotation(PhiloxKey key, int64_t epoch, int64_t size) {
  const auto words = Philox4x32(key, CounterOf(StreamOf(epoch, kWindowOrderStream), kRotationRound, 0));
  return static_cast<int64_t>((uint64_t{words[0]} << 32 | words[1]) % static_cast<uint64_t>(size));
}

}  // namespace

KeyedPermutation::KeyedPermutation(PhiloxKey key, uint64_t stream, int64_t size)
    : key_(key), stream_(stream), size_(static_cast<uint64_t>(size)) {
  TUTTI_CHECK(size >= 1 && size <= int64_t{1} << 62, "size {}", size);
  const int bits = std::max(2, static_cast<int>(std::bit_width(size_ - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

uint64_t KeyedPermutation::Round(int round, uint64_t half) const {
  return Philox4x32(key_, CounterOf(stream_, static_cast<uint32_t>(round), half))[0];
}

int64_t KeyedPermutation::operator()(int64_t i) const {
  auto value = static_cast<uint64_t>(i);
  TUTTI_CHECK(value < size_, "{} is not below {}", i, size_);
  do {
    uint64_t low = value & Mask(low_bits_), high = value >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      high ^= Round(round, low) & Mask(high_bits_);
      low ^= Round(round + 1, high) & Mask(low_bits_);
    }
    value = high << low_bits_ | low;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

int64_t KeyedPermutation::Inverse(int64_t value_in) const {
  auto value = static_cast<uint64_t>(value_in);
  TUTTI_CHECK(value < size_, "{} is not below {}", value_in, size_);
  do {
    uint64_t low = value & Mask(low_bits_), high = value >> low_bits_;
    for (int round = kRounds; round > 0; round -= 2) {
      low ^= Round(round - 1, high) & Mask(low_bits_);
      high ^= Round(round - 2, low) & Mask(high_bits_);
    }
    value = high << low_bits_ | low;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

EpochOrder::EpochOrder(const Options& options)
    : options_(options),
      key_(MakePhiloxKey(options.seed, "epoch order")),
      windows_((options.size + kShuffleWindow - 1) / kShuffleWindow),
      rotation_(Rotation(key_, options.epoch, options.size)),
      window_order_(key_, StreamOf(options.epoch, kWindowOrderStream), windows_),
      short_slot_(window_order_.Inverse(windows_ - 1)) {
  TUTTI_CHECK(options.size >= 1 && options.size <= kMaxEpochSize, "size {}", options.size);
  TUTTI_CHECK(options.epoch >= 0 && options.epoch < int64_t{1} << 32, "epoch {}", options.epoch);
}

int64_t EpochOrder::operator()(int64_t i) const {
  TUTTI_CHECK(i >= 0 && i < options_.size, "{} is not in [0, {})", i, options_.size);
  if (!options_.shuffle) return i;
  const int64_t short_size = options_.size - (windows_ - 1) * kShuffleWindow;
  const int64_t short_begin = short_slot_ * kShuffleWindow, short_end = short_begin + short_size;
  int64_t slot = short_slot_, offset = i - short_begin;
  if (i < short_begin) {
    slot = i / kShuffleWindow, offset = i % kShuffleWindow;
  } else if (i >= short_end) {
    slot = short_slot_ + 1 + (i - short_end) / kShuffleWindow, offset = (i - short_end) % kShuffleWindow;
  }
  const int64_t window = window_order_(slot);
  const int64_t window_size = window == windows_ - 1 ? short_size : kShuffleWindow;
  const KeyedPermutation rows(key_, StreamOf(options_.epoch, static_cast<uint64_t>(window) + 1), window_size);
  return (rotation_ + window * kShuffleWindow + rows(offset)) % options_.size;
}

}  // namespace tutti
