// Lightning-indexer scores over a request's paged keys and the k best positions of each row.
//
// Rows of one request that stand together form a task and share the converted keys. A score is the same sum in the
// same order whatever the task holds: lanes are heads, the loop runs over the dimension.
#include <algorithm>
#include <type_traits>

#include "cache.h"
#include "op.h"
#include "scratch.h"
#include "select_best.h"
#include "transpose.h"

namespace index_topk_op {

using simd::bf16;
using simd::vf;
using simd::W;

constexpr int64_t kRowsPerTask = 32;
constexpr int64_t kKeyBlock = 64;
constexpr int kKeysAtOnce = 8;

struct Task {
  int64_t begin, end;
};

// Queries of one row with heads in lanes: [groups][dI][W], padded with zeros; and their weights [groups][W].
struct Row {
  const float *queries, *weights;
};

// Lanes of group `g` that hold a head: an infinite key would make NaN of the zeros in the others.
inline simd::vi live_heads(int64_t g, int64_t heads) {
  simd::vi live;
  for (int i = 0; i < W; ++i) live[i] = g * W + i < heads ? -1 : 0;
  return live;
}

// Scores of `count` keys (at most kKeysAtOnce) that stand `dim` apart.
template <int N>
inline void score_keys(const Row& row, int64_t groups, int64_t heads, int64_t dim, const float* keys,
                       const float* scales, float* scores) {
  vf total[N] = {};
  for (int64_t g = 0; g < groups; ++g) {
    const float* q = row.queries + g * dim * W;
    vf acc[N] = {};
    for (int64_t d = 0; d < dim; ++d) {
      const vf lane = simd::load(q + d * W);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[n] += simd::splat(keys[n * dim + d]) * lane;
    }
    const vf weight = simd::load(row.weights + g * W);
    const simd::vi live = live_heads(g, heads);
    for (int n = 0; n < N; ++n) {
      const vf positive = acc[n] < 0.0f ? vf{} : acc[n];  // keeps NaN
      total[n] += live ? positive * weight : vf{};
    }
  }
  for (int n = 0; n < N; ++n) scores[n] = simd::sum(total[n]) * scales[n];
}

template <typename Q>
void spread_heads(const Q* q, const float* w, int64_t heads, int64_t dim, int64_t groups, float* queries,
                  float* weights) {
  std::fill(queries, queries + groups * dim * W, 0.0f);
  std::fill(weights, weights + groups * W, 0.0f);
  for (int64_t h = 0; h < heads; ++h) {
    float* to = queries + (h / W) * dim * W + h % W;
    for (int64_t d = 0; d < dim; ++d) to[d * W] = static_cast<float>(q[h * dim + d]);
    weights[h] = w[h];
  }
}

#ifdef __AVX512BF16__
// The same for bfloat16: two values of a dimension per lane, `queries` [groups][dI / 2][W] pairs.
template <typename Q>
void spread_pairs(const Q* q, const float* w, int64_t heads, int64_t dim, int64_t groups, bf16* queries,
                  float* weights) {
  std::fill(weights, weights + groups * W, 0.0f);
  std::copy(w, w + heads, weights);
  const bf16* from = nullptr;
  constexpr bool kNarrows = !std::is_same_v<Q, bf16>;
  Scratch<float> wide(kNarrows ? heads * dim : 1);
  Scratch<bf16> narrow(kNarrows ? heads * dim : 1);
  if constexpr (kNarrows) {
    simd::convert(q, static_cast<float*>(wide), heads * dim);
    simd::narrow(wide, static_cast<bf16*>(narrow), heads * dim);
    from = narrow;
  } else {
    from = q;
  }
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t d = 0; d < dim; d += 2 * W) {
      const int64_t pairs = std::min<int64_t>(W, (dim - d) / 2);
      const __mmask16 live = static_cast<__mmask16>(0xffff >> (W - pairs));
      __m512i r[W];
#pragma GCC unroll 16
      for (int64_t i = 0; i < W; ++i)
        r[i] = g * W + i < heads ? _mm512_maskz_loadu_epi32(live, from + (g * W + i) * dim + d) : _mm512_setzero_si512();
      simd::transpose_16(r);
      for (int64_t i = 0; i < pairs; ++i) _mm512_storeu_si512(queries + (g * dim + d + 2 * i) * W, r[i]);
    }
}

