// The preparation of a V2 step: a few loops over requests and tokens, where torch would pay per operation.
#include "op.h"

namespace prepare_inputs_op {

using at::Tensor;

const int32_t* ints(const Tensor& x) { return x.const_data_ptr<int32_t>(); }
const int64_t* longs(const Tensor& x) { return x.const_data_ptr<int64_t>(); }
int32_t* ints_of(const Tensor& x) { return x.mutable_data_ptr<int32_t>(); }
int64_t* longs_of(const Tensor& x) { return x.mutable_data_ptr<int64_t>(); }

void check_flat(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* x : tensors) TORCH_CHECK(x->dim() == 1 && x->is_contiguous(), "not a contiguous vector");
}

void prepare_positions(const Tensor& slots, const Tensor& query_start, const Tensor& computed,
                       const Tensor& positions, const Tensor& req_rows, const Tensor& lengths,
                       const Tensor& seq_lens) {
  check_flat({&slots, &query_start, &computed, &positions, &req_rows, &lengths, &seq_lens});
  const int64_t rows = slots.size(0), tokens = positions.size(0);
  TORCH_CHECK(query_start.size(0) == rows + 1 && seq_lens.size(0) == rows && req_rows.size(0) == tokens &&
                  lengths.size(0) == tokens,
              "prepare_positions: sizes differ");
  const int32_t *slot = ints(slots), *start = ints(query_start);
  int64_t* position = longs_of(positions);
  int32_t *row = ints_of(req_rows), *length = ints_of(lengths), *seq_len = ints_of(seq_lens);
  std::fill_n(position, tokens, 0);
  std::fill_n(row, tokens, 0);
  std::fill_n(length, tokens, 0);
  for (int64_t r = 0; r < rows; ++r) {
    seq_len[r] = 0;
    if (slot[r] < 0) continue;
    TORCH_CHECK(start[r] >= 0 && start[r + 1] <= tokens, "prepare_positions: tokens beyond the buffers");
    const int64_t before = longs(computed)[slot[r]] - start[r];
    seq_len[r] = static_cast<int32_t>(before + start[r + 1]);
    for (int64_t t = start[r]; t < start[r + 1]; ++t) {
      position[t] = before + t;
      row[t] = static_cast<int32_t>(r);
      length[t] = static_cast<int32_t>(before + t + 1);
    }
  }
}

void combine_tokens(const Tensor& slots, const Tensor& query_start, const Tensor& logits_start,
                    const Tensor& positions, const Tensor& token_ids, const Tensor& total_len,
                    const Tensor& draft_tokens, const Tensor& input_ids, const Tensor& logits_rows,
                    const Tensor& logits_slots, const Tensor& next_positions, const Tensor& draft_ids) {
  check_flat({&slots, &query_start, &logits_start, &positions, &total_len, &input_ids, &logits_rows,
              &logits_slots, &next_positions, &draft_ids});
  check_rows(token_ids);
  const int64_t rows = slots.size(0), tokens = input_ids.size(0), wanted = logits_rows.size(0);
  const int64_t longest = token_ids.size(1), drafts = draft_tokens.size(1);
  TORCH_CHECK(drafts == 0 || draft_tokens.stride(1) == 1, "the last dimension must be contiguous");
  const int32_t *slot = ints(slots), *start = ints(query_start), *first_wanted = ints(logits_start);
  const int64_t* position = longs(positions);
  int64_t* ids = longs_of(input_ids);
  std::fill_n(ids, tokens, 0);
  std::fill_n(longs_of(logits_rows), wanted, 0);
  std::fill_n(ints_of(logits_slots), wanted, 0);
  std::fill_n(longs_of(next_positions), wanted, 0);
  std::fill_n(longs_of(draft_ids), wanted, -1);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t s = slot[r];
    if (s < 0) continue;
    TORCH_CHECK(start[r + 1] <= tokens && first_wanted[r + 1] <= wanted, "combine_tokens: rows beyond the buffers");
    const int64_t known = longs(total_len)[s];
    const int32_t* history = ints(token_ids) + s * token_ids.stride(0);
    const int64_t* guessed = drafts ? longs(draft_tokens) + s * draft_tokens.stride(0) : nullptr;
    for (int64_t t = start[r]; t < start[r + 1]; ++t) {
      const int64_t p = position[t], number = p - known;
      if (number >= 0 && number < drafts) {
        ids[t] = guessed[number];
      } else if (p >= 0 && p < longest) {
        ids[t] = history[p];
      }
    }
    const int64_t end = first_wanted[r + 1], count = end - first_wanted[r];
    TORCH_CHECK(count <= start[r + 1] - start[r], "combine_tokens: ", count, " logits of ",
                start[r + 1] - start[r], " tokens");
    for (int64_t n = first_wanted[r]; n < end; ++n) {
      const int64_t at = start[r + 1] - (end - n);
      longs_of(logits_rows)[n] = at;
      ints_of(logits_slots)[n] = static_cast<int32_t>(s);
      longs_of(next_positions)[n] = position[at] + 1;
      if (n < end - 1) longs_of(draft_ids)[n] = ids[at + 1];
    }
  }
}

