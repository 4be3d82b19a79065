// Sparse MLA over the selected keys of each row, absorbed form: online softmax, float32 accumulation.
#include <algorithm>
#include <cmath>

#include "cache.h"
#include "gemm.h"
#include "op.h"
#include "scratch.h"

namespace sparse_mla_op {

using simd::vf;
using simd::W;

constexpr int64_t kKeyBlock = 32;
constexpr int64_t kAhead = 3;  // keys fetched ahead: selected rows lie anywhere in the cache
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Scores of one head become probabilities relative to the running maximum; returns the factor of what came before.
float softmax_step(float* scores, int64_t count, float scale, float& maximum, float& total) {
  float largest = maximum;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] *= scale;
    largest = scores[i] > largest || scores[i] != scores[i] ? scores[i] : largest;
  }
  if (largest == kMinusInf) {
    std::fill(scores, scores + count, 0.0f);
    return 1.0f;
  }
  const float before = maximum == kMinusInf ? 0.0f : std::exp(maximum - largest);
  for (int64_t i = count; i < (count + W - 1) / W * W; ++i) scores[i] = kMinusInf;
  vf sum = {};
  for (int64_t i = 0; i < count; i += W) {
    const vf p = simd::exp(simd::load(scores + i) - largest);
    simd::store(scores + i, p);
    sum += p;
  }
  total = total * before + simd::sum(sum);
  maximum = largest;
  return before;
}

struct Shape {
  int64_t heads, latent, width;  // width = C + R
};

// One row's heads over its slots: `q` [heads, width], `acc` [heads, C], float32.
void attend(const cache::Main& main, const Shape& shape, const std::vector<int64_t>& slots, const float* q, float scale,
            float* keys, float* acc, float* maximum, float* total) {
  constexpr int64_t stride = kKeyBlock;
  Scratch<float> scores(shape.heads * stride);
  std::fill(acc, acc + shape.heads * shape.latent, 0.0f);
  std::fill(maximum, maximum + shape.heads, kMinusInf);
  std::fill(total, total + shape.heads, 0.0f);
  const int64_t n = static_cast<int64_t>(slots.size());
  for (int64_t start = 0; start < n; start += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, n - start);
    for (int64_t i = 0; i < count; ++i) {
      if (start + i + kAhead < n) simd::prefetch(main.row(slots[start + i + kAhead]), main.row_bytes);
      main.read(slots[start + i], keys + i * shape.width);
    }
    gemm::nt<float, float>(q, shape.width, keys, shape.width, shape.heads, count, shape.width, scores, stride);
    for (int64_t h = 0; h < shape.heads; ++h) {
      const float before = softmax_step(scores + h * stride, count, scale, maximum[h], total[h]);
      if (before != 1.0f && start > 0)
        for (int64_t d = 0; d < shape.latent; ++d) acc[h * shape.latent + d] *= before;
    }
    gemm::nn_add<float>(scores, stride, keys, shape.width, shape.heads, shape.latent, count, acc, shape.latent);
  }
}

std::tuple<at::Tensor, at::Tensor> sparse_mla(const at::Tensor& q, const at::Tensor& kv, std::string_view kv_dtype,
                                              const at::Tensor& k_scale, const at::Tensor& topk_indices, int64_t k,
                                              const at::Tensor& req_rows, const at::Tensor& block_table,
                                              int64_t latent, double scale) {
  check_rows(q);
  check_rows(topk_indices);
  check_rows(block_table);
  const int64_t rows = q.size(0), heads = q.size(1), width = q.size(2);
  const cache::Main main(kv, kv_dtype, *k_scale.const_data_ptr<float>(), latent, width - latent);
  at::Tensor out = at::empty({rows, heads, latent}, q.options());
  at::Tensor lse = at::empty({rows, heads}, q.options().dtype(at::kFloat));
  const int32_t *selected = topk_indices.const_data_ptr<int32_t>(), *requests = req_rows.const_data_ptr<int32_t>(),
                *table = block_table.const_data_ptr<int32_t>();
  const int64_t max_positions = block_table.size(1) * main.page;
  // with fewer rows than threads, heads are split as well
  const int64_t splits = std::clamp<int64_t>(at::get_num_threads() / std::max<int64_t>(rows, 1), 1, (heads + 7) / 8);
  const int64_t per_split = (heads + splits - 1) / splits;
  dispatch(q, [&](auto type) {
    using T = decltype(type);
    const T* queries = q.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    float* lse_to = lse.mutable_data_ptr<float>();
    at::parallel_for(0, rows * splits, 1, [&](int64_t begin, int64_t end) {
      Scratch<float> q_rows(per_split * width), keys(kKeyBlock * width), acc(per_split * latent);
      Scratch<float> maximum(per_split), total(per_split);
      std::vector<int64_t> slots;
      slots.reserve(k);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t t = task / splits, first = (task % splits) * per_split;
        const Shape shape{std::min(per_split, heads - first), latent, width};
        if (shape.heads <= 0) continue;
        slots.clear();
        for (int64_t i = 0; i < k; ++i) {
          const int64_t position = selected[t * topk_indices.stride(0) + i];
          if (position < 0) continue;
          TORCH_CHECK(position < max_positions, "position ", position, " beyond the block table");
          const int64_t block = table[requests[t] * block_table.stride(0) + position / main.page];
          slots.push_back(block * main.page + position % main.page);
        }
        for (int64_t h = 0; h < shape.heads; ++h) {
          float* row = q_rows + h * width;
          simd::convert(queries + t * q.stride(0) + (first + h) * q.stride(1), row, width);
          if (main.format == cache::Format::kFp8)  // the query is quantized per tensor as well, with scale 1
            for (int64_t i = 0; i < width; ++i)
              row[i] = static_cast<float>(simd::e4m3(quant::to_e4m3(row[i]), simd::e4m3::from_bits()));
        }
        attend(main, shape, slots, q_rows, static_cast<float>(scale), keys, acc, maximum, total);
        for (int64_t h = 0; h < shape.heads; ++h) {
          const float inverse = slots.empty() ? 0.0f : 1.0f / total[h];
          float* row = acc + h * latent;
          for (int64_t d = 0; d < latent; ++d) row[d] *= inverse;
          simd::narrow(row, to + (t * heads + first + h) * latent, latent);
          lse_to[t * heads + first + h] = slots.empty() ? kMinusInf : maximum[h] + std::log(total[h]);
        }
      }
    });
  });
  return {out, lse};
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "sparse_mla(Tensor q, Tensor kv, str kv_dtype, Tensor k_scale, Tensor topk_indices, int k, Tensor req_rows, "
      "Tensor block_table, int latent, float scale) -> (Tensor, Tensor)");
  m.impl("sparse_mla", c10::DispatchKey::CPU, &sparse_mla);
}

}  // namespace sparse_mla_op
