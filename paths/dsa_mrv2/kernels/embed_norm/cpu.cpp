// Embedding lookup and the first layer's RMSNorm in one pass.
#include "op.h"
#include "quant.h"
#include "scratch.h"

namespace embed_norm_op {

std::tuple<at::Tensor, at::Tensor> embed_norm(const at::Tensor& ids, const at::Tensor& table, const at::Tensor& weight,
                                              double eps) {
  TORCH_CHECK(table.is_contiguous() && ids.is_contiguous(), "ids and table must be contiguous");
  const int64_t rows = ids.size(0), n = table.size(1), vocabulary = table.size(0);
  at::Tensor hidden = at::empty({rows, n}, table.options()), normed = at::empty({rows, n}, table.options());
  const int64_t* id = ids.const_data_ptr<int64_t>();
  dispatch(table, [&](auto type) {
    using T = decltype(type);
    const T* from = table.const_data_ptr<T>();
    const float* w = weight.const_data_ptr<float>();
    T *to = hidden.mutable_data_ptr<T>(), *norm_to = normed.mutable_data_ptr<T>();
    at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
      Scratch<float> row(n);
      for (int64_t t = begin; t < end; ++t) {
        TORCH_CHECK(id[t] >= 0 && id[t] < vocabulary, "token ", id[t], " outside the vocabulary of ", vocabulary);
        std::memcpy(to + t * n, from + id[t] * n, n * sizeof(T));
        simd::convert(from + id[t] * n, row, n);
        quant::rms_norm(row, w, static_cast<float>(eps), row, n);
        simd::narrow(row, norm_to + t * n, n);
      }
    });
  });
  return {hidden, normed};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("embed_norm(Tensor ids, Tensor table, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.impl("embed_norm", c10::DispatchKey::CPU, &embed_norm);
}

}  // namespace embed_norm_op
