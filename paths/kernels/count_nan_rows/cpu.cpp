// Rows of logits that hold a NaN, added to a running total.
#include <atomic>

#include "op.h"

namespace count_nan_rows_op {

template <typename T>
bool holds_nan(const T* row, int64_t width) {
  bool found = false;
  for (int64_t i = 0; i < width; ++i) {
    const float value = static_cast<float>(row[i]);
    found |= value != value;
  }
  return found;
}

void count_nan_rows(const at::Tensor& logits, const at::Tensor& total) {
  check_rows(logits);
  TORCH_CHECK(total.numel() == 1, "count_nan_rows: total has ", total.numel(), " entries, allowed is 1");
  const int64_t rows = logits.size(0), width = logits.size(1);
  std::atomic<int64_t> bad{0};
  dispatch(logits, [&](auto type) {
    using T = decltype(type);
    const T* from = logits.const_data_ptr<T>();
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) bad += holds_nan(from + n * logits.stride(0), width);
    });
  });
  *total.mutable_data_ptr<int64_t>() += bad;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("count_nan_rows(Tensor logits, *, Tensor(a!) total) -> ()");
  m.impl("count_nan_rows", c10::DispatchKey::CPU, &count_nan_rows);
}

}  // namespace count_nan_rows_op
