// Matrices as rows of memory, and the fetching of what a product reads next.
#pragma once

#include <cstdint>

#include "simd.h"

namespace gemm {

// Rows that stand `stride` apart. A plain array of row pointers serves the same templates.
template <typename T>
struct Strided {
  const T* data;
  int64_t stride;
  const T* operator[](int64_t row) const { return data + row * stride; }
};

// Weights are fetched this many bytes ahead: what the processor fetches by itself falls behind where few rows leave
// little to compute per column. Behind the last one stand the next matrix's, and a fetch never faults.
constexpr int64_t kFetchAhead = 12288;

template <typename T>
inline void fetch_ahead(const Strided<T>& w, int64_t n, int64_t count, int64_t K) {
  simd::prefetch(reinterpret_cast<const char*>(w[n]) + kFetchAhead, count * K * sizeof(T));
}

// rows of a cache: who gathers them fetches them
template <typename T>
inline void fetch_ahead(const T* const*, int64_t, int64_t, int64_t) {}

}  // namespace gemm
