// Attention output from latent to value space: out[t, h] = W_UV[h] · o[t, h].
#include <ATen/ops/bmm.h>

#include "gemm.h"
#include "op.h"

namespace absorb_output_op {

constexpr int64_t kFewRows = 128;

void absorb_output(const at::Tensor& o, const at::Tensor& w_uv, at::Tensor& out) {
  TORCH_CHECK(o.is_contiguous() && w_uv.is_contiguous() && out.is_contiguous(), "tensors must be contiguous");
  const int64_t rows = o.size(0), heads = w_uv.size(0), value = w_uv.size(1), latent = w_uv.size(2);
  dispatch(o, [&](auto type) {
    using T = decltype(type);
    T* to = out.mutable_data_ptr<T>();
    if (rows > kFewRows) {
      const at::Tensor product = at::bmm(o.transpose(0, 1), w_uv.transpose(1, 2));
      const T* from = product.const_data_ptr<T>();
      at::parallel_for(0, rows, grain(heads * value), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          for (int64_t h = 0; h < heads; ++h)
            std::memcpy(to + (t * heads + h) * value, from + (h * rows + t) * value, value * sizeof(T));
      });
      return;
    }
    const T *from = o.const_data_ptr<T>(), *weights = w_uv.const_data_ptr<T>();
    at::parallel_for(0, heads, grain(rows * latent * value), [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h)
        gemm::nt(from + h * latent, heads * latent, gemm::Strided<T>{weights + h * value * latent, latent}, rows, value,
                 latent, to + h * value, heads * value);
    });
  });
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("absorb_output(Tensor o, Tensor w_uv, Tensor(a!) out) -> ()");
  m.impl("absorb_output", c10::DispatchKey::CPU, &absorb_output);
}

}  // namespace absorb_output_op
