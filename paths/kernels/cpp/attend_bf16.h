// Attention of one row over bfloat16 keys read in place, on processors that multiply pairs of bfloat16.
//
// Heads go in groups of eight, which share each load of a key. A block of keys is scored whole, so that a row of few
// keys has one softmax and its values stay in registers from the first key to the last. Probabilities are multiplied
// as bfloat16; what they are divided by is the sum of the rounded ones.
#pragma once

#ifdef __AVX512BF16__

#include <algorithm>
#include <cmath>

#include "scratch.h"
#include "simd.h"
#include "transpose.h"

namespace attend_bf16 {

using simd::bf16;
using simd::vf;

constexpr int kGroup = 8;  // heads
constexpr int kTile = 16;  // keys scored at once
constexpr int64_t kBlock = 64;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Keys of one row; `fetch_begin` .. `fetch_end` of `rows` are to be fetched while others are scored.
struct Keys {
  const char* const* rows;
  int64_t count, fetch_begin, fetch_end, bytes;
};

struct Shape {
  int64_t heads, latent, width;  // width = C + R
  int64_t groups() const { return (heads + kGroup - 1) / kGroup; }
};

inline bool takes(int64_t latent, int64_t width) { return latent % 32 == 0 && width % 4 == 0; }

// Of one group. A vector holds two keys: four parts of [key a: head 2i, head 2i + 1; key b: the same heads].
struct Running {
  vf maximum, total, rounded;
};

// Working memory of one thread.
struct Memory {
  Scratch<bf16> queries;  // [groups][width / 4][heads of the group][4]
  Scratch<float> sums;    // [groups × 8][C]
  Scratch<Running> running;
  explicit Memory(const Shape& s)
      : queries(s.groups() * kGroup * s.width), sums(s.groups() * kGroup * s.latent), running(s.groups()) {}
};

// Queries of up to eight heads side by side, four values of each; heads that are missing are zero.
inline void pack(const bf16* q, int64_t stride, int64_t heads, int64_t width, bf16* packed) {
  for (int64_t at = 0; at < width; at += 32) {
    const int64_t steps = std::min<int64_t>(8, (width - at) / 4);
    const __mmask8 live = static_cast<__mmask8>(0xff >> (8 - steps));
    __m512i r[8];
#pragma GCC unroll 8
    for (int h = 0; h < kGroup; ++h)
      r[h] = h < heads ? _mm512_maskz_loadu_epi64(live, q + h * stride + at) : _mm512_setzero_si512();
    simd::transpose_8(r);
    for (int64_t s = 0; s < steps; ++s) _mm512_storeu_si512(packed + at * kGroup + s * 32, r[s]);
  }
}

inline __m512bh four_values(const bf16* key) {
  long long bits;
  std::memcpy(&bits, key, sizeof(bits));
  return (__m512bh)_mm512_set1_epi64(bits);
}

// Scores of kTile keys and the heads of a group.
[[gnu::noinline]] inline void score_tile(const bf16* queries, int64_t width, const bf16* const* keys, vf* scores) {
  constexpr int kAhead = 4;  // steps per look at the pointers of the keys, which exceed the registers
  vf acc[kTile] = {};
  int64_t d = 0;
  for (; d + 4 * kAhead <= width; d += 4 * kAhead) {
    __m512bh q[kAhead];
#pragma GCC unroll 4
    for (int s = 0; s < kAhead; ++s) q[s] = (__m512bh)_mm512_loadu_si512(queries + (d + 4 * s) * kGroup);
#pragma GCC unroll 16
    for (int n = 0; n < kTile; ++n) {
      const bf16* key = keys[n] + d;
#pragma GCC unroll 4
      for (int s = 0; s < kAhead; ++s)
        acc[n] = (vf)_mm512_dpbf16_ps((__m512)acc[n], q[s], four_values(key + 4 * s));
    }
  }
  for (; d < width; d += 4) {
    const __m512bh q = (__m512bh)_mm512_loadu_si512(queries + d * kGroup);
#pragma GCC unroll 16
    for (int n = 0; n < kTile; ++n) acc[n] = (vf)_mm512_dpbf16_ps((__m512)acc[n], q, four_values(keys[n] + d));
  }
#pragma GCC unroll 8
  for (int n = 0; n < kTile; n += 2)
    scores[n / 2] = (vf)_mm512_shuffle_ps((__m512)acc[n], (__m512)acc[n + 1], 0x88) +
                    (vf)_mm512_shuffle_ps((__m512)acc[n], (__m512)acc[n + 1], 0xdd);
}

inline vf other_key(vf v) { return (vf)_mm512_shuffle_ps((__m512)v, (__m512)v, 0x4e); }

inline vf larger(vf a, vf b) { return (a > b) | (a != a) ? a : b; }  // NaN once there is one

// Lane of a head in a vector that holds the same for both keys.
inline int lane(int h) { return h / 2 * 4 + h % 2; }

// Scores of `count` keys become probabilities relative to the running maximum, in pairs of keys [pair][head]; returns
// the factors of what came before.
inline vf softmax(vf* scores, int64_t count, float scale, Running& running, uint32_t* pairs) {
  const int64_t vectors = (count + 1) / 2;
  for (int64_t v = 0; v < vectors; ++v) scores[v] *= scale;
  if (count % 2 != 0) {
    vf& last = scores[vectors - 1];
    last = (vf)_mm512_mask_mov_ps((__m512)last, 0xcccc, (__m512)simd::splat(kMinusInf));
  }
  vf top = scores[0];
  for (int64_t v = 1; v < vectors; ++v) top = larger(scores[v], top);
  top = larger(larger(top, other_key(top)), running.maximum);
  const vf reference = top == kMinusInf ? vf{} : top;
  const vf before = simd::exp(running.maximum - reference);
  const __m256i by_head =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  vf total = {}, rounded = {};
  for (int64_t v = 0; v < vectors; ++v) {
    const vf p = simd::exp(scores[v] - reference);
    const __m256i halves = (__m256i)_mm512_cvtneps_pbh((__m512)p);
    total += p;
    rounded += (vf)(simd::widen((simd::vh)halves) << 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + v * kGroup), _mm256_shuffle_epi8(halves, by_head));
  }
  running.total = running.total * before + (total + other_key(total));
  running.rounded = running.rounded * before + (rounded + other_key(rounded));
  running.maximum = top;
  return before;
}

