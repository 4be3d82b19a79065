// Changes of persistent state, queued on the host.
#include <cstring>

#include "op.h"

namespace apply_writes_op {

void apply_writes(const at::Tensor& state, const at::Tensor& writes, const at::Tensor& values, int64_t longest) {
  TORCH_CHECK(state.is_contiguous() && writes.is_contiguous() && values.is_contiguous() && writes.dim() == 2 &&
                  writes.size(1) == 3,
              "apply_writes: contiguous tensors, and three words a write");
  const int32_t* write = writes.const_data_ptr<int32_t>();
  const int32_t* from = values.const_data_ptr<int32_t>();
  int32_t* target = state.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < writes.size(0); ++i, write += 3) {
    const int64_t to = write[0], first = write[1], count = write[2];
    if (to < 0) continue;
    TORCH_CHECK(count >= 0 && count <= longest && first >= 0 && first + count <= values.size(0) &&
                    to + count <= state.size(0),
                "apply_writes: write ", i, " is outside of the state or of the values");
    std::memcpy(target + to, from + first, count * sizeof(int32_t));
  }
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("apply_writes(Tensor(a!) state, Tensor writes, Tensor values, int longest) -> ()");
  m.impl("apply_writes", c10::DispatchKey::CPU, &apply_writes);
}

}  // namespace apply_writes_op
