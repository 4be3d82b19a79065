// Products of bfloat16 rows on processors that multiply pairs of them; gemm.h has the portable forms.
#pragma once

#ifdef __AVX512BF16__

#include <algorithm>
#include <type_traits>

#include "scratch.h"
#include "strided.h"

namespace gemm {

using simd::bf16;
using simd::vf;

// Stores 8 or 16 sums, NR to a row.
template <int NR, typename V, typename Out>
inline void store_rows(V sums, Out* y, int64_t ldy) {
  constexpr int kCount = sizeof(V) / sizeof(float);
  Out values[kCount];
  if constexpr (std::is_same_v<Out, float>) {
    std::memcpy(values, &sums, sizeof(values));
  } else if constexpr (kCount == 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(sums);
    std::memcpy(values, &rounded, sizeof(values));
  } else {
    const __m128bh rounded = _mm256_cvtneps_pbh(sums);
    std::memcpy(values, &rounded, sizeof(values));
  }
#pragma GCC unroll 4
  for (int m = 0; m < kCount / NR; ++m) std::memcpy(y + m * ldy, values + m * NR, NR * sizeof(Out));
}

// MR rows of x times columns n..end of w, NR at once; K is a multiple of 32. Where K is short, adding up the lanes costs
// as much as the products: sums stay in registers, and nothing else is done per tile. `Fetch` is off for rows of x that
// find the columns in the cache.
template <int MR, int NR, bool Fetch, typename Rows, typename Out>
[[gnu::noinline]] void dot_strip(const bf16* x, int64_t ldx, const Rows& w, int64_t n, int64_t end, int64_t K, Out* y,
                                 int64_t ldy) {
  for (; n < end; n += NR) {
    const bf16* columns[NR];
    for (int i = 0; i < NR; ++i) columns[i] = w[n + i];
    if constexpr (Fetch) fetch_ahead(w, n, NR, K);
    vf acc[MR * NR] = {};
    for (int64_t k = 0; k < K; k += 32) {
      __m512bh xs[MR];
#pragma GCC unroll 4
      for (int m = 0; m < MR; ++m) xs[m] = (__m512bh)_mm512_loadu_si512(x + m * ldx + k);
#pragma GCC unroll 8
      for (int i = 0; i < NR; ++i) {
        const __m512bh column = (__m512bh)_mm512_loadu_si512(columns[i] + k);
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m)
          acc[m * NR + i] = (vf)_mm512_dpbf16_ps((__m512)acc[m * NR + i], xs[m], column);
      }
    }
    constexpr int kSixteens = MR * NR / 16 * 16, kEights = MR * NR / 8 * 8;
#pragma GCC unroll 2
    for (int i = 0; i < kSixteens; i += 16) store_rows<NR>(simd::sum16(acc + i), y + i / NR * ldy + n, ldy);
    if constexpr (kEights > kSixteens) store_rows<NR>(simd::sum8(acc + kSixteens), y + kSixteens / NR * ldy + n, ldy);
    if constexpr (MR * NR > kEights) {
      float sums[4];
      simd::sum4(acc + kEights, sums);
      for (int i = 0; i < 4; ++i) y[kEights / NR * ldy + n + i] = static_cast<Out>(sums[i]);
    }
  }
}

// Columns n..end, a multiple of four of them; one or two rows need eight in flight to hide the latency of the sums.
template <int MR, bool Fetch, typename Rows, typename Out>
inline void dot_rows(const bf16* x, int64_t ldx, const Rows& w, int64_t n, int64_t end, int64_t K, Out* y, int64_t ldy) {
  if constexpr (MR < 3) {
    const int64_t eights = n + (end - n) / 8 * 8;
    dot_strip<MR, 8, Fetch>(x, ldx, w, n, eights, K, y, ldy);
    n = eights;
  }
  if (n < end) dot_strip<MR, 4, Fetch>(x, ldx, w, n, end, K, y, ldy);
}

