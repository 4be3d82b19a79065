// Routing and expert products of the mixture of experts, shared by the separate and the fused operators.
#pragma once

#include <ATen/ops/linear.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gemm.h"
#include "op.h"
#include "scratch.h"

namespace moe {

using simd::bf16;

struct Routing {
  int64_t n_group, topk_group, top_k;
  bool norm;
  float scaling;
};

// Index of the largest value, the lower one on a tie; NaN counts as -inf. `n` if nothing is left.
inline int64_t argmax(const float* x, int64_t n) {
  int64_t best = n;
  for (int64_t i = 0; i < n; ++i)
    if (best == n ? x[i] == x[i] : x[i] > x[best]) best = i;
  return best;
}

inline void keep_best_groups(float* choice, int64_t experts, const Routing& r) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  const int64_t size = experts / r.n_group;
  Scratch<float> scores(r.n_group);
  for (int64_t g = 0; g < r.n_group; ++g) {
    float first = kMinusInf, second = kMinusInf;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, choice[e]));
      first = std::max(first, choice[e]);
    }
    scores[g] = first + second;
  }
  Scratch<bool> kept(r.n_group);
  std::fill_n(static_cast<bool*>(kept), r.n_group, false);
  for (int64_t i = 0; i < r.topk_group; ++i) {
    const int64_t g = argmax(scores, r.n_group);
    if (g == r.n_group) break;
    kept[g] = true;
    scores[g] = std::numeric_limits<float>::quiet_NaN();
  }
  for (int64_t e = 0; e < experts; ++e)
    if (!kept[e / size]) choice[e] = kMinusInf;
}

// One row: router logits [E] become top_k ids and weights.
inline void route_row(const float* logits, const float* bias, int64_t experts, const Routing& r, int32_t* ids,
                      float* weights) {
  Scratch<float> score(experts), choice(experts);
  for (int64_t e = 0; e < experts; ++e) {
    score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    choice[e] = score[e] + bias[e];
  }
  if (r.n_group > 1) keep_best_groups(choice, experts, r);
  float total = 0.0f;
  for (int64_t i = 0; i < r.top_k; ++i) {
    int64_t best = argmax(choice, experts);
    if (best == experts) best = 0;  // a NaN row: any id in range, its weight is NaN
    ids[i] = static_cast<int32_t>(best);
    weights[i] = score[best];
    total += weights[i];
    choice[best] = std::numeric_limits<float>::quiet_NaN();
  }
  const float factor = r.norm ? r.scaling / std::max(total, 1e-20f) : r.scaling;
  for (int64_t i = 0; i < r.top_k; ++i) weights[i] *= factor;
}

// x [T, D] through gate [E, D]; row t fills ids and weights at t × stride.
template <typename T>
inline void route(const T* x, int64_t ldx, int64_t rows, int64_t dim, const float* gate, const float* bias,
                  int64_t experts, const Routing& r, int32_t* ids, float* weights, int64_t stride) {
  at::parallel_for(0, rows, grain(dim * experts), [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 16;
    Scratch<float> row(kBlock * dim), logits(kBlock * experts);
    for (int64_t start = begin; start < end; start += kBlock) {
      const int64_t count = std::min(kBlock, end - start);
      for (int64_t i = 0; i < count; ++i) simd::convert(x + (start + i) * ldx, row + i * dim, dim);
      gemm::nt<float>(row, dim, gemm::Strided<float>{gate, dim}, count, experts, dim, static_cast<float*>(logits), experts);
      for (int64_t i = 0; i < count; ++i)
        route_row(logits + i * experts, bias, experts, r, ids + (start + i) * stride, weights + (start + i) * stride);
    }
  });
}

// out = silu(gate) · up for one row of [2I], gate first; float32 inside.
template <typename In, typename T>
inline void silu_mul(const In* gate_up, T* out, int64_t inner) {
  using simd::W;
  int64_t i = 0;
  for (; i + W <= inner; i += W) {
    const simd::vf g = simd::load(gate_up + i), u = simd::load(gate_up + inner + i);
    simd::store(out + i, g / (1.0f + simd::exp(-g)) * u);
  }
  for (; i < inner; ++i) {
    const float g = gate_up[i], u = gate_up[inner + i];
    out[i] = static_cast<T>(g / (1.0f + std::exp(-g)) * u);
  }
}

// y [rows, D] float32 = one expert on contiguous x [rows, D], for few rows.
template <typename T>
void few_rows(const T* x, int64_t rows, int64_t dim, int64_t inner, const T* w13, const T* w2, float* y) {
  Scratch<float> gate_up(rows * 2 * inner);
  Scratch<T> hidden(rows * inner);
  float* g = gate_up;
  T* h = hidden;
  at::parallel_for(0, 2 * inner, grain(rows * dim), [&](int64_t begin, int64_t end) {
    gemm::nt(x, dim, gemm::Strided<T>{w13 + begin * dim, dim}, rows, end - begin, dim, g + begin, 2 * inner);
  });
  simd::prefetch(reinterpret_cast<const char*>(w2), gemm::kFetchAhead);  // behind w13 stands another expert's
  for (int64_t t = 0; t < rows; ++t) silu_mul(g + t * 2 * inner, h + t * inner, inner);
  at::parallel_for(0, dim, grain(rows * inner), [&](int64_t begin, int64_t end) {
    gemm::nt(static_cast<const T*>(h), inner, gemm::Strided<T>{w2 + begin * inner, inner}, rows, end - begin, inner,
             y + begin, dim);
  });
}

