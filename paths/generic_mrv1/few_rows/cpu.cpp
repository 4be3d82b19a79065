// Dense products of few rows, where a library call costs more than the product; more rows go to the library.
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>

#include "gemm.h"
#include "op.h"

namespace few_rows_op {

constexpr int64_t kColumns = 64;  // of a matrix per task

using at::Tensor;

void check(const Tensor& x, const Tensor& w) {
  TORCH_CHECK(x.stride(-1) == 1 && w.is_contiguous(), "few rows: values of a row must stand together, weights all");
  TORCH_CHECK(x.scalar_type() == w.scalar_type(), "few rows: ", x.scalar_type(), " times ", w.scalar_type());
}

// y[t, h] = w[h] · x[t, h] for x [T, H, K] with the strides row and head, w [H, N, K] and y [T, H, N].
template <typename T>
void each_head(const T* x, int64_t row, int64_t head, const T* w, T* y, int64_t T_, int64_t H, int64_t N, int64_t K) {
  const int64_t blocks = (N + kColumns - 1) / kColumns;
  at::parallel_for(0, H * blocks, grain(T_ * K * kColumns), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t h = begin / blocks, from = begin % blocks, to = std::min(blocks, from + end - begin);
      const int64_t n = from * kColumns, count = std::min(N, to * kColumns) - n;
      gemm::nt(x + h * head, row, gemm::Strided<T>{w + (h * N + n) * K, K}, T_, count, K, y + h * N + n, H * N);
      begin += to - from;
    }
  });
}

Tensor linear(const Tensor& x, const Tensor& w) {
  check(x, w);
  const int64_t rows = x.size(0), inner = x.size(1), columns = w.size(0);
  TORCH_CHECK(w.size(1) == inner, "linear: x has ", inner, " columns, w ", w.size(1));
  if (rows > ::few_rows(x.scalar_type(), inner)) return at::linear(x, w);
  Tensor y = at::empty({rows, columns}, x.options());
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    each_head(x.const_data_ptr<T>(), x.stride(0), 0, w.const_data_ptr<T>(), y.mutable_data_ptr<T>(), rows, 1, columns,
              inner);
  });
  return y;
}

Tensor expand_value(const Tensor& out, const Tensor& w_uv) {
  check(out, w_uv);
  const int64_t rows = out.size(0), heads = w_uv.size(0), value = w_uv.size(1), latent = w_uv.size(2);
  TORCH_CHECK(out.size(1) == heads && out.size(2) == latent, "expand_value: out must be [T, H, C]");
  if (rows > ::few_rows(out.scalar_type(), latent))
    return at::bmm(out.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1).contiguous();
  Tensor y = at::empty({rows, heads, value}, out.options());
  dispatch(out, [&](auto type) {
    using T = decltype(type);
    each_head(out.const_data_ptr<T>(), out.stride(0), out.stride(1), w_uv.const_data_ptr<T>(), y.mutable_data_ptr<T>(),
              rows, heads, value, latent);
  });
  return y;
}

Tensor absorb_query(const Tensor& q_nope, const Tensor& w_uk) {
  check(q_nope, w_uk);
  const int64_t rows = q_nope.size(0), heads = w_uk.size(0), nope = w_uk.size(1), latent = w_uk.size(2);
  TORCH_CHECK(q_nope.size(1) == heads && q_nope.size(2) == nope, "absorb_query: q_nope must be [T, H, N]");
  if (rows > ::few_rows(q_nope.scalar_type(), nope))
    return at::bmm(q_nope.transpose(0, 1), w_uk).transpose(0, 1).contiguous();
  Tensor query = at::empty({rows, heads, latent}, q_nope.options());
  dispatch(q_nope, [&](auto type) {
    using T = decltype(type);
    const T *from = q_nope.const_data_ptr<T>(), *weights = w_uk.const_data_ptr<T>();
    T* to = query.mutable_data_ptr<T>();
    at::parallel_for(0, heads, grain(rows * nope * latent), [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h)
        gemm::nn(from + h * q_nope.stride(1), q_nope.stride(0), gemm::Strided<T>{weights + h * nope * latent, latent},
                 rows, latent, nope, to + h * latent, heads * latent);
    });
  });
  return query;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("linear(Tensor x, Tensor w) -> Tensor");
  m.impl("linear", c10::DispatchKey::CPU, &linear);
  m.def("absorb_query(Tensor q_nope, Tensor w_uk) -> Tensor");
  m.impl("absorb_query", c10::DispatchKey::CPU, &absorb_query);
  m.def("expand_value(Tensor out, Tensor w_uv) -> Tensor");
  m.impl("expand_value", c10::DispatchKey::CPU, &expand_value);
}

}  // namespace few_rows_op
