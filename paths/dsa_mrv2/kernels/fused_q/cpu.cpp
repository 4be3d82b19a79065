// From the second projection to the two queries: absorb W_UK, rotate and pack the attention query [ql ; q_pe]; rotate,
// quantize and weight the indexer query.
#include <ATen/ops/bmm.h>

#include "gemm.h"
#include "index_query.h"
#include "scratch.h"

namespace fused_q_op {

// Up to this many rows a head's product is cheaper here than in a batched library call with a copy behind it.
constexpr int64_t kFewRows = 16;

struct Rotation {
  const float *cos, *sin;
  const int64_t* positions;
  int64_t half, table;

  const float* at(const float* values, int64_t t) const {
    TORCH_CHECK(positions[t] >= 0 && positions[t] < table, "position ", positions[t], " outside the RoPE table of ",
                table);
    return values + positions[t] * half;
  }
};

// packed[:, :, :C] = q[:, :, :N] · W_UK per head
template <typename T>
void absorb(const at::Tensor& q, const at::Tensor& w_uk, at::Tensor& packed) {
  const int64_t rows = q.size(0), heads = w_uk.size(0), nope = w_uk.size(1), latent = w_uk.size(2);
  const int64_t head_width = q.size(2), width = packed.size(2);
  T* to = packed.mutable_data_ptr<T>();
  if (rows > kFewRows) {
    const at::Tensor product = at::bmm(q.narrow(2, 0, nope).transpose(0, 1), w_uk);
    const T* from = product.const_data_ptr<T>();
    at::parallel_for(0, rows, grain(heads * latent), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < heads; ++h)
          std::memcpy(to + (t * heads + h) * width, from + (h * rows + t) * latent, latent * sizeof(T));
    });
    return;
  }
  const T *from = q.const_data_ptr<T>(), *weights = w_uk.const_data_ptr<T>();
  at::parallel_for(0, heads, grain(rows * nope * latent), [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      gemm::nn(from + h * head_width, q.stride(0), gemm::Strided<T>{weights + h * nope * latent, latent}, rows, latent,
               nope, to + h * width, heads * width);
  });
}

// packed[:, :, C:] = RoPE(q[:, :, N:])
template <typename T>
void rotate(const at::Tensor& q, const Rotation& rotation, bool interleaved, int64_t nope, at::Tensor& packed) {
  const int64_t heads = q.size(1), rope = q.size(2) - nope, width = packed.size(2);
  const T* from = q.const_data_ptr<T>();
  T* to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, q.size(0), grain(4 * heads * rope), [&](int64_t begin, int64_t end) {
    Scratch<float> x(rope);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        simd::convert(from + t * q.stride(0) + h * q.stride(1) + nope, x, rope);
        quant::rope(x, rotation.at(rotation.cos, t), rotation.at(rotation.sin, t), rope, interleaved);
        simd::narrow(x, to + (t * heads + h) * width + width - rope, rope);
      }
  });
}

template <typename T>
void index_queries(const at::Tensor& q, const at::Tensor& w, const Rotation& rotation, bool interleaved, bool hadamard,
                   at::Tensor& prepared, at::Tensor& weights) {
  const int64_t heads = q.size(1), dim = q.size(2), rope = 2 * rotation.half;
  const float factor = index_query::weight_factor(heads, dim);
  const T *from = q.const_data_ptr<T>(), *head_weights = w.const_data_ptr<T>();
  float* to = weights.mutable_data_ptr<float>();
  at::parallel_for(0, q.size(0), grain(8 * heads * dim), [&](int64_t begin, int64_t end) {
    Scratch<float> x(dim);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        simd::convert(from + t * q.stride(0) + h * dim, x, dim);
        quant::rope(x, rotation.at(rotation.cos, t), rotation.at(rotation.sin, t), rope, interleaved);
        simd::round_to(x, rope, static_cast<const T*>(nullptr));
        const float scale = index_query::prepare_head(x, dim, hadamard, prepared.scalar_type(),
                                                         prepared.mutable_data_ptr(), (t * heads + h) * dim);
        to[t * heads + h] = static_cast<float>(head_weights[t * w.stride(0) + h]) * factor * scale;
      }
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_q(const at::Tensor& projected, const at::Tensor& w_uk,
                                                       const at::Tensor& cos, const at::Tensor& sin,
                                                       const at::Tensor& positions, bool interleaved,
                                                       const std::optional<at::Tensor>& index_weights,
                                                       int64_t index_dim, std::string_view index_dtype,
                                                       bool index_interleaved, bool hadamard) {
  check_rows(projected);
  TORCH_CHECK(w_uk.is_contiguous(), "w_uk must be contiguous");
  const int64_t rows = projected.size(0), heads = w_uk.size(0), nope = w_uk.size(1), latent = w_uk.size(2);
  const int64_t rope = 2 * cos.size(1), q_width = heads * (nope + rope);
  const Rotation rotation{cos.const_data_ptr<float>(), sin.const_data_ptr<float>(),
                          positions.const_data_ptr<int64_t>(), cos.size(1), cos.size(0)};
  const int64_t index_heads = index_weights ? index_weights->size(1) : 0;
  TORCH_CHECK(projected.size(1) >= q_width + index_heads * index_dim, "projection of ", projected.size(1));
  TORCH_CHECK(!hadamard || (index_dim & (index_dim - 1)) == 0, "Hadamard needs a power of two, not ", index_dim);
  const at::Tensor q = projected.narrow(1, 0, q_width).unflatten(1, {heads, nope + rope});
  at::Tensor packed = at::empty({rows, heads, latent + rope}, projected.options());
  const auto index_type = index_query::dtype(index_dtype);
  at::Tensor prepared = at::empty({index_heads ? rows : 0, index_heads, index_dim}, packed.options().dtype(index_type));
  at::Tensor weights = at::empty({index_heads ? rows : 0, index_heads}, packed.options().dtype(at::kFloat));
  dispatch(projected, [&](auto type) {
    using T = decltype(type);
    absorb<T>(q, w_uk, packed);
    rotate<T>(q, rotation, interleaved, nope, packed);
    if (index_heads)
      index_queries<T>(projected.narrow(1, q_width, index_heads * index_dim).unflatten(1, {index_heads, index_dim}),
                       *index_weights, rotation, index_interleaved, hadamard, prepared, weights);
  });
  return {packed, prepared, weights};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "fused_q(Tensor projected, Tensor w_uk, Tensor cos, Tensor sin, Tensor positions, bool interleaved, "
      "Tensor? index_weights, int index_dim, str index_dtype, bool index_interleaved, bool hadamard) "
      "-> (Tensor, Tensor, Tensor)");
  m.impl("fused_q", c10::DispatchKey::CPU, &fused_q);
}

}  // namespace fused_q_op