template <typename T>
int64_t few_rows_of(int64_t inner) {
  return ::few_rows(c10::CppTypeToScalarType<T>::value, inner);
}

// The same for any number of rows.
template <typename T>
void expert(const at::Tensor& x, const at::Tensor& w13, const at::Tensor& w2, float* y) {
  const int64_t rows = x.size(0), dim = x.size(1), inner = w2.size(1);
  if (rows <= few_rows_of<T>(dim)) {
    few_rows(x.const_data_ptr<T>(), rows, dim, inner, w13.const_data_ptr<T>(), w2.const_data_ptr<T>(), y);
    return;
  }
  const at::Tensor gate_up = at::linear(x, w13);
  at::Tensor hidden = at::empty({rows, inner}, x.options());
  const T* g = gate_up.const_data_ptr<T>();
  T* h = hidden.mutable_data_ptr<T>();
  at::parallel_for(0, rows, grain(8 * inner), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) silu_mul(g + t * 2 * inner, h + t * inner, inner);
  });
  const at::Tensor out = at::linear(hidden, w2);
  const T* o = out.const_data_ptr<T>();
  at::parallel_for(0, rows, grain(dim),
                   [&](int64_t begin, int64_t end) { simd::convert(o + begin * dim, y + begin * dim, (end - begin) * dim); });
}

// Sum over k of weights[t, k] · expert_{ids[t, k]}(x_t), in float32 and in order of expert id. Ids below 0 are skipped.
template <typename T>
at::Tensor experts(const at::Tensor& x, const int32_t* ids, const float* weights, int64_t top_k, const at::Tensor& w13,
                   const at::Tensor& w2) {
  const int64_t rows = x.size(0), dim = x.size(1), count = w13.size(0), inner = w2.size(2);
  std::vector<int64_t> starts(count + 1, 0);
  for (int64_t i = 0; i < rows * top_k; ++i) {
    TORCH_CHECK(ids[i] < count, "expert ", ids[i], " of ", count);
    if (ids[i] >= 0) ++starts[ids[i] + 1];
  }
  int64_t most = 0;
  for (int64_t e = 0; e < count; ++e) {
    most = std::max(most, starts[e + 1]);
    starts[e + 1] += starts[e];
  }
  std::vector<int64_t> sorted(starts[count]), next(starts.begin(), starts.end() - 1);
  for (int64_t i = 0; i < rows * top_k; ++i)
    if (ids[i] >= 0) sorted[next[ids[i]]++] = i;

  constexpr bool kRounds = !std::is_same_v<T, float>;
  at::Tensor out = at::empty({rows, dim}, x.options());
  T* result = out.mutable_data_ptr<T>();
  // what a few rows need is cheaper without tensors of its own
  Scratch<float> products(most * dim), sums(kRounds ? rows * dim : 1);
  const int64_t few_most = few_rows_of<T>(dim);
  Scratch<T> few(std::min(most, few_most) * dim);
  float* to = sums;
  if constexpr (!kRounds) to = result;
  std::fill_n(to, rows * dim, 0.0f);
  at::Tensor many;
  if (most > few_most) many = at::empty({most, dim}, x.options());
  const T* from = x.const_data_ptr<T>();
  float* y = products;
  for (int64_t e = 0; e < count; ++e) {
    const int64_t n = starts[e + 1] - starts[e];
    if (n == 0) continue;
    const int64_t* slots = sorted.data() + starts[e];
    T* gathered = n > few_most ? many.mutable_data_ptr<T>() : static_cast<T*>(few);
    at::parallel_for(0, n, grain(dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(gathered + i * dim, from + slots[i] / top_k * x.stride(0), dim * sizeof(T));
    });
    if (n <= few_most)
      few_rows<T>(gathered, n, dim, inner, w13.const_data_ptr<T>() + e * 2 * inner * dim,
                  w2.const_data_ptr<T>() + e * dim * inner, y);
    else
      expert<T>(many.narrow(0, 0, n), w13.select(0, e), w2.select(0, e), y);
    int64_t upcoming = e + 1;
    while (upcoming < count && starts[upcoming] == starts[upcoming + 1]) ++upcoming;
    if (upcoming < count)
      simd::prefetch(reinterpret_cast<const char*>(w13.const_data_ptr<T>() + upcoming * 2 * inner * dim), gemm::kFetchAhead);
    at::parallel_for(0, n, grain(dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = to + slots[i] / top_k * dim;
        const float weight = weights[slots[i]];
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) row[d] += weight * y[i * dim + d];
      }
    });
  }
  if constexpr (kRounds)
    at::parallel_for(0, rows, grain(dim), [&](int64_t begin, int64_t end) {
      simd::narrow(to + begin * dim, result + begin * dim, (end - begin) * dim);
    });
  return out;
}

}  // namespace moe
