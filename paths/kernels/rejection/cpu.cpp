// Verification of drafts where every request is greedy: one pass over the logits, one loop over the requests.
#include "op.h"

#include <limits>

namespace rejection_op {

using at::Tensor;

// The first of the largest values; NaN never wins.
int64_t most_likely(const float* x, int64_t width) {
  constexpr int64_t kLanes = 16;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float lane[kLanes];
  std::fill_n(lane, kLanes, kLowest);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  }
  float largest = *std::max_element(lane, lane + kLanes);
  for (; i < width; ++i) largest = x[i] > largest ? x[i] : largest;
  if (largest == kLowest) return 0;
  return std::find(x, x + width, largest) - x;
}

std::tuple<Tensor, Tensor> greedy_rejection(const Tensor& logits, const Tensor& draft_ids, const Tensor& row_starts,
                                            int64_t max_drafts) {
  check_rows(logits);
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0, "rejection: logits must be [L, V]");
  TORCH_CHECK(draft_ids.is_contiguous() && draft_ids.size(0) == logits.size(0), "rejection: one draft per row");
  TORCH_CHECK(row_starts.is_contiguous() && row_starts.size(0) > 0, "rejection: row_starts must be [R + 1]");
  const int64_t requests = row_starts.size(0) - 1, width = max_drafts + 1;
  const int32_t* start = row_starts.const_data_ptr<int32_t>();
  const int64_t* draft = draft_ids.const_data_ptr<int64_t>();
  const float* values = logits.const_data_ptr<float>();
  Tensor tokens = at::empty({requests, width}, draft_ids.options());
  Tensor counts = at::empty({requests}, row_starts.options());
  int64_t* token = tokens.mutable_data_ptr<int64_t>();
  std::fill_n(token, requests * width, -1);
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t first = start[r], end = start[r + 1];
    TORCH_CHECK(first >= 0 && end <= logits.size(0) && end - first <= width, "rejection: request ", r, " has the rows ",
                first, " to ", end);
    int64_t count = 0;
    for (int64_t row = first; row < end; ++row) {
      const int64_t best = most_likely(values + row * logits.stride(0), logits.size(1));
      token[r * width + count++] = best;
      if (row == end - 1 || best != draft[row]) break;
    }
    counts.mutable_data_ptr<int32_t>()[r] = static_cast<int32_t>(count);
  }
  return {tokens, counts};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("greedy_rejection(Tensor logits, Tensor draft_ids, Tensor row_starts, int max_drafts) -> (Tensor, Tensor)");
  m.impl("greedy_rejection", c10::DispatchKey::CPU, &greedy_rejection);
}

}  // namespace rejection_op
