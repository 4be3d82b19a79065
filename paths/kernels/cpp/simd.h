// Float vectors of the widest width that the target has, written with compiler vector extensions so that one
// source serves every CPU. Intrinsics stand behind #ifdef, each beside a portable form.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>

namespace simd {

using bf16 = c10::BFloat16;
using e4m3 = c10::Float8_e4m3fn;

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));
typedef uint8_t vb __attribute__((vector_size(W)));

template <typename V, typename P>
inline V raw_load(const P* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

inline vf splat(float x) { return x - vf{}; }

inline vf load(const float* p) { return raw_load<vf>(p); }

// The compiler splits these widenings in halves, hence the intrinsics.
inline vu widen(vh v) {
#ifdef __AVX512F__
  return (vu)_mm512_cvtepu16_epi32((__m256i)v);
#else
  return __builtin_convertvector(v, vu);
#endif
}

inline vu widen(vb v) {
#ifdef __AVX512F__
  return (vu)_mm512_cvtepu8_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, vu);
#endif
}

inline vh narrow(vu v) {
#ifdef __AVX512F__
  return (vh)_mm512_cvtepi32_epi16((__m512i)v);
#else
  return __builtin_convertvector(v, vh);
#endif
}

inline vf load(const bf16* p) { return (vf)(widen(raw_load<vh>(p)) << 16); }

// e4m3 to float32, exact, without passing through float32 denormals
inline vf load(const e4m3* p) {
  const vu bits = widen(raw_load<vb>(p));
  const vu magnitude = bits & 0x7f;
  const vf normal = (vf)((magnitude << 20) + (120u << 23));
  const vf subnormal = normal * 2.0f - 0.015625f;
  vu value = magnitude < 8 ? (vu)subnormal : (vu)normal;
  value = magnitude == 0x7f ? vu{} + 0x7fc00000u : value;
  return (vf)(value | ((bits & 0x80) << 24));
}

inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof(v)); }

inline void store(bf16* p, vf v) {
  const vu bits = (vu)v;
  const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  const vh half = narrow(v != v ? vu{} + 0x7fc0u : rounded);
  std::memcpy(p, &half, sizeof(half));
}

inline float sum(vf v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#else
  float parts[W];
  std::memcpy(parts, &v, sizeof(v));
  for (int width = W / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
#endif
}

#ifdef __AVX512F__
// Four vectors in one: each 128-bit part holds the sums over that part, one per vector.
inline __m512 sum_parts(const vf* v) {
  const __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}

// Eight vectors in one: parts 0 and 1 still to be added for the first four, parts 2 and 3 for the others.
inline __m512 sum_halves(const vf* v) {
  const __m512 a = sum_parts(v), b = sum_parts(v + 4);
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

// Sums of sixteen vectors, and of eight; each the same additions as in sum4.
inline __m512 sum16(const vf* v) {
  const __m512 a = sum_halves(v), b = sum_halves(v + 8);
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

inline __m256 sum8(const vf* v) {
  const __m512 a = sum_halves(v);
  return _mm512_castps512_ps256(_mm512_add_ps(_mm512_shuffle_f32x4(a, a, 0x88), _mm512_shuffle_f32x4(a, a, 0xdd)));
}
#endif

// Sums of four vectors at once: the shuffles of one reduction serve all four.
inline void sum4(const vf* v, float* out) {
#ifdef __AVX512F__
  const __m512 parts = sum_parts(v);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(parts),
                                    _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(parts), 1)));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
  for (int i = 0; i < 4; ++i) out[i] = sum(v[i]);
#endif
}

inline void prefetch(const char* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

template <typename T>
inline void convert(const T* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

template <typename T>
inline void narrow(const float* from, T* to, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = static_cast<T>(from[i]);
}

// exp to about 2 ulp: 2^n · e^r with r in ±ln2/2; 0 below the smallest normal, inf above the largest, NaN kept.
inline vf exp(vf x) {
  const vf magic = splat(12582912.0f);
  const vf shifted = x * 1.44269504f + magic;
  const vf n = shifted - magic;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  vf y = (vf)((vi)p + (((vi)shifted - (vi)magic) << 23));
  y = x < -87.0f ? vf{} : y;
  y = x > 88.0f ? splat(std::numeric_limits<float>::infinity()) : y;
  return x == x ? y : x;
}

// Rounds a float32 vector to T and back: what a store into a tensor of T keeps.
inline void round_to(float*, int64_t, const float*) {}
inline void round_to(float* x, int64_t n, const bf16*) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    bf16 rounded[W];
    store(rounded, load(x + i));
    store(x + i, load(rounded));
  }
  for (; i < n; ++i) x[i] = static_cast<float>(static_cast<bf16>(x[i]));
}

}  // namespace simd
