// From the second projection to the two queries: absorb W_UK, rotate and pack the attention query [ql ; q_pe]; rotate,
// quantize and weight the indexer query.
#include <ATen/ops/bmm.h>

#include "gemm.h"
#include "index_query.h"
#include "scratch.h"

namespace fused_q_op {

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

// A part of the projection as [rows, heads, width], without a tensor of its own: making one costs more than a row.
template <typename T>
struct Heads {
  const T* data;
  int64_t rows, stride, heads, width;
  const T* at(int64_t t, int64_t h) const { return data + t * stride + h * width; }
};

// packed[:, :, :C] = q[:, :, :N] · W_UK per head, many rows: q is the beginning of `projected`
template <typename T>
void absorb_many(const at::Tensor& projected, const Heads<T>& q, const at::Tensor& w_uk, at::Tensor& packed) {
  const int64_t latent = w_uk.size(2), width = packed.size(2);
  const at::Tensor heads = projected.narrow(1, 0, q.heads * q.width).unflatten(1, {q.heads, q.width});
  const at::Tensor product = at::bmm(heads.narrow(2, 0, w_uk.size(1)).transpose(0, 1), w_uk);
  const T* from = product.const_data_ptr<T>();
  T* to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, q.rows, grain(q.heads * latent), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < q.heads; ++h)
        std::memcpy(to + (t * q.heads + h) * width, from + (h * q.rows + t) * latent, latent * sizeof(T));
  });
}

template <typename T>
void absorb(const Heads<T>& q, const at::Tensor& w_uk, at::Tensor& packed) {
  const int64_t nope = w_uk.size(1), latent = w_uk.size(2), width = packed.size(2);
  const T* weights = w_uk.const_data_ptr<T>();
  T* to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, q.heads, grain(q.rows * nope * latent), [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      gemm::nn(q.at(0, h), q.stride, gemm::Strided<T>{weights + h * nope * latent, latent}, q.rows, latent, nope,
               to + h * width, q.heads * width);
  });
}

// packed[:, :, C:] = RoPE(q[:, :, N:])
template <typename T>
void rotate(const Heads<T>& q, const Rotation& rotation, bool interleaved, int64_t nope, at::Tensor& packed) {
  const int64_t rope = q.width - nope, width = packed.size(2);
  T* to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, q.rows, grain(4 * q.heads * rope), [&](int64_t begin, int64_t end) {
    Scratch<float> x(rope);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < q.heads; ++h) {
        simd::convert(q.at(t, h) + nope, x, rope);
        quant::rope(x, rotation.at(rotation.cos, t), rotation.at(rotation.sin, t), rope, interleaved);
        simd::narrow(x, to + (t * q.heads + h) * width + width - rope, rope);
      }
  });
}

template <typename T>
void index_queries(const Heads<T>& q, const at::Tensor& w, const Rotation& rotation, bool interleaved, bool hadamard,
                   at::Tensor& prepared, at::Tensor& weights) {
  const int64_t rope = 2 * rotation.half;
  const float factor = index_query::weight_factor(q.heads, q.width);
  const T* head_weights = w.const_data_ptr<T>();
  const int64_t weights_stride = w.stride(0);
  const at::ScalarType type = prepared.scalar_type();
  void* out = prepared.mutable_data_ptr();
  float* to = weights.mutable_data_ptr<float>();
  at::parallel_for(0, q.rows, grain(8 * q.heads * q.width), [&](int64_t begin, int64_t end) {
    Scratch<float> x(q.width);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < q.heads; ++h) {
        simd::convert(q.at(t, h), x, q.width);
        quant::rope(x, rotation.at(rotation.cos, t), rotation.at(rotation.sin, t), rope, interleaved);
        simd::round_to(x, rope, static_cast<const T*>(nullptr));
        const float scale = index_query::prepare_head(x, q.width, hadamard, type, out, (t * q.heads + h) * q.width);
        to[t * q.heads + h] = static_cast<float>(head_weights[t * weights_stride + h]) * factor * scale;
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
  const int64_t rope = 2 * cos.size(1), q_width = heads * (nope + rope), stride = projected.stride(0);
  const Rotation rotation{cos.const_data_ptr<float>(), sin.const_data_ptr<float>(),
                          positions.const_data_ptr<int64_t>(), cos.size(1), cos.size(0)};
  const int64_t index_heads = index_weights ? index_weights->size(1) : 0;
  TORCH_CHECK(projected.size(1) >= q_width + index_heads * index_dim, "projection of ", projected.size(1));
  TORCH_CHECK(!hadamard || (index_dim & (index_dim - 1)) == 0, "Hadamard needs a power of two, not ", index_dim);
  at::Tensor packed = at::empty({rows, heads, latent + rope}, projected.options());
  const auto index_type = index_query::dtype(index_dtype);
  at::Tensor prepared = at::empty({index_heads ? rows : 0, index_heads, index_dim}, packed.options().dtype(index_type));
  at::Tensor weights = at::empty({index_heads ? rows : 0, index_heads}, packed.options().dtype(at::kFloat));
  dispatch(projected, [&](auto type) {
    using T = decltype(type);
    const T* from = projected.const_data_ptr<T>();
    const Heads<T> q{from, rows, stride, heads, nope + rope};
    if (rows > few_rows(projected.scalar_type(), nope))
      absorb_many(projected, q, w_uk, packed);
    else
      absorb(q, w_uk, packed);
    rotate(q, rotation, interleaved, nope, packed);
    if (index_heads)
      index_queries(Heads<T>{from + q_width, rows, stride, index_heads, index_dim}, *index_weights, rotation,
                    index_interleaved, hadamard, prepared, weights);
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
