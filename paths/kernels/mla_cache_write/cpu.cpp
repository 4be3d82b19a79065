// Writes latents and RoPE keys into the main cache; a negative slot writes nothing.
#include "cache.h"
#include "op.h"
#include "scratch.h"

namespace mla_cache_write_op {

void mla_cache_write(const at::Tensor& c, const at::Tensor& k_pe, const at::Tensor& slot_mapping, at::Tensor& kv,
                     std::string_view kv_dtype, const at::Tensor& k_scale) {
  check_rows(c);
  check_rows(k_pe);
  const int64_t rows = c.size(0), latent = c.size(1), rope = k_pe.size(1);
  const cache::Main main(kv, kv_dtype, *k_scale.const_data_ptr<float>(), latent, rope);
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  dispatch(c, [&](auto type) {
    using T = decltype(type);
    const T *latents = c.const_data_ptr<T>(), *keys = k_pe.const_data_ptr<T>();
    at::parallel_for(0, rows, grain(latent + rope), [&](int64_t begin, int64_t end) {
      Scratch<float> row(latent + rope);
      for (int64_t t = begin; t < end; ++t) {
        if (slots[t] < 0) continue;
        TORCH_CHECK(slots[t] < main.slots, "slot ", slots[t], " outside the cache of ", main.slots);
        simd::convert(latents + t * c.stride(0), row, latent);
        simd::convert(keys + t * k_pe.stride(0), row + latent, rope);
        main.write(slots[t], row, row + latent);
      }
    });
  });
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "mla_cache_write(Tensor c, Tensor k_pe, Tensor slot_mapping, Tensor(a!) kv, str kv_dtype, Tensor k_scale) -> ()");
  m.impl("mla_cache_write", c10::DispatchKey::CPU, &mla_cache_write);
}

}  // namespace mla_cache_write_op
