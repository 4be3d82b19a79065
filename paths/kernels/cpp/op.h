// What every operator needs from torch; OP_NAMESPACE comes from the build.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "simd.h"

// Calls `body` with a value of the tensor's element type: float or BFloat16.
template <typename Body>
inline void dispatch(const at::Tensor& x, Body&& body) {
  if (x.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "dtype ", x.scalar_type(), ": float32 or bfloat16");
    body(simd::bf16{});
  }
}

inline void check_rows(const at::Tensor& x) {
  TORCH_CHECK(x.stride(-1) == 1, "the last dimension must be contiguous");
}

// Rows per task so that a task is worth a thread's start.
inline int64_t grain(int64_t work_per_row) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work_per_row)); }

// Up to this many rows of `inner` values the products of gemm.h cost less than a library call.
inline int64_t few_rows(at::ScalarType type, int64_t inner) {
#ifdef __AVX512BF16__
  if (type == at::kBFloat16 && inner <= 512) return 64;
#endif
  return 16;
}
