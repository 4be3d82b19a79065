// Sparse MLA over the selected keys of each row, absorbed form: online softmax, float32 accumulation.
#include <algorithm>
#include <cmath>

#include "attend_bf16.h"
#include "cache.h"
#include "gemm.h"
#include "op.h"
#include "scratch.h"

namespace sparse_mla_op {

using simd::bf16;
using simd::vf;
using simd::W;

constexpr int64_t kKeyBlock = 32;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Largest of the lanes, NaN if one is NaN.
float maximum_of(vf v) {
  float lanes[W];
  simd::store(lanes, v);
  for (int width = W / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i + width] > lanes[i] || lanes[i + width] != lanes[i + width] ? lanes[i + width] : lanes[i];
  return lanes[0];
}

// Scores of one head become probabilities relative to the running maximum; returns the factor of what came before.
// `scores` has room for whole vectors.
float softmax_step(float* scores, int64_t count, float scale, float& maximum, float& total) {
  const int64_t padded = (count + W - 1) / W * W;
  for (int64_t i = count; i < padded; ++i) scores[i] = kMinusInf;
  vf top = simd::splat(kMinusInf);
  for (int64_t i = 0; i < padded; i += W) {
    const vf s = simd::load(scores + i) * scale;
    simd::store(scores + i, s);
    top = (s > top) | (s != s) ? s : top;
  }
  const float here = maximum_of(top), largest = here > maximum || here != here ? here : maximum;
  if (largest == kMinusInf) {
    std::fill(scores, scores + count, 0.0f);
    return 1.0f;
  }
  const float before = maximum == kMinusInf ? 0.0f : std::exp(maximum - largest);
  vf sum = {};
  for (int64_t i = 0; i < padded; i += W) {
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

// Running softmax of one row's heads; `acc` [heads, C].
struct Softmax {
  float *acc, *maximum, *total, *scores;  // scores [heads, kKeyBlock]
};

// Takes `count` keys into the running softmax; `q` [heads, width] has the element type of the keys.
template <typename K>
void attend_block(const Shape& shape, const K* q, const K* const* keys, int64_t count, float scale, bool first,
                  const Softmax& s) {
  gemm::nt(q, shape.width, keys, shape.heads, count, shape.width, s.scores, kKeyBlock);
  for (int64_t h = 0; h < shape.heads; ++h) {
    const float before = softmax_step(s.scores + h * kKeyBlock, count, scale, s.maximum[h], s.total[h]);
    if (before != 1.0f && !first)
      for (int64_t d = 0; d < shape.latent; ++d) s.acc[h * shape.latent + d] *= before;
  }
  gemm::nn_add(s.scores, kKeyBlock, keys, shape.heads, shape.latent, count, s.acc, shape.latent);
}

// One row's heads over the cache rows `rows`; what stands behind `count` is fetched ahead for the next row.
template <typename K>
void attend(const cache::Main& main, const Shape& shape, const std::vector<const char*>& rows, int64_t count,
            const K* q, float scale, float* converted, const Softmax& s) {
  std::fill(s.acc, s.acc + shape.heads * shape.latent, 0.0f);
  std::fill(s.maximum, s.maximum + shape.heads, kMinusInf);
  std::fill(s.total, s.total + shape.heads, 0.0f);
  const int64_t known = static_cast<int64_t>(rows.size());
  const K* keys[kKeyBlock];
  for (int64_t start = 0; start < count; start += kKeyBlock) {
    const int64_t n = std::min(kKeyBlock, count - start);
    for (int64_t i = 0; i < n; ++i) {
      if (start + kKeyBlock + i < known) simd::prefetch(rows[start + kKeyBlock + i], main.row_bytes);
      if (converted) {
        if constexpr (std::is_same_v<K, float>) {
          main.read(rows[start + i], converted + i * shape.width);
          keys[i] = converted + i * shape.width;
        }
      } else {
        keys[i] = reinterpret_cast<const K*>(rows[start + i]);
      }
    }
    attend_block(shape, q, keys, n, scale, start == 0, s);
  }
}

struct Selection {
  const int32_t *indices, *requests, *table;
  int64_t k, row_stride, table_stride, max_positions;

  // Appends the cache rows that row `t` selects; returns how many.
  int64_t gather(const cache::Main& main, int64_t t, std::vector<const char*>& rows) const {
    const size_t before = rows.size();
    const int32_t* blocks = table + requests[t] * table_stride;
    const uint32_t page = static_cast<uint32_t>(main.page);
    const bool whole = (page & (page - 1)) == 0;  // a power of two, as it is in practice: no division
    const int shift = __builtin_ctz(page);
    for (int64_t i = 0; i < k; ++i) {
      const int32_t position = indices[t * row_stride + i];
      if (position < 0) continue;
      TORCH_CHECK(position < max_positions, "position ", position, " beyond the block table");
      const uint32_t at = static_cast<uint32_t>(position), block = whole ? at >> shift : at / page,
                     offset = at - block * page;
      rows.push_back(main.data + blocks[block] * main.block_bytes + offset * main.row_bytes);
    }
    return static_cast<int64_t>(rows.size() - before);
  }
};

#ifdef __AVX512BF16__
// Up to this many keys, the next row of a request finds those that it shares in the cache of the core.
constexpr int64_t kSharedKeys = 512;

// The same as run_tasks for keys that attend_bf16.h takes.
void run_tasks_in_place(const cache::Main& main, const Selection& selection, const at::Tensor& q, int64_t latent,
                        float scale, int64_t splits, int64_t begin, int64_t end, bf16* out, float* lse) {
  const int64_t heads = q.size(1), width = q.size(2), per_split = (heads + splits - 1) / splits;
  attend_bf16::Memory memory({per_split, latent, width});
  std::vector<const char*> rows;
  int64_t count = selection.gather(main, begin / splits, rows);
  bool warm = false;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t t = task / splits, first = (task % splits) * per_split;
    const attend_bf16::Shape shape{std::min(per_split, heads - first), latent, width};
    const bool last_part = (task + 1) % splits == 0;
    int64_t upcoming = 0;
    if (last_part && task + 1 < end) upcoming = selection.gather(main, t + 1, rows);
    const bool shares = count <= kSharedKeys && upcoming > 0 && selection.requests[t] == selection.requests[t + 1];
    const int64_t fetch_begin = warm ? count : 0, fetch_end = shares ? count : count + upcoming;
    const attend_bf16::Keys keys{rows.data(), count, fetch_begin, fetch_end, main.row_bytes};
    if (shape.heads > 0)
      attend_bf16::attend(shape, keys, q.const_data_ptr<bf16>() + t * q.stride(0) + first * q.stride(1), q.stride(1),
                          scale, memory, out + (t * heads + first) * latent, lse + t * heads + first);
    warm = shares || (!last_part && count <= kSharedKeys);
    if (last_part) {
      rows.erase(rows.begin(), rows.begin() + count);
      count = upcoming;
    }
  }
}
#endif

// Tasks begin..end of one thread: task = row × splits + part of the heads.
template <typename T>
void run_tasks(const cache::Main& main, const Selection& selection, const at::Tensor& q, int64_t latent, float scale,
               int64_t splits, int64_t begin, int64_t end, T* out, float* lse) {
  const int64_t heads = q.size(1), width = q.size(2), per_split = (heads + splits - 1) / splits;
  // keys are read in place where their type allows it, else converted to float32
  const bool in_place = std::is_same_v<T, bf16> ? main.format == cache::Format::kBf16
                                                : main.format == cache::Format::kFloat32;
  Scratch<float> q_rows(per_split * width), converted(in_place ? 1 : kKeyBlock * width), acc(per_split * latent);
  Scratch<float> maximum(per_split), total(per_split), scores(per_split * kKeyBlock);
  const Softmax softmax{acc, maximum, total, scores};
  std::vector<const char*> rows;
  int64_t count = selection.gather(main, begin / splits, rows);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t t = task / splits, first = (task % splits) * per_split;
    const Shape shape{std::min(per_split, heads - first), latent, width};
    const bool last_part = (task + 1) % splits == 0;
    int64_t upcoming = 0;
    if (last_part && task + 1 < end) upcoming = selection.gather(main, t + 1, rows);
    const T* query = q.const_data_ptr<T>() + t * q.stride(0) + first * q.stride(1);
    if (shape.heads > 0 && in_place) {
      attend<T>(main, shape, rows, count, query, scale, nullptr, softmax);
    } else if (shape.heads > 0) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        simd::convert(query + h * q.stride(1), q_rows + h * width, width);
        if (main.format == cache::Format::kFp8) quant::round_to_e4m3(q_rows + h * width, width);
      }
      attend<float>(main, shape, rows, count, q_rows, scale, converted, softmax);
    }
    for (int64_t h = 0; h < shape.heads; ++h) {
      const float inverse = count == 0 ? 0.0f : 1.0f / total[h];
      float* row = acc + h * latent;
      for (int64_t d = 0; d < latent; ++d) row[d] *= inverse;
      simd::narrow(row, out + (t * heads + first + h) * latent, latent);
      lse[t * heads + first + h] = count == 0 ? kMinusInf : maximum[h] + std::log(total[h]);
    }
    if (last_part) {
      rows.erase(rows.begin(), rows.begin() + count);
      count = upcoming;
    }
  }
}

