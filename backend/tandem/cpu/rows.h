// What is done to rows: norms, rotary positions, storing and moving keys and values.
#pragma once

#include <cmath>

#include "cache.h"
#include "inputs.h"
#include "numbers.h"
#include "structures.h"

namespace {

float dot(const float* a, const float* b, int width) {
  const int whole = width - width % kLanes, rest = width - whole;
  Floats sums = {};
  for (int i = 0; i < whole; i += kLanes) sums = fused(load(a + i), load(b + i), sums);
  if (rest) sums = fused(load_some(a + whole, rest), load_some(b + whole, rest), sums);
  return sum(sums);
}

// Calls `put(column, values, count)` with the norm of x, or x where there is none, a register or less at a
// time.
template <class Put>
void put_norm(const float* x, const float* scale, int width, float epsilon, Put put) {
  const float factor = scale ? 1 / std::sqrt(dot(x, x, width) / width + epsilon) : 1;
  for (int i = 0; i < width; i += kLanes) {
    Floats values = load_some(x + i, width - i);
    if (scale) values = values * factor * load_some(scale + i, width - i);
    put(i, values, width - i);
  }
}
inline void normalize(const float* x, const float* scale, int width, float epsilon, float* y) {
  put_norm(x, scale, width, epsilon,
           [&](int column, Floats values, int count) { store_some(y + column, values, count); });
}
inline void normalize(const float* x, const float* scale, int width, float epsilon, OwnInputs& y,
                      size_t row, int first = 0) {
  put_norm(x, scale, width, epsilon, [&](int column, Floats values, int count) {
    y.put(row, first + column, values, count);
  });
}

// Pairs of columns half a head apart. (cos and sin hold each half's factors.)
inline void rotate(float* head, const float* cos, const float* sin, int size) {
  const int half = size / 2;
  float* other = head + half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats low = load(head + i), high = load(other + i);
    store(head + i, fused(low, load(cos + i), high * load(sin + i)));
    store(other + i, fused(high, load(cos + half + i), low * load(sin + half + i)));
  }
  for (; i < half; ++i) {
    const float low = head[i], high = other[i];
    head[i] = low * cos[i] + high * sin[i];
    other[i] = high * cos[i + half] + low * sin[i + half];
  }
}

// Whether all are numbers, and finite: times zero they are zero.
template <class W>
bool all_finite(const W* values, int count) {
  const int whole = count - count % kLanes;
  Floats zeros = {};
  for (int i = 0; i < whole; i += kLanes) zeros = fused(load(values + i), all(0.0f), zeros);
  if (whole < count) zeros = fused(load_some(values + whole, count - whole), all(0.0f), zeros);
  return sum(zeros) == 0;
}

#if defined(__AVX512F__)
// [16, 16] words, rows `stride` bytes apart, to [16, 16], rows to columns: of these some are written.
inline void turn(const void* from, size_t stride, void* to, __mmask16 some) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i)
    a[i] = _mm512_loadu_si512(static_cast<const char*>(from) + stride * i);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)  // a[i + j], lane l: column 4 l + j of rows i to i + 3
    for (int half = 0; half < 2; ++half) {
      a[i + 2 * half] = _mm512_unpacklo_epi64(b[i + half], b[i + half + 2]);
      a[i + 2 * half + 1] = _mm512_unpackhi_epi64(b[i + half], b[i + half + 2]);
    }
  const auto put_column = [&](int column, __m512i words) {
    _mm512_mask_storeu_epi32(static_cast<char*>(to) + 64 * column, some, words);
  };
  for (int j = 0; j < 4; ++j) {
    const __m512i even = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);  // lanes 0 and 2 of both
    const __m512i odd = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
    const __m512i even_below = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i odd_below = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    put_column(j, _mm512_shuffle_i32x4(even, even_below, 0x88));
    put_column(4 + j, _mm512_shuffle_i32x4(odd, odd_below, 0x88));
    put_column(8 + j, _mm512_shuffle_i32x4(even, even_below, 0xdd));
    put_column(12 + j, _mm512_shuffle_i32x4(odd, odd_below, 0xdd));
  }
}
#endif

