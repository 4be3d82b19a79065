// Matrix products for few rows, where a library call costs more than the product. float32 accumulation.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gemm_bf16.h"
#include "scratch.h"
#include "simd.h"
#include "strided.h"

namespace gemm {

using simd::bf16;
using simd::load;
using simd::vf;
using simd::W;

// out[m][n] = x_m · w_n over K for MR × NR rows; NR is 1 or a multiple of 4.
template <int MR, int NR, typename T>
inline void dot_tile(const T* x, int64_t ldx, const T* const* w, int64_t K, float* out) {
  vf acc[MR * NR] = {};
  int64_t k = 0;
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, bf16>) {
    for (; k + 32 <= K; k += 32) {
      __m512bh xs[MR];
      for (int m = 0; m < MR; ++m) xs[m] = (__m512bh)_mm512_loadu_si512(x + m * ldx + k);
#pragma GCC unroll 8
      for (int n = 0; n < NR; ++n) {
        const __m512bh column = (__m512bh)_mm512_loadu_si512(w[n] + k);
#pragma GCC unroll 8
        for (int m = 0; m < MR; ++m)
          acc[m * NR + n] = (vf)_mm512_dpbf16_ps((__m512)acc[m * NR + n], xs[m], column);
      }
    }
  }
#endif
  for (; k + W <= K; k += W) {
    vf xs[MR];
    for (int m = 0; m < MR; ++m) xs[m] = load(x + m * ldx + k);
#pragma GCC unroll 8
    for (int n = 0; n < NR; ++n) {
      const vf column = load(w[n] + k);
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) acc[m * NR + n] += xs[m] * column;
    }
  }
  if constexpr (NR % 4 == 0) {
    for (int i = 0; i < MR * NR; i += 4) simd::sum4(acc + i, out + i);
  } else {
    for (int i = 0; i < MR * NR; ++i) out[i] = simd::sum(acc[i]);
  }
  for (; k < K; ++k)
    for (int m = 0; m < MR; ++m)
      for (int n = 0; n < NR; ++n)
        out[m * NR + n] += static_cast<float>(x[m * ldx + k]) * static_cast<float>(w[n][k]);
}

template <int MR, int NR, typename T, typename Out>
inline void dot_block(const T* x, int64_t ldx, const T* const* w, int64_t K, Out* y, int64_t ldy) {
  float out[MR * NR];
  dot_tile<MR, NR>(x, ldx, w, K, out);
  for (int m = 0; m < MR; ++m)
    for (int n = 0; n < NR; ++n) y[m * ldy + n] = static_cast<Out>(out[m * NR + n]);
}

template <int NR, typename T, typename Rows, typename Out>
inline void dot_columns(const T* x, int64_t ldx, const Rows& w, int64_t n, int64_t M, int64_t K, Out* y, int64_t ldy) {
  const T* columns[NR];
  for (int i = 0; i < NR; ++i) columns[i] = w[n + i];
  fetch_ahead(w, n, NR, K);
  int64_t m = 0;
  for (; m + 4 <= M; m += 4) dot_block<4, NR>(x + m * ldx, ldx, columns, K, y + m * ldy + n, ldy);
  for (; m + 2 <= M; m += 2) dot_block<2, NR>(x + m * ldx, ldx, columns, K, y + m * ldy + n, ldy);
  for (; m < M; ++m) dot_block<1, NR>(x + m * ldx, ldx, columns, K, y + m * ldy + n, ldy);
}

// y[M, N] = x[M, K] · wᵀ with N rows w[n] of K values
template <typename T, typename Rows, typename Out>
inline void nt(const T* x, int64_t ldx, const Rows& w, int64_t M, int64_t N, int64_t K, Out* y, int64_t ldy) {
  int64_t n = 0;
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, bf16>) n = dot_strips(x, ldx, w, M, N, K, y, ldy);
#endif
  if (M < 4)  // one row alone needs more columns in flight to hide the latency of the sum
    for (; n + 8 <= N; n += 8) dot_columns<8>(x, ldx, w, n, M, K, y, ldy);
  for (; n + 4 <= N; n += 4) dot_columns<4>(x, ldx, w, n, M, K, y, ldy);
  for (; n < N; ++n) dot_columns<1>(x, ldx, w, n, M, K, y, ldy);
}

