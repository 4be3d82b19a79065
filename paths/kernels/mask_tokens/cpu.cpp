// Tokens that may not be sampled: their logits become −inf.
#include <limits>

#include "op.h"

namespace mask_tokens_op {

void mask_tokens(const at::Tensor& logits, const at::Tensor& rows, const at::Tensor& tokens) {
  check_rows(logits);
  const int64_t entries = rows.size(0);
  TORCH_CHECK(rows.is_contiguous() && tokens.is_contiguous() && tokens.size(0) == entries,
              "mask_tokens: rows and tokens must be contiguous and equally long");
  const int32_t *row = rows.const_data_ptr<int32_t>(), *token = tokens.const_data_ptr<int32_t>();
  float* to = logits.mutable_data_ptr<float>();
  for (int64_t i = 0; i < entries; ++i) {
    if (row[i] < 0 || token[i] < 0) continue;
    TORCH_CHECK(row[i] < logits.size(0) && token[i] < logits.size(1), "mask_tokens: entry ", i,
                " is outside of the logits");
    to[row[i] * logits.stride(0) + token[i]] = -std::numeric_limits<float>::infinity();
  }
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("mask_tokens(Tensor(a!) logits, Tensor rows, Tensor tokens) -> ()");
  m.impl("mask_tokens", c10::DispatchKey::CPU, &mask_tokens);
}

}  // namespace mask_tokens_op
