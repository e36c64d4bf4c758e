// Digests. XXH3 (64 bit) guards against accidents; SHA-256 names content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tutti {

uint64_t Xxh3(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t Xxh3(std::string_view bytes, uint64_t seed = 0) { return Xxh3(bytes.data(), bytes.size(), seed); }

// XXH3 over pieces, in order: Digest() is Xxh3 of all bytes so far.
class Xxh3Stream {
 public:
  Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;
  ~Xxh3Stream();
  void Update(const void* data, size_t bytes);
  uint64_t Digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Sha256Hex(std::string_view bytes);

// SHA-256 over pieces, in order.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(const void* data, size_t bytes);
  std::string Hex();  // call once, at the end

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// 16 random bytes of the operating system as a ULID (26 characters, Crockford base 32, time first: sorts by creation).
std::string NewUlid();

}  // namespace tutti
