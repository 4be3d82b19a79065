// The k best of a row of scores, best first, the lower position on a tie.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "scratch.h"
#include "simd.h"

namespace select_best {

using simd::vu;
using simd::W;

// Up to this many, counting who stands before each costs less than sorting, which mispredicts its branches.
constexpr int64_t kCounted = 256;

// Ascending order of these numbers is that of descending scores. NaN ranks as -inf, -0 as +0.
inline uint32_t rank(float score) {
  if (score != score) score = -std::numeric_limits<float>::infinity();
  score += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  return (bits & 0x80000000u) ? bits : ~(bits | 0x80000000u);
}

// Working memory for rows of up to `length` scores; counting takes whole vectors.
struct Memory {
  Scratch<uint32_t> ranks, places;
  Scratch<uint64_t> best;
  Memory(int64_t length, int64_t k) : ranks(length + W), places(std::min(k, kCounted) + W), best(k + 1) {}
};

// Place of each of `count` ranks in their ascending order, the earlier one first among equals.
inline void find_places(const uint32_t* ranks, int64_t count, uint32_t* places) {
  vu lanes;
  for (int i = 0; i < W; ++i) lanes[i] = i;
  for (int64_t start = 0; start < count; start += W) {
    const vu mine = simd::raw_load<vu>(ranks + start), one = vu{} + 1u;
    const int64_t stop = std::min(start + W, count);
    vu before = {};
    for (int64_t j = 0; j < start; ++j) before += ranks[j] <= mine ? one : vu{};
    for (int64_t j = start; j < stop; ++j) {
      const vu later = lanes > static_cast<uint32_t>(j - start) ? one : vu{};
      before += ranks[j] < mine ? one : ranks[j] == mine ? later : vu{};
    }
    for (int64_t j = stop; j < count; ++j) before += ranks[j] < mine ? one : vu{};
    std::memcpy(places + start, &before, sizeof(before));
  }
}

// Positions and ranks of the k best of more than k, in order of position; `best` holds k + 1 values. The rank of the last
// of them is found bit by bit, from the first one that tells two ranks apart until k stand below: counting has no
// branches to mispredict.
inline void gather_best(const uint32_t* ranks, int64_t length, int64_t k, uint32_t ones, uint32_t zeros, uint64_t* best) {
  const int top = ones & zeros ? 32 - __builtin_clz(ones & zeros) : 0;
  uint32_t last = top == 32 ? 0 : ones >> top << top;
  int64_t ties = k;  // how many of rank `last` belong to the best
  for (int bit = top - 1; bit >= 0 && ties > 0; --bit) {
    const uint32_t candidate = last | (1u << bit);
    int32_t below = 0;
    for (int64_t s = 0; s < length; ++s) below += ranks[s] < candidate;
    if (below > k) continue;
    last = candidate;
    ties = k - below;
  }
  int64_t found = 0;
  for (int64_t s = 0; s < length; ++s) {
    const bool tie = ranks[s] == last;
    best[found] = (static_cast<uint64_t>(ranks[s]) << 32) | static_cast<uint64_t>(s);
    found += (ranks[s] < last) | (tie & (ties > 0));
    ties -= tie;
  }
}

// Positions of the k best of more than k.
inline void select(const float* scores, int64_t length, int64_t k, Memory& memory, int32_t* out) {
  uint32_t *ranks = memory.ranks, *places = memory.places;
  uint64_t* best = memory.best;
  uint32_t ones = 0, zeros = 0;
  for (int64_t s = 0; s < length; ++s) {
    ranks[s] = rank(scores[s]);
    ones |= ranks[s];
    zeros |= ~ranks[s];
  }
  gather_best(ranks, length, k, ones, zeros, best);
  if (k > kCounted) {
    std::sort(best, best + k);
    for (int64_t i = 0; i < k; ++i) out[i] = static_cast<int32_t>(best[i] & 0xffffffffu);
    return;
  }
  for (int64_t i = 0; i < k; ++i) ranks[i] = static_cast<uint32_t>(best[i] >> 32);
  find_places(ranks, k, places);
  for (int64_t i = 0; i < k; ++i) out[places[i]] = static_cast<int32_t>(best[i] & 0xffffffffu);
}

}  // namespace select_best