void gather_block_table(const Tensor& slots, const Tensor& block_table, const Tensor& out) {
  check_flat({&slots});
  check_rows(block_table);
  check_rows(out);
  const int64_t width = block_table.size(1);
  TORCH_CHECK(out.size(0) == slots.size(0) && out.size(1) == width, "gather_block_table: out has another shape");
  for (int64_t r = 0; r < slots.size(0); ++r) {
    const int64_t slot = ints(slots)[r];
    int32_t* to = ints_of(out) + r * out.stride(0);
    if (slot < 0) {
      std::fill_n(to, width, 0);  // the null block
    } else {
      std::copy_n(ints(block_table) + slot * block_table.stride(0), width, to);
    }
  }
}

void slot_mapping(const Tensor& positions, const Tensor& req_rows, const Tensor& lengths, const Tensor& block_table,
                  int64_t page, const Tensor& out) {
  check_flat({&positions, &req_rows, &lengths, &out});
  check_rows(block_table);
  const int64_t tokens = out.size(0);
  TORCH_CHECK(positions.size(0) == tokens && req_rows.size(0) == tokens && lengths.size(0) == tokens,
              "slot_mapping: sizes differ");
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t slot = -1;
    if (ints(lengths)[t] > 0) {
      const int64_t p = longs(positions)[t];
      TORCH_CHECK(p >= 0 && p / page < block_table.size(1), "slot_mapping: position ", p, " beyond the block table");
      const int64_t block = ints(block_table)[ints(req_rows)[t] * block_table.stride(0) + p / page];
      slot = block * page + p % page;
    }
    longs_of(out)[t] = slot;
  }
}

Tensor gather_rows(const Tensor& x, const Tensor& rows) {
  check_rows(x);
  check_flat({&rows});
  const int64_t width = x.size(1), bytes = x.element_size();
  Tensor out = at::empty({rows.size(0), width}, x.options());
  const char* from = static_cast<const char*>(x.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  for (int64_t n = 0; n < rows.size(0); ++n) {
    const int64_t row = longs(rows)[n];
    TORCH_CHECK(row >= 0 && row < x.size(0), "gather_rows: row ", row, " of ", x.size(0));
    std::copy_n(from + row * x.stride(0) * bytes, width * bytes, to + n * width * bytes);
  }
  return out;
}

void post_update(const Tensor& slots, const Tensor& query_start, const Tensor& logits_start, const Tensor& sampled,
                 const Tensor& counts, const Tensor& computed, const Tensor& total_len, const Tensor& token_ids) {
  check_flat({&slots, &query_start, &logits_start, &counts, &computed, &total_len});
  check_rows(token_ids);
  const int32_t *slot = ints(slots), *start = ints(query_start), *first_wanted = ints(logits_start);
  for (int64_t r = 0; r < slots.size(0); ++r) {
    const int64_t s = slot[r];
    if (s < 0) continue;
    const int64_t wanted = first_wanted[r + 1] - first_wanted[r];
    const int64_t count = wanted > 0 ? ints(counts)[r] : 0;
    const int64_t first = longs(total_len)[s];
    TORCH_CHECK(count <= sampled.size(1) && first + count <= token_ids.size(1), "post_update: ", count,
                " tokens do not fit");
    int32_t* history = ints_of(token_ids) + s * token_ids.stride(0) + first;
    const int64_t* tokens = longs(sampled) + r * sampled.stride(0);
    for (int64_t i = 0; i < count; ++i) history[i] = static_cast<int32_t>(tokens[i * sampled.stride(1)]);
    longs_of(computed)[s] += start[r + 1] - start[r] - (wanted - count);
    longs_of(total_len)[s] = first + count;
  }
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("prepare_positions(Tensor slots, Tensor query_start, Tensor computed, Tensor(a!) positions, "
        "Tensor(b!) req_rows, Tensor(c!) lengths, Tensor(d!) seq_lens) -> ()");
  m.def("combine_tokens(Tensor slots, Tensor query_start, Tensor logits_start, Tensor positions, "
        "Tensor token_ids, Tensor total_len, Tensor draft_tokens, Tensor(a!) input_ids, "
        "Tensor(b!) logits_rows, Tensor(c!) logits_slots, Tensor(d!) next_positions, "
        "Tensor(e!) draft_ids) -> ()");
  m.def("gather_block_table(Tensor slots, Tensor block_table, Tensor(a!) out) -> ()");
  m.def("slot_mapping(Tensor positions, Tensor req_rows, Tensor lengths, Tensor block_table, int page, "
        "Tensor(a!) out) -> ()");
  m.def("gather_rows(Tensor x, Tensor rows) -> Tensor");
  m.def("post_update(Tensor slots, Tensor query_start, Tensor logits_start, Tensor sampled, Tensor counts, "
        "Tensor(a!) computed, Tensor(b!) total_len, Tensor(c!) token_ids) -> ()");
  m.impl("prepare_positions", c10::DispatchKey::CPU, &prepare_positions);
  m.impl("combine_tokens", c10::DispatchKey::CPU, &combine_tokens);
  m.impl("gather_block_table", c10::DispatchKey::CPU, &gather_block_table);
  m.impl("slot_mapping", c10::DispatchKey::CPU, &slot_mapping);
  m.impl("gather_rows", c10::DispatchKey::CPU, &gather_rows);
  m.impl("post_update", c10::DispatchKey::CPU, &post_update);
}

}  // namespace prepare_inputs_op
