// A whole feed-forward block in one call: routing, routed experts and the shared expert, or a dense MLP.
#include "moe.h"

namespace moe_block_op {

// Experts of w13 and w2 behind the routed ones are shared: every row goes there as well, with weight 1.
at::Tensor moe_block(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& bias, int64_t n_group,
                     int64_t topk_group, int64_t top_k, bool norm, double scaling, const at::Tensor& w13,
                     const at::Tensor& w2) {
  check_rows(x);
  TORCH_CHECK(w13.is_contiguous() && w2.is_contiguous() && gate.is_contiguous() && bias.is_contiguous(),
              "weights must be contiguous");
  const int64_t rows = x.size(0), routed = gate.size(0), shared = w13.size(0) - routed, slots = top_k + shared;
  TORCH_CHECK(shared >= 0, "fewer experts than router rows: ", w13.size(0), " and ", routed);
  const moe::Routing routing{n_group, topk_group, top_k, norm, static_cast<float>(scaling)};
  Scratch<int32_t> ids(rows * slots);
  Scratch<float> weights(rows * slots);
  at::Tensor out;
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    moe::route(x.const_data_ptr<T>(), x.stride(0), rows, x.size(1), gate.const_data_ptr<float>(),
               bias.const_data_ptr<float>(), routed, routing, ids, weights, slots);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t e = 0; e < shared; ++e) {
        ids[t * slots + top_k + e] = static_cast<int32_t>(routed + e);
        weights[t * slots + top_k + e] = 1.0f;
      }
    out = moe::experts<T>(x, ids, weights, slots, w13, w2);
  });
  return out;
}

at::Tensor gated_mlp(const at::Tensor& x, const at::Tensor& w13, const at::Tensor& w2) {
  TORCH_CHECK(x.is_contiguous() && w13.is_contiguous() && w2.is_contiguous(), "tensors must be contiguous");
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  at::Tensor out = y;
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    moe::expert<T>(x, w13, w2, y.mutable_data_ptr<float>());
    if (x.scalar_type() == at::kFloat) return;
    out = at::empty(x.sizes(), x.options());
    simd::narrow(y.const_data_ptr<float>(), out.mutable_data_ptr<T>(), y.numel());
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "moe_block(Tensor x, Tensor gate, Tensor bias, int n_group, int topk_group, int top_k, bool norm, float scaling, "
      "Tensor w13, Tensor w2) -> Tensor");
  m.def("gated_mlp(Tensor x, Tensor w13, Tensor w2) -> Tensor");
  m.impl("moe_block", c10::DispatchKey::CPU, &moe_block);
  m.impl("gated_mlp", c10::DispatchKey::CPU, &gated_mlp);
}

}  // namespace moe_block_op