// y += x · w for MR rows and NV vectors of columns from column n on.
template <int MR, int NV, typename Rows>
inline void axpy_block(const float* x, int64_t ldx, const Rows& w, int64_t n, int64_t K, float* y, int64_t ldy) {
  vf acc[MR * NV];
  for (int m = 0; m < MR; ++m)
    for (int v = 0; v < NV; ++v) acc[m * NV + v] = load(y + m * ldy + n + v * W);
  for (int64_t k = 0; k < K; ++k) {
    const auto* source = w[k] + n;
    vf row[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) row[v] = load(source + v * W);
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const vf factor = simd::splat(x[m * ldx + k]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[m * NV + v] += factor * row[v];
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int v = 0; v < NV; ++v) simd::store(y + m * ldy + n + v * W, acc[m * NV + v]);
}

// Eight rows share a load of w, which counts where it has to be widened.
template <int NV, typename Rows>
inline void axpy_columns(const float* x, int64_t ldx, const Rows& w, int64_t n, int64_t M, int64_t K, float* y, int64_t ldy) {
  int64_t m = 0;
  for (; m + 8 <= M; m += 8) axpy_block<8, NV>(x + m * ldx, ldx, w, n, K, y + m * ldy, ldy);
  for (; m + 4 <= M; m += 4) axpy_block<4, NV>(x + m * ldx, ldx, w, n, K, y + m * ldy, ldy);
  for (; m + 2 <= M; m += 2) axpy_block<2, NV>(x + m * ldx, ldx, w, n, K, y + m * ldy, ldy);
  for (; m < M; ++m) axpy_block<1, NV>(x + m * ldx, ldx, w, n, K, y + m * ldy, ldy);
}

// y[M, N] += x[M, K] · w with K rows w[k] of N values
template <typename Rows>
inline void nn_add(const float* x, int64_t ldx, const Rows& w, int64_t M, int64_t N, int64_t K, float* y, int64_t ldy) {
  int64_t n = 0;
  if (M == 1)
    for (; n + 8 * W <= N; n += 8 * W) axpy_columns<8>(x, ldx, w, n, M, K, y, ldy);
  if (M < 8)  // few rows need more columns in flight
    for (; n + 4 * W <= N; n += 4 * W) axpy_columns<4>(x, ldx, w, n, M, K, y, ldy);
  for (; n + 2 * W <= N; n += 2 * W) axpy_columns<2>(x, ldx, w, n, M, K, y, ldy);
  for (; n + W <= N; n += W) axpy_columns<1>(x, ldx, w, n, M, K, y, ldy);
  for (; n < N; ++n)
    for (int64_t m = 0; m < M; ++m)
      for (int64_t k = 0; k < K; ++k) y[m * ldy + n] += x[m * ldx + k] * static_cast<float>(w[k][n]);
}

// y[M, N] = x[M, K] · w with K rows w[k] of N values
template <typename Rows>
inline void nn(const float* x, int64_t ldx, const Rows& w, int64_t M, int64_t N, int64_t K, float* y, int64_t ldy) {
  for (int64_t m = 0; m < M; ++m) std::fill_n(y + m * ldy, N, 0.0f);
  nn_add(x, ldx, w, M, N, K, y, ldy);
}

// y[M, N] = x[M, K] · w with K rows w[k] of N values. Heads' matrices stand one behind the other, hence what is fetched
// after the last columns.
template <typename Out>
inline void nn(const bf16* x, int64_t ldx, const Strided<bf16>& w, int64_t M, int64_t N, int64_t K, Out* y, int64_t ldy) {
#ifdef __AVX512BF16__
  constexpr __mmask32 kAll = 0xffffffffu;
  if (N % 64 == 0 && w.stride == N && K > 0) {
    if (M == 2) return stream<2>(x, ldx, w.data, N, K, y, ldy);
    if (M == 3) return stream<3>(x, ldx, w.data, N, K, y, ldy);
    if (M == 4) return stream<4>(x, ldx, w.data, N, K, y, ldy);
  }
  const auto next = [&](int64_t n) { return n < N ? w.data + n : w[K]; };
  int64_t n = 0;
  if (M < 4)
    for (; n + 128 <= N; n += 128)
      pair_columns<4, false>(x, ldx, w.data + n, w.stride, M, K, kAll, next(n + 128), y + n, ldy);
  for (; n + 64 <= N; n += 64)
    pair_columns<2, false>(x, ldx, w.data + n, w.stride, M, K, kAll, next(n + 64), y + n, ldy);
  for (; n + 32 <= N; n += 32)
    pair_columns<1, false>(x, ldx, w.data + n, w.stride, M, K, kAll, next(n + 32), y + n, ldy);
  if (n < N)
    pair_columns<1, true>(x, ldx, w.data + n, w.stride, M, K, kAll >> (32 - (N - n)), w.data, y + n, ldy);
#else
  Scratch<float> wide(M * K), sums(M * N);
  for (int64_t m = 0; m < M; ++m) simd::convert(x + m * ldx, wide + m * K, K);
  nn(static_cast<const float*>(wide), K, w, M, N, K, static_cast<float*>(sums), N);
  for (int64_t m = 0; m < M; ++m) simd::narrow(sums + m * N, y + m * ldy, N);
#endif
}

}  // namespace gemm