// The part of nt that vectors of bfloat16 take; returns how many columns that is. More than four rows go through a few
// kilobytes of columns at a time.
template <typename Rows, typename Out>
inline int64_t dot_strips(const bf16* x, int64_t ldx, const Rows& w, int64_t M, int64_t N, int64_t K, Out* y, int64_t ldy) {
  constexpr bool kFetch = std::is_same_v<Rows, Strided<bf16>>;  // rows of a cache: who gathers them fetches them
  if (M == 0 || K % 32 != 0 || K == 0) return 0;
  const int64_t columns = N / 4 * 4, block = M <= 4 ? columns : std::max<int64_t>(16, 2048 / K / 8 * 8);
  const auto rows = [&](auto fetch, int64_t count, int64_t m, int64_t n, int64_t end) {
    constexpr bool kFirst = decltype(fetch)::value && kFetch;
    const bf16* from = x + m * ldx;
    Out* to = y + m * ldy;
    switch (count) {
      case 1: return dot_rows<1, kFirst>(from, ldx, w, n, end, K, to, ldy);
      case 2: return dot_rows<2, kFirst>(from, ldx, w, n, end, K, to, ldy);
      case 3: return dot_rows<3, kFirst>(from, ldx, w, n, end, K, to, ldy);
      default: return dot_rows<4, kFirst>(from, ldx, w, n, end, K, to, ldy);
    }
  };
  const auto at_once = [&](int64_t left) { return left == 5 ? 3 : std::min<int64_t>(4, left); };
  for (int64_t n = 0; n < columns; n += block) {
    const int64_t end = std::min(n + block, columns), first = at_once(M);
    rows(std::true_type{}, first, 0, n, end);
    for (int64_t m = first; m < M; m += at_once(M - m)) rows(std::false_type{}, at_once(M - m), m, n, end);
  }
  return columns;
}

// Sums over interleaved rows of 32 columns, as unpacking left them, in the order of the columns.
inline void in_order(__m512& low, __m512& high) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const __m512 left = _mm512_permutex2var_ps(low, first, high);
  high = _mm512_permutex2var_ps(low, second, high);
  low = left;
}

