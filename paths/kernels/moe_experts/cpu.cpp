// Routed experts: rows sorted by expert, one product per expert, weighted sum in float32.
#include "moe.h"

namespace moe_experts_op {

at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights, const at::Tensor& w13,
                       const at::Tensor& w2) {
  check_rows(x);
  TORCH_CHECK(ids.is_contiguous() && weights.is_contiguous() && w13.is_contiguous() && w2.is_contiguous(),
              "ids, weights, w13 and w2 must be contiguous");
  at::Tensor out;
  dispatch(x, [&](auto type) {
    out = moe::experts<decltype(type)>(x, ids.const_data_ptr<int32_t>(), weights.const_data_ptr<float>(), ids.size(1),
                                       w13, w2);
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("moe_experts(Tensor x, Tensor ids, Tensor weights, Tensor w13, Tensor w2) -> Tensor");
  m.impl("moe_experts", c10::DispatchKey::CPU, &moe_experts);
}

}  // namespace moe_experts_op
