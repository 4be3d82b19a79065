// Every visible key selected: 0 … length − 1, then −1.
#include <numeric>

#include "op.h"

namespace select_all_op {

void select_all(const at::Tensor& lengths, const at::Tensor& out) {
  check_rows(out);
  const int64_t rows = out.size(0), k = out.size(1);
  TORCH_CHECK(lengths.dim() == 1 && lengths.is_contiguous() && lengths.size(0) == rows,
              "select_all: lengths must be a vector with one entry for each row of out");
  const int32_t* length = lengths.const_data_ptr<int32_t>();
  for (int64_t t = 0; t < rows; ++t) {
    int32_t* to = out.mutable_data_ptr<int32_t>() + t * out.stride(0);
    const int64_t visible = std::clamp<int64_t>(length[t], 0, k);
    std::iota(to, to + visible, 0);
    std::fill(to + visible, to + k, -1);
  }
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("select_all(Tensor lengths, *, Tensor(a!) out) -> ()");
  m.impl("select_all", c10::DispatchKey::CPU, &select_all);
}

}  // namespace select_all_op
