// Attention by products of two bfloat16 (twos.h), where keys and values are bfloat16 and the matrix unit
// does not do it (tile_attention.h). Queries go in rounded, as a linear layer's input does, and so do
// shares, before they are divided by their sum: that of the rounded ones, so that they add up to one.
//
// A score sums pairs of columns. Values are summed by pairs of positions of the text, an even one
// and the one behind it: what a row does not see of them adds zero.
#pragma once

#include "cache.h"
#include "twos.h"

namespace {

constexpr int kTwoColumns = 32;  // of a register

// Whether keys and values are read so.
inline bool twos_attend(const Model& model) { return kTwos && !kTiles && model.bfloat; }

// A head's columns, with zeros behind them.
inline int two_columns(int size) { return up(size, kTwoColumns) * kTwoColumns; }

// Numbers of a KV head's queries, and sums: [count, columns].
inline int two_queries_size(int count, int size) { return count * two_columns(size); }
inline int two_sums_size(int count, int size) { return count * two_columns(size); }

#if defined(__AVX512BF16__)

inline __m512i load_columns(const uint16_t* from, int count) {  // zeros behind
  if (count >= kTwoColumns) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
}

// Half of the sums of two registers' lanes each: 8 of a and 8 of b, then 4 of each by the next one.
// Which of both is a is all the same to a sum.
inline __m512 add_halves(__m512 a, __m512 b) {
  const __m512d others = _mm512_shuffle_f64x2((__m512d)a, (__m512d)b, 0x4e);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), (__m512)others);
}
inline __m512 add_pairs(__m512 a, __m512 b) {
  const __m512d others = _mm512_shuffle_pd((__m512d)a, (__m512d)b, 0x55);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), (__m512)others);
}
inline __m512 add_neighbours(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
inline __m512 add_quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Products of N heads' queries with the keys of a block from position `at` on. The sums of lanes
// leave each position where it belongs if four come together that are 0, 1, 4 and 5 apart.
template <int N>
__attribute__((noinline)) void score_twos(const Head* heads, const uint16_t* queries,
                                          const Block<uint16_t>& keys, int size, int at) {
  const int width = two_columns(size);
  __m512 parts[4][N];
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const uint16_t* const* lines = keys.line + part % 2 * 2 + part / 2 * 8;
    Floats sums[N][4] = {};
    const auto columns = [&](int i, int count) {
      for (int p = 0; p < 4; ++p) {
        const Floats key = (Floats)load_columns(lines[p % 2 + p / 2 * 4] + i, count);
        for (int n = 0; n < N; ++n) {
          const Floats query = (Floats)_mm512_loadu_si512(queries + n * width + i);
          sums[n][p] = add_product<Two>(query, key, sums[n][p]);
        }
      }
    };
    int i = 0;
    for (; i + kTwoColumns <= size; i += kTwoColumns) columns(i, kTwoColumns);
    if (i < size) columns(i, size - i);
    for (int n = 0; n < N; ++n)
      parts[part][n] = add_pairs(add_halves((__m512)sums[n][0], (__m512)sums[n][2]),
                                 add_halves((__m512)sums[n][1], (__m512)sums[n][3]));
  }
  for (int n = 0; n < N; ++n)
    _mm512_storeu_ps(heads[n].scores + at,
                     add_quarters(add_neighbours(parts[0][n], parts[1][n]),
                                  add_neighbours(parts[2][n], parts[3][n])));
}

// Adds pairs of values to what N heads mix of kParts times 32 columns, or `some`, by their shares,
// [N, stride] pairs. Of 32 columns the first register of sums takes each four, the second one the
// four behind them. sums: [N, width].
template <int N, int kParts>
__attribute__((noinline)) void mix_columns(const Two* shares, int stride,
                                           const uint16_t* const* lines, int pairs, int column,
                                           int some, float* sums, int width) {
  Floats own[N][kParts][2];
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < kParts; ++k)
      for (int half = 0; half < 2; ++half)
        own[n][k][half] = load(sums + n * width + column + (2 * k + half) * kLanes);
  int pair = 0;
  do {
    for (int k = 0; k < kParts; ++k) {
      const int from = column + k * kTwoColumns;
      const __m512i even = load_columns(lines[2 * pair] + from, some);
      const __m512i odd = load_columns(lines[2 * pair + 1] + from, some);
      const Floats low = (Floats)_mm512_unpacklo_epi16(even, odd);
      const Floats high = (Floats)_mm512_unpackhi_epi16(even, odd);
      for (int n = 0; n < N; ++n) {
        const Floats share = all(shares[n * stride + pair]);
        own[n][k][0] = add_product<Two>(share, low, own[n][k][0]);
        own[n][k][1] = add_product<Two>(share, high, own[n][k][1]);
      }
    }
  } while (++pair < pairs);
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < kParts; ++k)
      for (int half = 0; half < 2; ++half)
        store(sums + n * width + column + (2 * k + half) * kLanes, own[n][k][half]);
}

