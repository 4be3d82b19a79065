// Everything between the first projection and the second: the query latent's norm, the key latent's norm and RoPE key
// into the main cache, the indexer key's LayerNorm, RoPE and Hadamard into the index cache.
#include <algorithm>

#include "cache.h"
#include "op.h"
#include "scratch.h"

namespace fused_norm_rope_op {

constexpr float kLayerNormEps = 1e-6f;

at::Tensor fused_norm_rope(const at::Tensor& projected, const at::Tensor& q_weight, const at::Tensor& kv_weight,
                           double eps, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& positions,
                           const at::Tensor& slot_mapping, at::Tensor& kv, std::string_view kv_dtype,
                           const at::Tensor& k_scale, bool interleaved, const std::optional<at::Tensor>& k_norm_weight,
                           const std::optional<at::Tensor>& k_norm_bias, const std::optional<at::Tensor>& index,
                           std::string_view index_dtype, bool index_interleaved, bool hadamard) {
  check_rows(projected);
  const int64_t rows = projected.size(0), q_rank = q_weight.size(0), latent = kv_weight.size(0),
                rope = 2 * cos.size(1), table = cos.size(0);
  const int64_t index_dim = k_norm_weight ? k_norm_weight->size(0) : 0;
  TORCH_CHECK(projected.size(1) >= q_rank + latent + rope + index_dim, "projection of ", projected.size(1));
  TORCH_CHECK(!hadamard || (index_dim & (index_dim - 1)) == 0, "Hadamard needs a power of two, not ", index_dim);
  const cache::Main main(kv, kv_dtype, *k_scale.const_data_ptr<float>(), latent, rope);
  std::optional<cache::Index> keys;
  if (index_dim) keys.emplace(*index, index_dtype, kv.size(1), index_dim);
  at::Tensor q_latent = at::empty({rows, q_rank}, projected.options());
  const int64_t *position = positions.const_data_ptr<int64_t>(), *slots = slot_mapping.const_data_ptr<int64_t>();
  const float *c = cos.const_data_ptr<float>(), *s = sin.const_data_ptr<float>();
  const int64_t half = rope / 2;
  dispatch(projected, [&](auto type) {
    using T = decltype(type);
    const T* from = projected.const_data_ptr<T>();
    T* to = q_latent.mutable_data_ptr<T>();
    at::parallel_for(0, rows, grain(4 * projected.size(1)), [&](int64_t begin, int64_t end) {
      Scratch<float> q(q_rank), key(latent + rope), index_key(std::max<int64_t>(index_dim, 1));
      constexpr const T* kRounding = nullptr;
      for (int64_t t = begin; t < end; ++t) {
        const T* row = from + t * projected.stride(0);
        simd::convert(row, q, q_rank);
        quant::rms_norm(q, q_weight.const_data_ptr<float>(), static_cast<float>(eps), q, q_rank);
        simd::narrow(q, to + t * q_rank, q_rank);
        if (slots[t] < 0) continue;
        TORCH_CHECK(slots[t] < main.slots, "slot ", slots[t], " outside the cache of ", main.slots);
        TORCH_CHECK(position[t] >= 0 && position[t] < table, "position ", position[t], " outside the RoPE table of ",
                    table);
        const float *cos_row = c + position[t] * half, *sin_row = s + position[t] * half;
        simd::convert(row + q_rank, key, latent + rope);
        quant::rms_norm(key, kv_weight.const_data_ptr<float>(), static_cast<float>(eps), key, latent);
        quant::rope(key + latent, cos_row, sin_row, rope, interleaved);
        simd::round_to(key, latent + rope, kRounding);
        main.write(slots[t], key, key + latent);
        if (!index_dim) continue;
        simd::convert(row + q_rank + latent + rope, index_key, index_dim);
        quant::layer_norm(index_key, k_norm_weight->const_data_ptr<float>(), k_norm_bias->const_data_ptr<float>(),
                          kLayerNormEps, index_dim);
        simd::round_to(index_key, index_dim, kRounding);
        quant::rope(index_key, cos_row, sin_row, rope, index_interleaved);
        simd::round_to(index_key, rope, kRounding);
        if (hadamard) quant::hadamard(index_key, index_dim);
        keys->write(slots[t], index_key);
      }
    });
  });
  return q_latent;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "fused_norm_rope(Tensor projected, Tensor q_weight, Tensor kv_weight, float eps, Tensor cos, Tensor sin, "
      "Tensor positions, Tensor slot_mapping, Tensor(a!) kv, str kv_dtype, Tensor k_scale, bool interleaved, "
      "Tensor? k_norm_weight, Tensor? k_norm_bias, Tensor(b!)? index, str index_dtype, bool index_interleaved, "
      "bool hadamard) -> Tensor");
  m.impl("fused_norm_rope", c10::DispatchKey::CPU, &fused_norm_rope);
}

}  // namespace fused_norm_rope_op
