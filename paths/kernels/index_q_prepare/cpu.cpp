// Quantizes roped indexer queries per head and folds scales and constants into the head weights.
#include "index_query.h"
#include "scratch.h"

namespace index_q_prepare_op {

std::tuple<at::Tensor, at::Tensor> index_q_prepare(const at::Tensor& q, const at::Tensor& w,
                                                   std::string_view index_dtype, bool hadamard) {
  check_rows(q);
  check_rows(w);
  const int64_t rows = q.size(0), heads = q.size(1), dim = q.size(2);
  TORCH_CHECK(!hadamard || (dim & (dim - 1)) == 0, "Hadamard needs a power of two, not ", dim);
  const at::ScalarType type = index_query::dtype(index_dtype);
  const float factor = index_query::weight_factor(heads, dim);
  at::Tensor out = at::empty({rows, heads, dim}, q.options().dtype(type));
  at::Tensor weights = at::empty({rows, heads}, q.options().dtype(at::kFloat));
  float* to = weights.mutable_data_ptr<float>();
  dispatch(q, [&](auto value) {
    using T = decltype(value);
    const T *queries = q.const_data_ptr<T>();
    at::Tensor w_rows = w.to(at::kFloat);
    const float* from = w_rows.const_data_ptr<float>();
    at::parallel_for(0, rows, grain(8 * heads * dim), [&](int64_t begin, int64_t end) {
      Scratch<float> x(dim);
      for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < heads; ++h) {
          simd::convert(queries + t * q.stride(0) + h * q.stride(1), x, dim);
          const float scale =
              index_query::prepare_head(x, dim, hadamard, type, out.mutable_data_ptr(), (t * heads + h) * dim);
          to[t * heads + h] = from[t * w_rows.stride(0) + h * w_rows.stride(1)] * factor * scale;
        }
    });
  });
  return {out, weights};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("index_q_prepare(Tensor q, Tensor w, str index_dtype, bool hadamard) -> (Tensor, Tensor)");
  m.impl("index_q_prepare", c10::DispatchKey::CPU, &index_q_prepare);
}

}  // namespace index_q_prepare_op
