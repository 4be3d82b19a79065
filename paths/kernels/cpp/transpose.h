// Square blocks of 32-bit and 64-bit values turned about, in place.
#pragma once

#include "simd.h"

#ifdef __AVX512F__

namespace simd {

// Sixteen rows of sixteen 32-bit values become sixteen columns.
inline void transpose_16(__m512i* r) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // b[i + 4 j]: rows 4 j .. 4 j + 3 of columns i, i + 4, i + 8, i + 12
    const __m512i left = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88), right = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    const __m512i left2 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88),
                  right2 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    r[i] = _mm512_shuffle_i32x4(left, left2, 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(right, right2, 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(left, left2, 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(right, right2, 0xdd);
  }
}

// Eight rows of eight 64-bit values become eight columns.
inline void transpose_8(__m512i* r) {
  __m512i pairs[8], quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
    pairs[i + 4] = _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm512_shuffle_i64x2(pairs[i], pairs[i + 1], 0x44);
    quads[i + 1] = _mm512_shuffle_i64x2(pairs[i + 2], pairs[i + 3], 0x44);
    quads[i + 2] = _mm512_shuffle_i64x2(pairs[i], pairs[i + 1], 0xee);
    quads[i + 3] = _mm512_shuffle_i64x2(pairs[i + 2], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    const __m512i* q = quads + 4 * odd;
    r[odd] = _mm512_shuffle_i64x2(q[0], q[1], 0x88);
    r[odd + 2] = _mm512_shuffle_i64x2(q[0], q[1], 0xdd);
    r[odd + 4] = _mm512_shuffle_i64x2(q[2], q[3], 0x88);
    r[odd + 6] = _mm512_shuffle_i64x2(q[2], q[3], 0xdd);
  }
}

}  // namespace simd
#endif