// Scores of R rows and kKeysAtOnce keys, row i's into scores + i × stride.
template <int R>
inline void score_pairs(const bf16* queries, const float* weights, int64_t groups, int64_t heads, int64_t dim,
                        const bf16* const* keys, const float* scales, float* scores, int64_t stride) {
  constexpr int N = kKeysAtOnce;
  vf total[R * N] = {};
  for (int64_t g = 0; g < groups; ++g) {
    vf acc[R * N] = {};
    for (int64_t d = 0; d < dim; d += 2) {
      __m512bh lanes[R];
      for (int r = 0; r < R; ++r)
        lanes[r] = (__m512bh)_mm512_loadu_si512(queries + (r * groups + g) * dim * W + d * W);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        int32_t pair;
        std::memcpy(&pair, keys[n] + d, sizeof(pair));
        const __m512bh key = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[r * N + n] = (vf)_mm512_dpbf16_ps((__m512)acc[r * N + n], key, lanes[r]);
      }
    }
    const simd::vi live = live_heads(g, heads);
    for (int r = 0; r < R; ++r) {
      const vf weight = simd::load(weights + (r * groups + g) * W);
      for (int n = 0; n < N; ++n) {
        const vf a = acc[r * N + n];
        const vf positive = a < 0.0f ? vf{} : a;
        total[r * N + n] += live ? positive * weight : vf{};
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; n += 4) {
      float sums[4];
      simd::sum4(total + r * N + n, sums);
      for (int i = 0; i < 4; ++i) scores[r * stride + n + i] = sums[i] * scales[n + i];
    }
}
#endif

std::vector<Task> split_tasks(const int32_t* req_rows, int64_t rows) {
  std::vector<Task> tasks;
  for (int64_t t = 0; t < rows; ++t) {
    const bool joins = !tasks.empty() && req_rows[t] == req_rows[t - 1] && t - tasks.back().begin < kRowsPerTask;
    if (!joins) tasks.push_back({t, t});
    tasks.back().end = t + 1;
  }
  return tasks;
}

struct Inputs {
  const cache::Index& keys;
  int64_t heads, dim, k, max_blocks, table_stride, out_stride;
  const float* weights;
  const int32_t *lengths, *req_rows, *block_table;
  int32_t* out;
};

// Rows of one task that have to choose.
struct Chooser {
  const Inputs& in;
  std::vector<int64_t> rows;
  int64_t longest, groups, stride;  // stride of a row's scores
  const int32_t* blocks;

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
  int64_t slot(int64_t position) const {
    return blocks[position / in.keys.page] * in.keys.page + position % in.keys.page;
  }
};

template <typename Q>
void score_all(const Chooser& c, const Q* queries, float* scores) {
  const Inputs& in = c.in;
  const int64_t groups = c.groups, count = c.count(), q_size = groups * in.dim * W;
  Scratch<float> spread(count * q_size), weights(count * groups * W), keys(kKeyBlock * in.dim);
  float scales[kKeyBlock];
  for (int64_t i = 0; i < count; ++i)
    spread_heads(queries + c.rows[i] * in.heads * in.dim, in.weights + c.rows[i] * in.heads, in.heads, in.dim, groups,
                 spread + i * q_size, weights + i * groups * W);
  for (int64_t start = 0; start < c.longest; start += kKeyBlock) {
    const int64_t stop = std::min(start + kKeyBlock, c.longest);
    for (int64_t s = start; s < stop; ++s) scales[s - start] = in.keys.read(c.slot(s), keys + (s - start) * in.dim);
    for (int64_t i = 0; i < count; ++i) {
      const Row row{spread + i * q_size, weights + i * groups * W};
      const int64_t end = std::min<int64_t>(stop, in.lengths[c.rows[i]]);
      int64_t s = start;
      for (; s + kKeysAtOnce <= end; s += kKeysAtOnce)
        score_keys<kKeysAtOnce>(row, groups, in.heads, in.dim, keys + (s - start) * in.dim, scales + s - start,
                                scores + i * c.stride + s);
      for (; s < end; ++s)
        score_keys<1>(row, groups, in.heads, in.dim, keys + (s - start) * in.dim, scales + s - start,
                      scores + i * c.stride + s);
    }
  }
}

#ifdef __AVX512BF16__
// Keys of bfloat16 are read in place, those of fp8 widened, which is exact; rows go in pairs that share them.
template <typename Q>
void score_all_pairs(const Chooser& c, const Q* queries, float* scores) {
  const Inputs& in = c.in;
  const int64_t groups = c.groups, count = c.count(), q_size = groups * in.dim * W, w_size = groups * W;
  const bool in_place = in.keys.format == cache::Format::kBf16;
  Scratch<bf16> spread(count * q_size), widened(in_place ? 1 : kKeyBlock * in.dim);
  Scratch<float> weights(count * w_size), key(in.dim);
  const bf16* keys[kKeyBlock];
  float scales[kKeyBlock];
  for (int64_t i = 0; i < count; ++i)
    spread_pairs(queries + c.rows[i] * in.heads * in.dim, in.weights + c.rows[i] * in.heads, in.heads, in.dim, groups,
                 spread + i * q_size, weights + i * w_size);
  for (int64_t start = 0; start < c.longest; start += kKeyBlock) {
    const int64_t stop = std::min(start + kKeyBlock, c.longest);
    for (int64_t s = start; s < std::min(start + kKeyBlock, c.stride); ++s) {
      if (s + kKeyBlock < c.longest) in.keys.fetch(c.slot(s + kKeyBlock));
      const int64_t slot = c.slot(std::min(s, stop - 1));
      if (in_place) {
        keys[s - start] = reinterpret_cast<const bf16*>(in.keys.at(slot));
        scales[s - start] = 1.0f;
      } else {
        bf16* to = widened + (s - start) * in.dim;
        scales[s - start] = in.keys.read(slot, key);
        simd::narrow(key, to, in.dim);
        keys[s - start] = to;
      }
    }
    for (int64_t s = start; s < stop; s += kKeysAtOnce) {
      const bf16* const* from = keys + (s - start);
      int64_t i = 0;
      for (; i + 2 <= count; i += 2)
        score_pairs<2>(spread + i * q_size, weights + i * w_size, groups, in.heads, in.dim, from, scales + s - start,
                       scores + i * c.stride + s, c.stride);
      if (i < count)
        score_pairs<1>(spread + i * q_size, weights + i * w_size, groups, in.heads, in.dim, from, scales + s - start,
                       scores + i * c.stride + s, c.stride);
    }
  }
}
#endif

template <typename Q>
void run_task(const Inputs& in, const Q* queries, const Task& task) {
  std::vector<int64_t> rows;
  int64_t longest = 0;
  for (int64_t t = task.begin; t < task.end; ++t) {
    const int64_t length = std::max<int64_t>(in.lengths[t], 0);
    int32_t* out = in.out + t * in.out_stride;
    if (length > in.k) {
      rows.push_back(t);
      longest = std::max(longest, length);
    } else {
      for (int64_t i = 0; i < in.k; ++i) out[i] = i < length ? static_cast<int32_t>(i) : -1;
    }
  }
  if (rows.empty()) return;
  TORCH_CHECK((longest + in.keys.page - 1) / in.keys.page <= in.max_blocks, "length beyond the block table");
  const int64_t stride = (longest + kKeysAtOnce - 1) / kKeysAtOnce * kKeysAtOnce;
  const Chooser c{in, std::move(rows), longest, (in.heads + W - 1) / W, stride,
                  in.block_table + in.req_rows[task.begin] * in.table_stride};
  Scratch<float> scores(c.count() * stride);
  bool scored = false;
#ifdef __AVX512BF16__
  if constexpr (!std::is_same_v<Q, float>)
    if (in.keys.format != cache::Format::kFloat32 && in.dim % 2 == 0) {
      score_all_pairs(c, queries, scores);
      scored = true;
    }
#endif
  if (!scored) score_all(c, queries, scores);
  select_best::Memory memory(longest, in.k);
  for (int64_t i = 0; i < c.count(); ++i)
    select_best::select(scores + i * stride, in.lengths[c.rows[i]], in.k, memory, in.out + c.rows[i] * in.out_stride);
}

void index_topk(const at::Tensor& q, const at::Tensor& weights, const at::Tensor& index, std::string_view index_dtype,
                int64_t page, const at::Tensor& lengths, const at::Tensor& req_rows, const at::Tensor& block_table,
                at::Tensor& topk_indices, int64_t k) {
  TORCH_CHECK(q.is_contiguous() && weights.is_contiguous(), "queries and weights must be contiguous");
  check_rows(block_table);
  check_rows(topk_indices);
  TORCH_CHECK(topk_indices.size(1) >= k && k > 0, "k ", k, " beyond the buffer of ", topk_indices.size(1));
  const cache::Index keys(index, index_dtype, page, q.size(2));
  const Inputs in{keys,
                  q.size(1),
                  q.size(2),
                  k,
                  block_table.size(1),
                  block_table.stride(0),
                  topk_indices.stride(0),
                  weights.const_data_ptr<float>(),
                  lengths.const_data_ptr<int32_t>(),
                  req_rows.const_data_ptr<int32_t>(),
                  block_table.const_data_ptr<int32_t>(),
                  topk_indices.mutable_data_ptr<int32_t>()};
  const std::vector<Task> tasks = split_tasks(in.req_rows, q.size(0));
  at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (q.scalar_type() == at::kFloat8_e4m3fn)
        run_task(in, q.const_data_ptr<simd::e4m3>(), tasks[i]);
      else
        dispatch(q, [&](auto type) { run_task(in, q.const_data_ptr<decltype(type)>(), tasks[i]); });
    }
  });
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def(
      "index_topk(Tensor q, Tensor weights, Tensor index, str index_dtype, int page, Tensor lengths, Tensor req_rows, "
      "Tensor block_table, Tensor(a!) topk_indices, int k) -> ()");
  m.impl("index_topk", c10::DispatchKey::CPU, &index_topk);
}

}  // namespace index_topk_op