// Keys of slots that follow each other in a group to their places in its piece. keys: [kBlock, size], of
// which those of these slots are given.
template <class W>
void store_keys(const W* keys, int size, int slot, int count, W* piece) {
  constexpr int kPer = kPerWord<W>;
  int column = 0;
#if defined(__AVX512F__)
  const auto some = __mmask16(((1u << count) - 1) << slot % kBlock);
  for (; count > 1 && column + kBlock * kPer <= size; column += kBlock * kPer)
    turn(keys + column, size_t(size) * sizeof(W), piece + column * kBlock, some);
#endif
  for (; column < size; column += kPer)
    for (int own = slot % kBlock; own < slot % kBlock + count; ++own)
      std::memcpy(key_number(piece, own, column), keys + own * size + column, 4);
}

// And values: [kBlock, size].
inline void store_values(const float* values, int size, int slot, int count, float* piece) {
  const size_t first = size_t(slot % kBlock) * size;
  std::copy_n(values + first, size_t(count) * size, piece + first);
}
inline void store_values(const uint16_t* values, int size, int slot, int count, uint16_t* piece) {
  const int end = slot % kBlock + count;
  const auto put = [&](int own, int column) {
    *value_number(piece, size, own, column) = values[own * size + column];
  };
  int own = slot % kBlock;
  // Half a word alone: another thread may store the other one.
  for (int column = 0; own % 2 && column < size; ++column) put(own, column);
  for (own += own % 2; own + 1 < end; own += 2) {
    const uint16_t *even = values + own * size, *odd = even + size;
    int column = 0;
    for (; column + kLanes <= size; column += kLanes)
      store_words(value_number(piece, size, own, column),
                  (Words)load(even + column) >> 16 | (Words)load(odd + column));
    for (; column < size; ++column) put(own, column), put(own + 1, column);
  }
  for (int column = 0; own < end && column < size; ++column) put(own, column);
}

// Norms and rotates a row's queries and key of a KV head.
inline void rotate_row(const Model& model, const Layer& layer, int position, int kv_head, float* qkv) {
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const float *cos = model.cos + size_t(position) * size, *sin = model.sin + size_t(position) * size;
  const auto rotate_head = [&](int head, const float* scale) {
    float* values = qkv + head * size;
    if (scale) normalize(values, scale, size, model.epsilon, values);
    rotate(values, cos, sin, size);
  };
  for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head)
    rotate_head(head, layer.query_norm);
  rotate_head(model.heads + kv_head, layer.key_norm);
}

// Norms and rotates queries and keys of a KV head, and stores its keys and values, for rows whose slots
// follow each other in a group. queries: [rows, shared, size] where they go in rounded; broken: whether some
// of a row's values are not finite.
template <class W>
void prepare(const Model& model, const Layer& layer, const int32_t* positions, int slot, int count,
             int kv_head, float* qkv, uint16_t* queries, bool* broken) {
  const int size = model.head_dim, width = 2 * model.kv_heads * size;
  const int shared = model.heads / model.kv_heads * size;
  alignas(64) W keys[kBlock * kWidest], values[kBlock * kWidest];
  for (int i = 0; i < count; ++i, qkv += (model.heads + 2 * model.kv_heads) * size) {
    rotate_row(model, layer, positions[i], kv_head, qkv);
    if constexpr (kRounds<W>) narrow(qkv + kv_head * shared, shared, queries + i * shared);
    const float* key = qkv + (model.heads + kv_head) * size;
    W *own = keys + (slot % kBlock + i) * size, *value = values + (slot % kBlock + i) * size;
    narrow(key, size, own);
    narrow(key + model.kv_heads * size, size, value);
    broken[i] = !all_finite(value, size);
  }
  W* cache = static_cast<W*>(layer.cache);
  store_keys(keys, size, slot, count, cache + piece_at(slot, width, kv_head, size));
  store_values(values, size, slot, count, cache + piece_at(slot, width, model.kv_heads + kv_head, size));
}

// Copies slots to other slots, [2, count], of one layer: all are read before any is written.
template <class W>
void move_slots(const Model& model, W* cache, const int32_t* slots, int count) {
  const int size = model.head_dim, heads = model.kv_heads;
  std::vector<W> kept(size_t(count) * 2 * heads * size);
  const auto each_number = [&](const int32_t* places, auto use) {
    W* number = kept.data();
    for (int i = 0; i < count; ++i)
      for (int piece = 0; piece < 2 * heads; ++piece) {
        W* own = cache + piece_at(places[i], 2 * heads * size, piece, size);
        for (int column = 0; column < size; ++column)
          use(number++, piece < heads ? key_number(own, places[i], column)
                                      : value_number(own, size, places[i], column));
      }
  };
  each_number(slots, [](W* to, const W* from) { *to = *from; });
  each_number(slots + count, [](const W* from, W* to) { *to = *from; });
}

}  // namespace