template <int N>
void mix_twos(const Two* shares, int stride, const uint16_t* const* lines, int pairs, int size,
              float* sums) {
  const int width = two_columns(size);
  int i = 0;
  for (; i + 2 * kTwoColumns <= size; i += 2 * kTwoColumns)
    mix_columns<N, 2>(shares, stride, lines, pairs, i, kTwoColumns, sums, width);
  for (; i < size; i += kTwoColumns)
    mix_columns<N, 1>(shares, stride, lines, pairs, i, size - i, sums, width);
}

constexpr int kScoredTwos = 4, kMixedTwos = 5;  // heads whose sums fit the registers

void score_by_twos(const Attention<uint16_t>& task) {
  const int width = two_columns(task.size);
  for (int index = 0; index < task.kv_heads * task.count; ++index) {
    uint16_t* row = task.queries + size_t(index) * width;
    round_row(task.heads[index].query, task.size, width, row);
  }
  each_block(task, task.keys, task.values, [&](int at, int head) {
    const Block<uint16_t> keys = block_at(task, task.keys + head * task.size, at);
    in_turns<kScoredTwos>(task.count, [&](auto n, int from) {
      const int index = head * task.count + from;
      score_twos<decltype(n)::value>(task.heads + index, task.queries + size_t(index) * width, keys,
                                     task.size, at);
    });
  });
}

// What rows mix of their own paths from `begin` on, which is even.
void mix_two_paths(const Attention<uint16_t>& task, int begin, int kv_head, float* sums) {
  const auto mix = [&](int first, const uint16_t* const* lines, int some, const int* places) {
    const Head* heads = task.heads + kv_head * task.count + first;
    in_turns<kMixedTwos>(task.shared, [&](auto n, int from) {
      uint16_t shares[kMixedTwos][kBlock] = {};
      for (int head = 0; head < n; ++head)
        for (int i = 0; i < some; ++i)
          shares[head][i] = reinterpret_cast<const uint16_t*>(heads[from + head].scores)[places[i]];
      mix_twos<decltype(n)::value>(reinterpret_cast<const Two*>(shares), kBlock / 2, lines,
                                   (some + 1) / 2, task.size,
                                   sums + size_t(first + from) * two_columns(task.size));
    });
  };
  each_path<kBlock>(task, begin, kv_head, mix);
}

// A head's sums, divided by those of its shares, in the columns' own order.
inline void put_mixed(const float* sums, const Head& head, int size) {
  for (int i = 0; i < size; i += kTwoColumns, sums += kTwoColumns) {
    float last[kTwoColumns];
    const bool whole = i + kTwoColumns <= size;
    store_in_order(load(sums) * head.factor, load(sums + kLanes) * head.factor,
                   whole ? head.mixed + i : last);
    if (!whole) std::copy_n(last, size - i, head.mixed + i);
  }
}

void mix_by_twos(const Attention<uint16_t>& task) {
  const int width = two_columns(task.size), size = task.count * width;
  const bool by_paths = task.text < task.end;
  const int whole = by_paths ? task.text - task.text % 2 : task.end;
  const uint16_t* none = nullptr;
  std::fill_n(task.sums, task.kv_heads * size, 0.0f);
  each_block(task, task.values, none, [&](int at, int head) {
    if (at >= whole) return;
    const Block<uint16_t> values = block_at(task, task.values + head * task.size, at);
    const Head* heads = task.heads + head * task.count;
    const int pairs = (std::min(kBlock, whole - at) + 1) / 2;
    in_turns<kMixedTwos>(task.count, [&](auto n, int from) {
      const Two* shares = reinterpret_cast<const Two*>(heads[from].scores) + at / 2;
      mix_twos<decltype(n)::value>(shares, task.line, values.line, pairs, task.size,
                                   task.sums + head * size + from * width);
    });
  });
  for (int head = 0; by_paths && head < task.kv_heads; ++head)
    mix_two_paths(task, whole, head, task.sums + head * size);
  for (int index = 0; index < task.kv_heads * task.count; ++index)
    put_mixed(task.sums + size_t(index) * width, task.heads[index], task.size);
}

#else

inline void put_mixed(const float*, const Head&, int) {}
void score_by_twos(const Attention<uint16_t>&) {}
void mix_by_twos(const Attention<uint16_t>&) {}

#endif

}  // namespace
