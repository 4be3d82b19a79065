// Group-limited sigmoid routing in float32.
#include "moe.h"

namespace moe_route_op {

std::tuple<at::Tensor, at::Tensor> moe_route(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& bias,
                                             int64_t n_group, int64_t topk_group, int64_t top_k, bool norm,
                                             double scaling) {
  check_rows(x);
  TORCH_CHECK(gate.is_contiguous() && bias.is_contiguous(), "gate and bias must be contiguous");
  const int64_t rows = x.size(0);
  at::Tensor weights = at::empty({rows, top_k}, x.options().dtype(at::kFloat));
  at::Tensor ids = at::empty({rows, top_k}, x.options().dtype(at::kInt));
  const moe::Routing routing{n_group, topk_group, top_k, norm, static_cast<float>(scaling)};
  dispatch(x, [&](auto type) {
    moe::route(x.const_data_ptr<decltype(type)>(), x.stride(0), rows, x.size(1), gate.const_data_ptr<float>(),
               bias.const_data_ptr<float>(), gate.size(0), routing, ids.mutable_data_ptr<int32_t>(),
               weights.mutable_data_ptr<float>(), top_k);
  });
  return {weights, ids};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "moe_route(Tensor x, Tensor gate, Tensor bias, int n_group, int topk_group, int top_k, bool norm, float scaling) "
      "-> (Tensor, Tensor)");
  m.impl("moe_route", c10::DispatchKey::CPU, &moe_route);
}

}  // namespace moe_route_op
