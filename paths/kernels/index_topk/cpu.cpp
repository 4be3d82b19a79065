// Lightning-indexer scores over a request's paged keys and the k best positions of each row.
//
// Rows of one request that stand together form a task and share the converted keys. A score is the same sum in the
// same order whatever the task holds: lanes are heads, the loop runs over the dimension.
#include <algorithm>

#include "cache.h"
#include "op.h"
#include "scratch.h"

namespace index_topk_op {

using simd::vf;
using simd::W;

constexpr int64_t kRowsPerTask = 32;
constexpr int64_t kKeyBlock = 64;
constexpr int kKeysAtOnce = 8;

struct Task {
  int64_t begin, end;
};

// Ascending order of these numbers is: larger score first, then smaller index. NaN ranks as -inf, -0 as +0.
inline uint64_t rank(float score, int64_t index) {
  if (score != score) score = -std::numeric_limits<float>::infinity();
  score += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  const uint32_t descending = (bits & 0x80000000u) ? bits : ~(bits | 0x80000000u);
  return (static_cast<uint64_t>(descending) << 32) | static_cast<uint64_t>(index);
}

// Queries of one row with heads in lanes: [groups][dI][W], padded with zeros; and their weights [groups][W].
struct Row {
  const float *queries, *weights;
};

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
    simd::vi live;
    for (int i = 0; i < W; ++i) live[i] = g * W + i < heads;
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

void select(float* scores, int64_t length, int64_t k, uint64_t* order, int32_t* out) {
  for (int64_t s = 0; s < length; ++s) order[s] = rank(scores[s], s);
  std::nth_element(order, order + k - 1, order + length);
  std::sort(order, order + k);
  for (int64_t i = 0; i < k; ++i) out[i] = static_cast<int32_t>(order[i] & 0xffffffffu);
}

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

template <typename Q>
void run_task(const Inputs& in, const Q* queries, const Task& task) {
  const int64_t groups = (in.heads + W - 1) / W;
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
  const int64_t count = static_cast<int64_t>(rows.size()), q_size = groups * in.dim * W;
  Scratch<float> spread(count * q_size), weights(count * groups * W), scores(count * longest);
  Scratch<float> keys(kKeyBlock * in.dim);
  float scales[kKeyBlock];
  for (int64_t i = 0; i < count; ++i)
    spread_heads(queries + rows[i] * in.heads * in.dim, in.weights + rows[i] * in.heads, in.heads, in.dim, groups,
                 spread + i * q_size, weights + i * groups * W);
  const int32_t* blocks = in.block_table + in.req_rows[task.begin] * in.table_stride;
  for (int64_t start = 0; start < longest; start += kKeyBlock) {
    const int64_t stop = std::min(start + kKeyBlock, longest);
    for (int64_t s = start; s < stop; ++s) {
      const int64_t slot = blocks[s / in.keys.page] * in.keys.page + s % in.keys.page;
      scales[s - start] = in.keys.read(slot, keys + (s - start) * in.dim);
    }
    for (int64_t i = 0; i < count; ++i) {
      const Row row{spread + i * q_size, weights + i * groups * W};
      const int64_t end = std::min<int64_t>(stop, in.lengths[rows[i]]);
      int64_t s = start;
      for (; s + kKeysAtOnce <= end; s += kKeysAtOnce)
        score_keys<kKeysAtOnce>(row, groups, in.heads, in.dim, keys + (s - start) * in.dim, scales + s - start,
                                scores + i * longest + s);
      for (; s < end; ++s)
        score_keys<1>(row, groups, in.heads, in.dim, keys + (s - start) * in.dim, scales + s - start,
                      scores + i * longest + s);
    }
  }
  Scratch<uint64_t> order(longest);
  for (int64_t i = 0; i < count; ++i)
    select(scores + i * longest, in.lengths[rows[i]], in.k, order, in.out + rows[i] * in.out_stride);
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
