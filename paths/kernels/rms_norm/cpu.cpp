// RMSNorm of each row: float32 inside, the weight multiplied before the cast.
#include "op.h"
#include "quant.h"
#include "scratch.h"

namespace rms_norm_op {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rows(x);
  const int64_t rows = x.size(0), n = x.size(1);
  at::Tensor out = at::empty({rows, n}, x.options());
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const T* from = x.const_data_ptr<T>();
    const float* w = weight.const_data_ptr<float>();
    T* to = out.mutable_data_ptr<T>();
    const int64_t stride = x.stride(0);
    at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
      Scratch<float> row(n);
      for (int64_t t = begin; t < end; ++t) {
        simd::convert(from + t * stride, row, n);
        quant::rms_norm(row, w, static_cast<float>(eps), row, n);
        simd::narrow(row, to + t * n, n);
      }
    });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.impl("rms_norm", c10::DispatchKey::CPU, &rms_norm);
}

}  // namespace rms_norm_op