// 32 columns of eight heads: sums over `vectors` pairs of keys, two vectors for each head.
inline void sum_strip(const uint32_t* pairs, const bf16* const* keys, int64_t vectors, int64_t column, vf* sums) {
  vf acc[2 * kGroup] = {};
  for (int64_t v = 0; v < vectors; ++v) {
    const __m512i a = _mm512_loadu_si512(keys[2 * v] + column), b = _mm512_loadu_si512(keys[2 * v + 1] + column);
    const __m512bh low = (__m512bh)_mm512_unpacklo_epi16(a, b), high = (__m512bh)_mm512_unpackhi_epi16(a, b);
#pragma GCC unroll 8
    for (int h = 0; h < kGroup; ++h) {
      const __m512bh p = (__m512bh)_mm512_set1_epi32(static_cast<int>(pairs[v * kGroup + h]));
      acc[2 * h] = (vf)_mm512_dpbf16_ps((__m512)acc[2 * h], p, low);
      acc[2 * h + 1] = (vf)_mm512_dpbf16_ps((__m512)acc[2 * h + 1], p, high);
    }
  }
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
#pragma GCC unroll 8
  for (int h = 0; h < kGroup; ++h) {
    sums[2 * h] = (vf)_mm512_permutex2var_ps((__m512)acc[2 * h], first, (__m512)acc[2 * h + 1]);
    sums[2 * h + 1] = (vf)_mm512_permutex2var_ps((__m512)acc[2 * h], second, (__m512)acc[2 * h + 1]);
  }
}

