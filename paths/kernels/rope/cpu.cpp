// Rotary embedding of each head: float32 rotation, one rounding at the end.
#include "op.h"
#include "quant.h"
#include "scratch.h"

namespace rope_op {

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& positions,
                bool interleaved) {
  check_rows(x);
  const int64_t rows = x.size(0), heads = x.size(1), n = x.size(2), half = n / 2, table = cos.size(0);
  at::Tensor out = at::empty({rows, heads, n}, x.options());
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const T* from = x.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    const float *c = cos.const_data_ptr<float>(), *s = sin.const_data_ptr<float>();
    const int64_t* position = positions.const_data_ptr<int64_t>();
    const int64_t row_stride = x.stride(0), head_stride = x.stride(1);
    at::parallel_for(0, rows, grain(heads * n), [&](int64_t begin, int64_t end) {
      Scratch<float> row(n);
      for (int64_t t = begin; t < end; ++t) {
        const int64_t at = position[t];
        TORCH_CHECK(at >= 0 && at < table, "position ", at, " outside the RoPE table of ", table);
        for (int64_t h = 0; h < heads; ++h) {
          simd::convert(from + t * row_stride + h * head_stride, row, n);
          quant::rope(row, c + at * half, s + at * half, n, interleaved);
          simd::narrow(row, to + (t * heads + h) * n, n);
        }
      }
    });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("rope(Tensor x, Tensor cos, Tensor sin, Tensor positions, bool interleaved) -> Tensor");
  m.impl("rope", c10::DispatchKey::CPU, &rope);
}

}  // namespace rope_op
