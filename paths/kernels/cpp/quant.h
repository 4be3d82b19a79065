// fp8 quantization, RoPE, norms and the Hadamard rotation on one float32 vector.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace quant {

constexpr float kFp8Max = 448.0f;
constexpr float kAmaxFloor = 1e-4f;

// NaN if any value is one: std::max alone would drop it.
inline float amax(const float* x, int64_t n) {
  float largest = 0.0f;
  int nans = 0;
#pragma omp simd reduction(max : largest) reduction(+ : nans)
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    nans += x[i] != x[i];
  }
  return nans ? std::numeric_limits<float>::quiet_NaN() : largest;
}

// Smallest power of two at or above max(amax, 1e-4) / 448, by the exponent bits; infinite for NaN or infinity.
inline float ue8m0_scale(float largest) {
  const float exact = (largest < kAmaxFloor ? kAmaxFloor : largest) / kFp8Max;
  uint32_t bits;
  std::memcpy(&bits, &exact, sizeof(bits));
  const uint32_t power = std::min<uint32_t>((bits >> 23) + ((bits & 0x7fffffu) != 0), 255u) << 23;
  float scale;
  std::memcpy(&scale, &power, sizeof(scale));
  return scale;
}

// One e4m3 byte: clamp to ±448, round to nearest even, NaN stays NaN. Branch-free so that a loop vectorises.
inline uint8_t to_e4m3(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t sign = (bits >> 24) & 0x80;
  uint32_t magnitude = bits & 0x7fffffffu;
  const bool nan = magnitude > 0x7f800000u;
  magnitude = std::min(magnitude, 0x43e00000u);  // 448
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1) - (120u << 23)) >> 20;
  float small;
  std::memcpy(&small, &magnitude, sizeof(small));
  small += 16384.0f;  // one ulp here is 2^-9, the smallest e4m3 step
  uint32_t subnormal;
  std::memcpy(&subnormal, &small, sizeof(subnormal));
  subnormal -= 0x46800000u;
  const uint32_t code = magnitude < 0x3c800000u ? subnormal : normal;
  return static_cast<uint8_t>(sign | (nan ? 0x7fu : code));
}

inline void to_e4m3(const float* x, float scale, uint8_t* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = to_e4m3(x[i] / scale);
}

// What a float32 vector keeps when it passes through e4m3 with scale 1.
inline void round_to_e4m3(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(simd::e4m3(to_e4m3(x[i]), simd::e4m3::from_bits()));
}

// Rotates pairs (2i, 2i+1) or (i, i + n/2) by the angle of row `cos`, `sin` [n/2].
inline void rope(float* x, const float* cos, const float* sin, int64_t n, bool interleaved) {
  const int64_t half = n / 2;
  if (interleaved) {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cos[i] - b * sin[i];
      x[i + half] = a * sin[i] + b * cos[i];
    }
  }
}

// y = x · H / sqrt(n) with the Sylvester matrix; n is a power of two.
inline void hadamard(float* x, int64_t n) {
  for (int64_t span = 1; span < n; span *= 2)
    for (int64_t start = 0; start < n; start += 2 * span)
#pragma omp simd
      for (int64_t i = start; i < start + span; ++i) {
        const float a = x[i], b = x[i + span];
        x[i] = a + b;
        x[i + span] = a - b;
      }
  const float scale = 1.0f / std::sqrt(static_cast<float>(n));
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

inline float sum_of_squares(const float* x, int64_t n) {
  float total = 0.0f;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += x[i] * x[i];
  return total;
}

inline void rms_norm(const float* x, const float* weight, float eps, float* out, int64_t n) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

inline void layer_norm(float* x, const float* weight, const float* bias, float eps, int64_t n) {
  float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
  for (int64_t i = 0; i < n; ++i) mean += x[i];
  mean /= static_cast<float>(n);
  float variance = 0.0f;
#pragma omp simd reduction(+ : variance)
  for (int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const float inverse = 1.0f / std::sqrt(variance / static_cast<float>(n) + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}

}  // namespace quant
