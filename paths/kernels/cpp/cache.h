// Byte layouts of one layer's paged caches; the Python twin is paths/kernels/layouts.py.
#pragma once

#include <string_view>
#include <vector>

#include "op.h"
#include "quant.h"

namespace cache {

using simd::bf16;
using simd::e4m3;

constexpr int64_t kTile = 128;  // latent values per fp8_ds_mla scale

enum class Format { kFloat32, kBf16, kFp8, kFp8DsMla };

inline Format kv_format(std::string_view name) {
  if (name == "float32") return Format::kFloat32;
  if (name == "bf16") return Format::kBf16;
  if (name == "fp8") return Format::kFp8;
  TORCH_CHECK(name == "fp8_ds_mla", "kv dtype ", std::string(name), ": float32, bf16, fp8 or fp8_ds_mla");
  return Format::kFp8DsMla;
}

// Main cache: [blocks, page, row bytes], one token's latent and RoPE key together.
struct Main {
  Format format;
  char* data;
  int64_t page, row_bytes, block_bytes, slots, latent, rope;
  float k_scale;

  Main(const at::Tensor& kv, std::string_view kv_dtype, double scale, int64_t c, int64_t r)
      : format(kv_format(kv_dtype)),
        data(static_cast<char*>(kv.data_ptr())),
        page(kv.size(1)),
        row_bytes(kv.stride(1) * kv.element_size()),
        block_bytes(kv.stride(0) * kv.element_size()),
        slots(kv.size(0) * kv.size(1)),
        latent(c),
        rope(r),
        k_scale(static_cast<float>(scale)) {
    TORCH_CHECK(kv.stride(2) == 1, "cache rows must be contiguous");
    const int64_t need = format == Format::kFp8DsMla ? c + 4 * (c / kTile) + 2 * r : c + r;
    TORCH_CHECK(kv.size(2) == need, "cache rows of ", kv.size(2), " elements, need ", need);
    TORCH_CHECK(format != Format::kFp8DsMla || c % kTile == 0, "fp8_ds_mla needs kv_lora_rank in multiples of 128");
  }

  char* row(int64_t slot) const { return data + (slot / page) * block_bytes + (slot % page) * row_bytes; }

  // Stores latent [C] and key [R], float32 values already rounded to the model's dtype.
  void write(int64_t slot, const float* c, const float* k_pe) const {
    char* to = row(slot);
    switch (format) {
      case Format::kFloat32:
        std::memcpy(to, c, latent * 4);
        std::memcpy(to + latent * 4, k_pe, rope * 4);
        break;
      case Format::kBf16:
        simd::narrow(c, reinterpret_cast<bf16*>(to), latent);
        simd::narrow(k_pe, reinterpret_cast<bf16*>(to) + latent, rope);
        break;
      case Format::kFp8:
        quant::to_e4m3(c, k_scale, reinterpret_cast<uint8_t*>(to), latent);
        quant::to_e4m3(k_pe, k_scale, reinterpret_cast<uint8_t*>(to) + latent, rope);
        break;
      case Format::kFp8DsMla:
        for (int64_t tile = 0; tile < latent / kTile; ++tile) {
          const float scale = quant::ue8m0_scale(quant::amax(c + tile * kTile, kTile));
          quant::to_e4m3(c + tile * kTile, scale, reinterpret_cast<uint8_t*>(to) + tile * kTile, kTile);
          std::memcpy(to + latent + 4 * tile, &scale, 4);
        }
        simd::narrow(k_pe, reinterpret_cast<bf16*>(to + latent + 4 * (latent / kTile)), rope);
        break;
    }
  }

  // Key of one row as float32 [C + R].
  void read(const char* from, float* key) const {
    switch (format) {
      case Format::kFloat32:
        std::memcpy(key, from, (latent + rope) * 4);
        break;
      case Format::kBf16:
        simd::convert(reinterpret_cast<const bf16*>(from), key, latent + rope);
        break;
      case Format::kFp8:
        simd::convert(reinterpret_cast<const e4m3*>(from), key, latent + rope);
        for (int64_t i = 0; i < latent + rope; ++i) key[i] *= k_scale;
        break;
      case Format::kFp8DsMla:
        simd::convert(reinterpret_cast<const e4m3*>(from), key, latent);
        for (int64_t tile = 0; tile < latent / kTile; ++tile) {
          float scale;
          std::memcpy(&scale, from + latent + 4 * tile, 4);
          for (int64_t i = 0; i < kTile; ++i) key[tile * kTile + i] *= scale;
        }
        simd::round_to(key, latent, static_cast<const bf16*>(nullptr));
        simd::convert(reinterpret_cast<const bf16*>(from + latent + 4 * (latent / kTile)), key + latent, rope);
        break;
    }
  }
};

// Index cache: [blocks, page, dI], or for fp8 bytes [blocks, page × (dI + 4)] with a block's keys before its scales.
struct Index {
  Format format;
  char* data;
  int64_t page, dim, block_bytes, slots;

  Index(const at::Tensor& index, std::string_view index_dtype, int64_t page_size, int64_t d)
      : format(kv_format(index_dtype)),
        data(static_cast<char*>(index.data_ptr())),
        page(page_size),
        dim(d),
        block_bytes(index.stride(0) * index.element_size()),
        slots(index.size(0) * page_size) {
    TORCH_CHECK(index[0].is_contiguous(), "blocks of the index cache must be contiguous");
    const int64_t row = format == Format::kFp8 ? d + 4 : d;
    TORCH_CHECK(index.numel() == index.size(0) * page_size * row, "index cache does not hold keys of ", d);
  }

  // Stores key [dI].
  void write(int64_t slot, const float* key) const {
    char* block = data + (slot / page) * block_bytes;
    const int64_t offset = slot % page;
    if (format == Format::kFloat32) {
      std::memcpy(block + offset * dim * 4, key, dim * 4);
    } else if (format == Format::kBf16) {
      simd::narrow(key, reinterpret_cast<bf16*>(block) + offset * dim, dim);
    } else {
      const float scale = quant::ue8m0_scale(quant::amax(key, dim));
      quant::to_e4m3(key, scale, reinterpret_cast<uint8_t*>(block) + offset * dim, dim);
      std::memcpy(block + page * dim + 4 * offset, &scale, 4);
    }
  }

  int64_t key_bytes() const { return dim * (format == Format::kFloat32 ? 4 : format == Format::kBf16 ? 2 : 1); }

  // Where the key of a slot begins.
  const char* at(int64_t slot) const { return data + (slot / page) * block_bytes + (slot % page) * key_bytes(); }

  void fetch(int64_t slot) const { simd::prefetch(at(slot), key_bytes()); }

  // Stored key of one slot as float32 [dI], without its scale; returns the scale.
  float read(int64_t slot, float* key) const {
    const char* block = data + (slot / page) * block_bytes;
    const int64_t offset = slot % page;
    float scale = 1.0f;
    if (format == Format::kFloat32) {
      std::memcpy(key, block + offset * dim * 4, dim * 4);
    } else if (format == Format::kBf16) {
      simd::convert(reinterpret_cast<const bf16*>(block) + offset * dim, key, dim);
    } else {
      simd::convert(reinterpret_cast<const e4m3*>(block) + offset * dim, key, dim);
      std::memcpy(&scale, block + page * dim + 4 * offset, 4);
    }
    return scale;
  }
};

}  // namespace cache
