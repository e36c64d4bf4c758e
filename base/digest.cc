#include "base/digest.h"

#include <fmt/core.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <xxhash.h>

#include <array>

#include "base/check.h"
#include "base/clock.h"

namespace tutti {

uint64_t Xxh3(const void* data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

struct Xxh3Stream::Impl {
  Impl() { TUTTI_CHECK(state != nullptr && XXH3_64bits_reset(state) == XXH_OK); }
  ~Impl() { XXH3_freeState(state); }
  XXH3_state_t* state = XXH3_createState();
};

Xxh3Stream::Xxh3Stream() : impl_(std::make_unique<Impl>()) {}
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;
Xxh3Stream::~Xxh3Stream() = default;
void Xxh3Stream::Update(const void* data, size_t bytes) {
  TUTTI_CHECK(XXH3_64bits_update(impl_->state, data, bytes) == XXH_OK);
}
uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(impl_->state); }

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  TUTTI_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(impl_->context); }

void Sha256::Update(const void* data, size_t bytes) { TUTTI_CHECK(EVP_DigestUpdate(impl_->context, data, bytes) == 1); }

std::string Sha256::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  TUTTI_CHECK(EVP_DigestFinal_ex(impl_->context, digest.data(), &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes.data(), bytes.size());
  return sha.Hex();
}

std::string NewUlid() {
  static constexpr std::string_view kAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  std::array<uint8_t, 10> random{};
  TUTTI_CHECK(getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size()));
  std::string ulid(26, '0');
  auto time = static_cast<uint64_t>(SystemClock().UnixMillis());
  for (int i = 9; i >= 0; --i, time >>= 5) ulid[static_cast<size_t>(i)] = kAlphabet[time & 31];
  for (size_t i = 0; i < 16; ++i) {  // 80 random bits, five at a time
    const size_t bit = i * 5;
    const unsigned pair = static_cast<unsigned>(random[bit / 8]) << 8 | (bit / 8 + 1 < 10 ? random[bit / 8 + 1] : 0u);
    ulid[10 + i] = kAlphabet[(pair >> (11 - bit % 8)) & 31];
  }
  return ulid;
}

}  // namespace tutti
