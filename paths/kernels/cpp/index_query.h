// One indexer query row: Hadamard, quantization and the folding of its scale into the head weights.
#pragma once

#include <cmath>
#include <string_view>

#include "op.h"
#include "quant.h"

namespace index_query {

inline at::ScalarType dtype(std::string_view name) {
  if (name == "fp8") return at::kFloat8_e4m3fn;
  if (name == "bf16") return at::kBFloat16;
  TORCH_CHECK(name == "float32", "index dtype ", std::string(name), ": float32, bf16 or fp8");
  return at::kFloat;
}

// Head `x` [dI], already rotated, into element offset `at` of `out`; returns the scale.
inline float prepare_head(float* x, int64_t dim, bool hadamard, at::ScalarType type, void* out, int64_t at) {
  if (hadamard) quant::hadamard(x, dim);
  if (type == at::kFloat) {
    std::memcpy(static_cast<float*>(out) + at, x, dim * sizeof(float));
    return 1.0f;
  }
  if (type == at::kBFloat16) {
    simd::narrow(x, static_cast<simd::bf16*>(out) + at, dim);
    return 1.0f;
  }
  const float scale = quant::ue8m0_scale(quant::amax(x, dim));
  quant::to_e4m3(x, scale, static_cast<uint8_t*>(out) + at, dim);
  return scale;
}

inline float weight_factor(int64_t heads, int64_t dim) {
  return static_cast<float>(std::pow(static_cast<double>(heads), -0.5) * std::pow(static_cast<double>(dim), -0.5));
}

}  // namespace index_query
