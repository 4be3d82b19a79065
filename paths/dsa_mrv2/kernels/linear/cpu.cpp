// y = x · wᵀ; few rows are multiplied here, more go to the library.
#include <ATen/ops/linear.h>

#include "gemm.h"
#include "op.h"

namespace linear_op {

at::Tensor linear(const at::Tensor& x, const at::Tensor& w) {
  check_rows(x);
  check_rows(w);
  const int64_t rows = x.size(0), inner = x.size(1), columns = w.size(0);
  if (rows > few_rows(x.scalar_type(), inner)) return at::linear(x, w);
  at::Tensor y = at::empty({rows, columns}, x.options());
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const T *from = x.const_data_ptr<T>(), *weights = w.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    at::parallel_for(0, columns, grain(rows * inner), [&](int64_t begin, int64_t end) {
      gemm::nt(from, x.stride(0), gemm::Strided<T>{weights + begin * w.stride(0), w.stride(0)}, rows, end - begin,
               inner, to + begin, columns);
    });
  });
  return y;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("linear(Tensor x, Tensor w) -> Tensor");
  m.impl("linear", c10::DispatchKey::CPU, &linear);
}

}  // namespace linear_op
