// The preparation of drafts: loops over requests and tokens, where torch would pay per operation.
#include "op.h"

namespace prepare_drafts_op {

using at::Tensor;

const int32_t* ints(const Tensor& x) { return x.const_data_ptr<int32_t>(); }
const int64_t* longs(const Tensor& x) { return x.const_data_ptr<int64_t>(); }
int32_t* ints_of(const Tensor& x) { return x.mutable_data_ptr<int32_t>(); }
int64_t* longs_of(const Tensor& x) { return x.mutable_data_ptr<int64_t>(); }

void check_flat(int64_t size, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* x : tensors) {
    TORCH_CHECK(x->dim() == 1 && x->is_contiguous() && x->size(0) == size, "not a contiguous vector of ", size);
  }
}

void shift_tokens(const Tensor& slots, const Tensor& query_start, const Tensor& logits_start, const Tensor& counts,
                  const Tensor& positions, const Tensor& token_ids, const Tensor& input_ids, const Tensor& lengths,
                  const Tensor& slot_mapping, const Tensor& draft_slots, const Tensor& last_rows,
                  const Tensor& last_positions, const Tensor& last_lengths) {
  const int64_t rows = slots.size(0), tokens = input_ids.size(0), entries = draft_slots.size(0);
  check_flat(rows, {&slots, &counts});
  check_flat(rows + 1, {&query_start, &logits_start});
  check_flat(tokens, {&positions, &input_ids, &lengths, &slot_mapping});
  check_flat(entries, {&draft_slots, &last_rows, &last_positions, &last_lengths});
  check_rows(token_ids);
  TORCH_CHECK(rows <= entries, "shift_tokens: ", rows, " rows and room for ", entries);
  const int32_t *slot = ints(slots), *start = ints(query_start), *first_wanted = ints(logits_start);
  const int64_t* position = longs(positions);
  int64_t *id = longs_of(input_ids), *place = longs_of(slot_mapping);
  int32_t* length = ints_of(lengths);
  std::fill_n(ints_of(draft_slots), entries, -1);
  std::fill_n(longs_of(last_rows), entries, 0);
  std::fill_n(longs_of(last_positions), entries, 0);
  std::fill_n(ints_of(last_lengths), entries, 0);
  const auto pad = [&](int64_t from, int64_t to, int64_t filler) {
    for (int64_t t = from; t < to; ++t) {
      id[t] = filler;
      length[t] = 0;
      place[t] = -1;
    }
  };
  int64_t done = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = start[r], end = start[r + 1], s = slot[r];
    TORCH_CHECK(first >= done && end >= first && end <= tokens, "shift_tokens: tokens beyond the buffers");
    if (s < 0) continue;
    pad(done, first, 0);
    done = end;
    const int64_t wanted = first_wanted[r + 1] - first_wanted[r];
    const int64_t live = end - (wanted > 0 ? wanted - ints(counts)[r] : 0);
    TORCH_CHECK(live >= first && live <= end, "shift_tokens: ", ints(counts)[r], " tokens of ", wanted);
    const int32_t* history = ints(token_ids) + s * token_ids.stride(0);
    for (int64_t t = first; t < live; ++t) {
      TORCH_CHECK(position[t] >= 0 && position[t] + 1 < token_ids.size(1), "shift_tokens: nothing behind ",
                  position[t]);
      id[t] = history[position[t] + 1];
    }
    pad(live, end, history[0]);
    if (wanted == 0) continue;
    TORCH_CHECK(live > first, "shift_tokens: a request without a live row");
    ints_of(draft_slots)[r] = static_cast<int32_t>(s);
    longs_of(last_rows)[r] = live - 1;
    longs_of(last_positions)[r] = position[live - 1];
    ints_of(last_lengths)[r] = static_cast<int32_t>(position[live - 1] + 1);
  }
  pad(done, tokens, 0);
}

void advance_drafts(const Tensor& tokens, const Tensor& draft_slots, const Tensor& last_positions,
                    const Tensor& limits, const Tensor& block_table, int64_t step, int64_t page,
                    const Tensor& draft_tokens, const Tensor& input_ids, const Tensor& positions,
                    const Tensor& lengths, const Tensor& slot_mapping, const Tensor& req_rows) {
  const int64_t entries = tokens.size(0);
  check_flat(entries, {&tokens, &draft_slots, &last_positions, &input_ids, &positions, &lengths, &slot_mapping,
                       &req_rows});
  check_flat(draft_tokens.size(0), {&limits});
  check_rows(block_table);
  TORCH_CHECK(step >= 0 && step < draft_tokens.size(1), "advance_drafts: draft ", step, " of ", draft_tokens.size(1));
  TORCH_CHECK(block_table.size(0) == entries, "advance_drafts: a block table of another batch");
  for (int64_t b = 0; b < entries; ++b) {
    const int64_t s = ints(draft_slots)[b], token = longs(tokens)[b];
    int64_t position = longs(last_positions)[b] + step + 1;
    const bool drafts = s >= 0, live = drafts && position < longs(limits)[s];
    if (drafts) longs_of(draft_tokens)[s * draft_tokens.stride(0) + step * draft_tokens.stride(1)] = token;
    if (!live) position = 0;
    int64_t place = -1;
    if (live) {
      TORCH_CHECK(position / page < block_table.size(1), "advance_drafts: position ", position,
                  " beyond the block table");
      place = ints(block_table)[b * block_table.stride(0) + position / page] * page + position % page;
    }
    longs_of(input_ids)[b] = drafts ? token : 0;
    longs_of(positions)[b] = position;
    ints_of(lengths)[b] = live ? static_cast<int32_t>(position + 1) : 0;
    longs_of(slot_mapping)[b] = place;
    ints_of(req_rows)[b] = drafts ? static_cast<int32_t>(b) : 0;
  }
}

TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("shift_tokens(Tensor slots, Tensor query_start, Tensor logits_start, Tensor counts, Tensor positions, "
        "Tensor token_ids, Tensor(a!) input_ids, Tensor(b!) lengths, Tensor(c!) slot_mapping, "
        "Tensor(d!) draft_slots, Tensor(e!) last_rows, Tensor(f!) last_positions, Tensor(g!) last_lengths) -> ()");
  m.def("advance_drafts(Tensor tokens, Tensor draft_slots, Tensor last_positions, Tensor limits, "
        "Tensor block_table, int step, int page, Tensor(a!) draft_tokens, Tensor(b!) input_ids, "
        "Tensor(c!) positions, Tensor(d!) lengths, Tensor(e!) slot_mapping, Tensor(f!) req_rows) -> ()");
  m.impl("shift_tokens", c10::DispatchKey::CPU, &shift_tokens);
  m.impl("advance_drafts", c10::DispatchKey::CPU, &advance_drafts);
}

}  // namespace prepare_drafts_op