// y = x · w for MR rows and NV times 32 columns, those that w and y point to; `live` masks the columns of a last, narrower
// block. Two rows of w are interleaved, so that a lane adds two products at once. `next` stands where the block after
// this one begins, which is fetched meanwhile.
template <int MR, int NV, bool Narrow, typename Out>
[[gnu::noinline]] void pair_block(const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, int64_t K, __mmask32 live,
                                  const bf16* next, Out* y, int64_t ldy) {
  vf acc[MR * NV * 2] = {};
  for (int64_t k = 0; k < K; k += 2, w += 2 * ldw, next += 2 * ldw) {
    const bool has_odd = k + 1 < K;
    __m512bh low[NV], high[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      __m512i even, odd;
      if constexpr (Narrow) {
        even = _mm512_maskz_loadu_epi16(live, w + v * 32);
        odd = _mm512_maskz_loadu_epi16(has_odd ? live : 0, w + ldw + v * 32);
      } else {
        even = _mm512_loadu_si512(w + v * 32);
        odd = has_odd ? _mm512_loadu_si512(w + ldw + v * 32) : _mm512_setzero_si512();
        __builtin_prefetch(next + v * 32);
        __builtin_prefetch(next + ldw + v * 32);
      }
      low[v] = (__m512bh)_mm512_unpacklo_epi16(even, odd);
      high[v] = (__m512bh)_mm512_unpackhi_epi16(even, odd);
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      uint32_t pair = 0;
      if (has_odd) [[likely]]
        std::memcpy(&pair, x + m * ldx + k, 4);
      else
        std::memcpy(&pair, x + m * ldx + k, 2);
      const __m512bh factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) {
        const int i = (m * NV + v) * 2;
        acc[i] = (vf)_mm512_dpbf16_ps((__m512)acc[i], factor, low[v]);
        acc[i + 1] = (vf)_mm512_dpbf16_ps((__m512)acc[i + 1], factor, high[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      __m512 left = (__m512)acc[(m * NV + v) * 2], right = (__m512)acc[(m * NV + v) * 2 + 1];
      in_order(left, right);
      Out* to = y + m * ldy + v * 32;
      if constexpr (std::is_same_v<Out, bf16>) {
        const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(right, left);
        _mm512_mask_storeu_epi16(to, Narrow ? live : 0xffffffffu, rounded);
      } else {
        _mm512_mask_storeu_ps(to, Narrow ? static_cast<__mmask16>(live) : 0xffff, left);
        _mm512_mask_storeu_ps(to + 16, Narrow ? static_cast<__mmask16>(live >> 16) : 0xffff, right);
      }
    }
}

template <int NV, bool Narrow, typename Out>
inline void pair_columns(const bf16* x, int64_t ldx, const bf16* w, int64_t ldw, int64_t M, int64_t K, __mmask32 live,
                         const bf16* next, Out* y, int64_t ldy) {
  int64_t m = 0;
  for (; m + 4 <= M && M - m != 5; m += 4)
    pair_block<4, NV, Narrow>(x + m * ldx, ldx, w, ldw, K, live, next, y + m * ldy, ldy);
  for (; m + 3 <= M; m += 3) pair_block<3, NV, Narrow>(x + m * ldx, ldx, w, ldw, K, live, next, y + m * ldy, ldy);
  for (; m + 2 <= M; m += 2) pair_block<2, NV, Narrow>(x + m * ldx, ldx, w, ldw, K, live, next, y + m * ldy, ldy);
  for (; m < M; ++m) pair_block<1, NV, Narrow>(x + m * ldx, ldx, w, ldw, K, live, next, y + m * ldy, ldy);
}

// Rows k..k + count of w, which stand one behind the other, in the products of MR rows; `sums` [MR, N] holds what came
// before, and the last rows leave y. The same additions as in pair_block. What stands `count` rows on is fetched.
template <int MR, typename Out>
[[gnu::noinline]] void stream_block(const bf16* x, int64_t ldx, const bf16* w, int64_t N, int64_t count, bool first,
                                    bool last, float* sums, Out* y, int64_t ldy) {
  constexpr int NV = 2;
  for (int64_t n = 0; n < N; n += 32 * NV) {
    __m512 acc[MR * NV * 2];
#pragma GCC unroll 16
    for (int i = 0; i < MR * NV * 2; ++i)
      acc[i] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + i / (NV * 2) * N + n + i % (NV * 2) * 16);
    const bf16* row = w + n;
    for (int64_t k = 0; k < count; k += 2, row += 2 * N) {
      const bool has_odd = k + 1 < count;
      __m512bh low[NV], high[NV];
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) {
        const __m512i even = _mm512_loadu_si512(row + v * 32);
        const __m512i odd = has_odd ? _mm512_loadu_si512(row + N + v * 32) : _mm512_setzero_si512();
        __builtin_prefetch(row + count * N + v * 32);
        __builtin_prefetch(row + (count + 1) * N + v * 32);
        low[v] = (__m512bh)_mm512_unpacklo_epi16(even, odd);
        high[v] = (__m512bh)_mm512_unpackhi_epi16(even, odd);
      }
#pragma GCC unroll 4
      for (int m = 0; m < MR; ++m) {
        uint32_t pair = 0;
        if (has_odd) [[likely]]
          std::memcpy(&pair, x + m * ldx + k, 4);
        else
          std::memcpy(&pair, x + m * ldx + k, 2);
        const __m512bh factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
          const int i = (m * NV + v) * 2;
          acc[i] = _mm512_dpbf16_ps(acc[i], factor, low[v]);
          acc[i + 1] = _mm512_dpbf16_ps(acc[i + 1], factor, high[v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR * NV; ++i) {
      __m512 low = acc[2 * i], high = acc[2 * i + 1];
      if (!last) {
        float* to = sums + i / NV * N + n + i % NV * 32;
        _mm512_storeu_ps(to, low);
        _mm512_storeu_ps(to + 16, high);
        continue;
      }
      in_order(low, high);
      Out* to = y + i / NV * ldy + n + i % NV * 32;
      if constexpr (std::is_same_v<Out, bf16>) {
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
      } else {
        _mm512_storeu_ps(to, low);
        _mm512_storeu_ps(to + 16, high);
      }
    }
  }
}

// y[MR, N] = x[MR, K] · w for N in multiples of 64: memory is read in the order in which it stands, which is what counts
// where a matrix comes from afar and a few rows leave little to compute.
template <int MR, typename Out>
inline void stream(const bf16* x, int64_t ldx, const bf16* w, int64_t N, int64_t K, Out* y, int64_t ldy) {
  constexpr int64_t kRows = 16;
  Scratch<float> sums(MR * N);
  for (int64_t k = 0; k < K; k += kRows) {
    const int64_t count = std::min(kRows, K - k);
    stream_block<MR>(x + k, ldx, w + k * N, N, count, k == 0, k + count == K, sums, y, ldy);
  }
}

}  // namespace gemm
#endif
