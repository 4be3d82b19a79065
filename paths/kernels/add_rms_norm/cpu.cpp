// residual + x, and the RMSNorm of that sum: the float32 sum is normed, the stored residual is rounded.
#include "op.h"
#include "quant.h"
#include "scratch.h"

namespace add_rms_norm_op {

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps) {
  check_rows(x);
  check_rows(residual);
  const int64_t rows = x.size(0), n = x.size(1);
  at::Tensor normed = at::empty({rows, n}, x.options()), summed = at::empty({rows, n}, x.options());
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const T *a = x.const_data_ptr<T>(), *b = residual.const_data_ptr<T>();
    const float* w = weight.const_data_ptr<float>();
    T *norm_to = normed.mutable_data_ptr<T>(), *sum_to = summed.mutable_data_ptr<T>();
    const int64_t a_stride = x.stride(0), b_stride = residual.stride(0);
    at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
      Scratch<float> row(n), other(n);
      for (int64_t t = begin; t < end; ++t) {
        simd::convert(a + t * a_stride, row, n);
        simd::convert(b + t * b_stride, other, n);
        for (int64_t i = 0; i < n; ++i) row[i] += other[i];
        simd::narrow(row, sum_to + t * n, n);
        quant::rms_norm(row, w, static_cast<float>(eps), row, n);
        simd::narrow(row, norm_to + t * n, n);
      }
    });
  });
  return {normed, summed};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.impl("add_rms_norm", c10::DispatchKey::CPU, &add_rms_norm);
}

}  // namespace add_rms_norm_op