std::tuple<at::Tensor, at::Tensor> sparse_mla(const at::Tensor& query, const at::Tensor& kv, std::string_view kv_dtype,
                                              const at::Tensor& k_scale, const at::Tensor& topk_indices, int64_t k,
                                              const at::Tensor& req_rows, const at::Tensor& block_table,
                                              int64_t latent, double scale) {
  const at::Tensor q = query.stride(1) == query.size(2) ? query : query.contiguous();
  check_rows(q);
  check_rows(topk_indices);
  check_rows(block_table);
  const int64_t rows = q.size(0), heads = q.size(1), width = q.size(2);
  const cache::Main main(kv, kv_dtype, *k_scale.const_data_ptr<float>(), latent, width - latent);
  at::Tensor out = at::empty({rows, heads, latent}, q.options());
  at::Tensor lse = at::empty({rows, heads}, q.options().dtype(at::kFloat));
  const Selection selection{topk_indices.const_data_ptr<int32_t>(),
                            req_rows.const_data_ptr<int32_t>(),
                            block_table.const_data_ptr<int32_t>(),
                            k,
                            topk_indices.stride(0),
                            block_table.stride(0),
                            block_table.size(1) * main.page};
#ifdef __AVX512BF16__
  const bool pairs = q.scalar_type() == at::kBFloat16 && main.format == cache::Format::kBf16 &&
                     attend_bf16::takes(latent, width);
#endif
  // with fewer rows than threads, heads are split as well
  const int64_t splits = std::clamp<int64_t>(at::get_num_threads() / std::max<int64_t>(rows, 1), 1, (heads + 7) / 8);
  dispatch(q, [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, rows * splits, 1, [&](int64_t begin, int64_t end) {
#ifdef __AVX512BF16__
      if constexpr (std::is_same_v<T, bf16>)
        if (pairs)
          return run_tasks_in_place(main, selection, q, latent, static_cast<float>(scale), splits, begin, end,
                                    out.mutable_data_ptr<T>(), lse.mutable_data_ptr<float>());
#endif
      run_tasks<T>(main, selection, q, latent, static_cast<float>(scale), splits, begin, end,
                   out.mutable_data_ptr<T>(), lse.mutable_data_ptr<float>());
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
