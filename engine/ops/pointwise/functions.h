// Elementary functions as straight-line f32 code that compilers vectorise; equal bits for every instruction set (no
// fused multiply-add, no library call). Errors are in units of the last place unless said otherwise.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tutti {

// e^x, 2 ulp on [-87.3, 88.3]; clamped outside. Range reduction x = n ln 2 + r, then a polynomial of degree 6 in r
// (Taylor with coefficients fitted for [-ln2/2, ln2/2], as in the Cephes library's expf).
inline float FastExp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const auto exponent = static_cast<int32_t>(n) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

// 3 ulp. Below 0.625 an odd polynomial (Cephes), above 1 - 2 / (e^2x + 1).
inline float FastTanh(float x) {
  const float z = std::fabs(x);
  const float s = x * x;
  float p = -5.70498872745e-3f;
  p = p * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const float small = p * s * x + x;
  const float large = 1.0f - 2.0f / (FastExp(2.0f * z) + 1.0f);
  const float signed_large = x < 0 ? -large : large;
  return z < 0.625f ? small : signed_large;
}

inline float FastSigmoid(float x) { return 1.0f / (1.0f + FastExp(-x)); }

// The standard normal distribution function, 0.5 * erfc(-x / sqrt 2): 4 + x^2 ulp. erfc(z) = t e^(-z^2 + P(t)), t = 1 /
// (1 + z / 2) (Numerical Recipes, "erfcc", fractional error below 1.2e-7).
inline float NormalCdf(float x) {
  const float z = std::fabs(x) * 0.70710678118654752f;
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  const float half = 0.5f * t * FastExp(p - z * z);
  return x < 0 ? half : 1.0f - half;
}

inline float NormalDensity(float x) { return 0.39894228040143268f * FastExp(-0.5f * x * x); }

}  // namespace tutti