// One block's part in the values of a group: the first replaces what `sums` [8, C] holds, the last divides and leaves
// the values in `out` [heads, C].
[[gnu::noinline]] inline void add_values(const uint32_t* pairs, const bf16* const* keys, int64_t count, int64_t heads,
                                         int64_t latent, const vf& before, const vf& rounded, bool first, bool last,
                                         float* sums, bf16* out) {
  const vf inverse = 1.0f / rounded;
  for (int64_t column = 0; column < latent; column += 32) {
    vf here[2 * kGroup];
    sum_strip(pairs, keys, (count + 1) / 2, column, here);
    for (int h = 0; h < heads; ++h) {
      float* sum = sums + h * latent + column;
      vf low = here[2 * h], high = here[2 * h + 1];
      if (!first) {
        low += simd::load(sum) * before[lane(h)];
        high += simd::load(sum + 16) * before[lane(h)];
      }
      if (last) {
        low *= inverse[lane(h)];
        high *= inverse[lane(h)];
        _mm512_storeu_si512(out + h * latent + column, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
      } else {
        simd::store(sum, low);
        simd::store(sum + 16, high);
      }
    }
  }
}

// out [heads, C] and lse [heads] of one row; `q` has a head every `stride` values. No key: zeros and -inf.
inline void attend(const Shape& shape, const Keys& keys, const bf16* q, int64_t stride, float scale, Memory& memory,
                   bf16* out, float* lse) {
  const int64_t latent = shape.latent, width = shape.width;
  Running* running = memory.running;
  bf16* queries = memory.queries;
  float* sums = memory.sums;
  if (keys.count == 0) {
    std::fill_n(out, shape.heads * latent, bf16(0.0f));
    std::fill_n(lse, shape.heads, kMinusInf);
    return;
  }
  const auto heads_of = [&](int64_t g) { return std::min<int64_t>(kGroup, shape.heads - g * kGroup); };
  for (int64_t g = 0; g < shape.groups(); ++g) {
    pack(q + g * kGroup * stride, stride, heads_of(g), width, queries + g * kGroup * width);
    running[g] = {simd::splat(kMinusInf), vf{}, vf{}};
  }
  for (int64_t start = 0; start < keys.count; start += kBlock) {
    const int64_t count = std::min(kBlock, keys.count - start);
    const bool first = start == 0, last = start + count == keys.count;
    const bf16* block[kBlock];
    for (int64_t i = 0; i < kBlock; ++i)
      block[i] = reinterpret_cast<const bf16*>(keys.rows[start + std::min(i, count - 1)]);
    for (int64_t g = 0; g < shape.groups(); ++g) {
      vf scores[kBlock / 2];
      uint32_t pairs[kBlock / 2 * kGroup];
      for (int64_t i = 0; i < count; i += kTile) {
        const int64_t ahead = start + i + kTile;
        if (g == 0)
          for (int64_t n = std::max(ahead, keys.fetch_begin); n < std::min(ahead + kTile, keys.fetch_end); ++n)
            simd::prefetch(keys.rows[n], keys.bytes);
        score_tile(queries + g * kGroup * width, width, block + i, scores + i / 2);
      }
      const vf before = softmax(scores, count, scale, running[g], pairs);
      add_values(pairs, block, count, heads_of(g), latent, before, running[g].rounded, first, last,
                 sums + g * kGroup * latent, out + g * kGroup * latent);
    }
  }
  for (int64_t h = 0; h < shape.heads; ++h) {
    const Running& r = running[h / kGroup];
    lse[h] = r.maximum[lane(h % kGroup)] + std::log(r.total[lane(h % kGroup)]);
  }
}

}  // namespace attend_bf16
#endif
