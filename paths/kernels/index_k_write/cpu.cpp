// Writes indexer keys into the index cache, rotated by Hadamard if asked; a negative slot writes nothing.
#include "cache.h"
#include "op.h"
#include "scratch.h"

namespace index_k_write_op {

void index_k_write(const at::Tensor& k, const at::Tensor& slot_mapping, at::Tensor& index,
                   std::string_view index_dtype, int64_t page, bool hadamard) {
  check_rows(k);
  const int64_t rows = k.size(0), dim = k.size(1);
  TORCH_CHECK(!hadamard || (dim & (dim - 1)) == 0, "Hadamard needs a power of two, not ", dim);
  const cache::Index keys(index, index_dtype, page, dim);
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  dispatch(k, [&](auto type) {
    using T = decltype(type);
    const T* from = k.const_data_ptr<T>();
    at::parallel_for(0, rows, grain(8 * dim), [&](int64_t begin, int64_t end) {
      Scratch<float> row(dim);
      for (int64_t t = begin; t < end; ++t) {
        if (slots[t] < 0) continue;
        TORCH_CHECK(slots[t] < keys.slots, "slot ", slots[t], " outside the cache of ", keys.slots);
        simd::convert(from + t * k.stride(0), row, dim);
        if (hadamard) quant::hadamard(row, dim);
        keys.write(slots[t], row);
      }
    });
  });
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "index_k_write(Tensor k, Tensor slot_mapping, Tensor(a!) index, str index_dtype, int page, bool hadamard) -> ()");
  m.impl("index_k_write", c10::DispatchKey::CPU, &index_k_write);
}

}  // namespace index_k_write_op
